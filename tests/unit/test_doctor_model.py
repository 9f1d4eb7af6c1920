"""`packhorse doctor [MODEL]`: the machine's faults, planted, and the demo model without any."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from packhorse.config import Config, EngineOptions, ModelOptions
from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.tools.bench.machine_load import Load
from packhorse.tools.doctor import add_arguments, examine_model, machine_facts, run
from packhorse.tools.doctor.diagnosis import diagnosis
from packhorse.tools.doctor.model_program import padding_elsewhere
from packhorse.tools.doctor.sample_texts import our_texts

MACHINES = ("busy-machine", "throttling", "numa")
"""What the machine that runs the tests may have of its own."""


def test_a_quota_that_ran_out_while_measuring_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 100\nnr_throttled 40\n")
    before = machine_facts.periods(tmp_path)
    (tmp_path / "cpu.stat").write_text("usage_usec 9\nnr_periods 200\nnr_throttled 70\n")
    found = machine_facts.throttling(before, machine_facts.periods(tmp_path), 2)
    assert found is not None
    assert found.figure == pytest.approx(0.3)
    assert machine_facts.throttling(before, (200, 41), 2) is None
    assert machine_facts.throttling(None, None, 2) is None
    assert machine_facts.periods(tmp_path / "nowhere") is None


def test_cores_of_several_memory_nodes_are_named_for_a_cpu_alone(tmp_path: Path) -> None:
    for number, cores in enumerate(("0-3,8", "4-7")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}/cpulist").write_text(cores + "\n")
    assert machine_facts.numa(False, tmp_path, {0, 8}) is None
    found = machine_facts.numa(False, tmp_path, {3, 4})
    assert found is not None
    assert found.figure == 2
    assert machine_facts.numa(True, tmp_path, {3, 4}) is None


def test_other_work_on_the_machine_is_named() -> None:
    assert machine_facts.busy(Load(others=0.05, stolen=0.0)) is None
    assert machine_facts.busy(None) is None
    found = machine_facts.busy(Load(others=0.3, stolen=0.1))
    assert found is not None
    assert found.figure == pytest.approx(0.4)


def test_padding_is_that_of_a_program_without_packing() -> None:
    shares = padding_elsewhere(np.array([10] * 32 + [30] * 32, np.int32))
    assert shares["to_128"] == pytest.approx(1 - 20 / 128)
    assert shares["batches_of_32"] == 0
    mixed = padding_elsewhere(np.array([10, 30] * 32, np.int32))
    assert mixed["batches_of_32"] == pytest.approx(1 - 20 / 30)
    assert mixed["batches_of_32_sorted"] == 0


@pytest.mark.long
def test_the_demo_model_has_no_fault_of_its_own_and_settings_that_are_wrong_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ModelOptions(device="cpu", dtype="float32")
    config = Config(model, EngineOptions(threads=1))
    found = examine_model.examine_model(config, our_texts(), 0.05)
    assert [f.id for f in found.findings if f.id not in MACHINES] == [], diagnosis(found)
    assert found.seen["tokenizing_texts_per_second"] > found.seen["computing_texts_per_second"]
    hardware = Hardware(cpus=1, cpu_features=frozenset({"avx512_bf16"}))
    monkeypatch.setattr(examine_model, "detect", lambda: hardware)
    wrong = Config(model, EngineOptions(threads=2))
    found = examine_model.examine_model(wrong, our_texts(), 0.05)
    assert [f.id for f in found.findings if f.id not in MACHINES] == ["threads", "fp32"]
    assert all(f.costs is not None for f in found.findings if f.id in ("threads", "fp32"))


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = "--device cpu --threads 1 --seconds 0.05 --json"
    assert run(parser.parse_args(words.split())) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["subject"] == "packhorse-demo"
    assert shown["texts_per_second"] > 0
    with pytest.raises(ConfigError, match="device would be for a model"):
        run(parser.parse_args(["--script", "a.py:b", "--device", "cpu"]))
