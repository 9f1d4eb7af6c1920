"""`packhorse profile` and `packhorse doctor [MODEL]` on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packhorse.config import Config, ModelOptions, resolve
from packhorse.hardware import detect
from packhorse.tools.bench.random_checkpoint import SHAPES, write
from packhorse.tools.doctor.diagnosis import diagnosis
from packhorse.tools.doctor.examine_model import examine_model
from packhorse.tools.doctor.sample_texts import our_texts
from packhorse.tools.profiler.measure import measure
from packhorse.tools.profiler.subject import subject
from packhorse.tools.profiler.table import table
from packhorse.tools.profiler.trace import write_trace

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("models") / "bert"
    write(SHAPES["bert-base"], folder)
    return Config(ModelOptions(model_id=str(folder), device="cuda"))


def test_times_add_up_to_the_pass_within_a_tenth(bert: Config, tmp_path: Path) -> None:
    profiled = subject(resolve(bert, detect()), our_texts(), 16384)
    profile = measure(profiled, rounds=5)
    print(table(profile))
    assert 0.9 <= profile.accounted <= 1.1, table(profile)
    write_trace(profiled, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert any(event.get("name") == "packhorse::attention" for event in events)


def test_the_engine_has_no_fault(bert: Config) -> None:
    found = examine_model(bert, our_texts(), 1.0)
    print(diagnosis(found))
    assert [f.id for f in found.findings if f.id not in ("busy-machine", "throttling")] == []
    assert found.seen["launch_us"] > 0
