"""`packhorse profile`: what operations compute and move, their times, and the files."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from packhorse.config import Config, EngineOptions, ModelOptions, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.models.backend import Dense
from packhorse.tools import profiler
from packhorse.tools.bench import ceilings
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.bench.flops import ModelSize, packed
from packhorse.tools.doctor.sample_texts import our_texts
from packhorse.tools.profiler import flame_graph
from packhorse.tools.profiler.counts import moved_bytes
from packhorse.tools.profiler.measure import measure
from packhorse.tools.profiler.roofline import operations
from packhorse.tools.profiler.subject import Subject, subject
from packhorse.tools.profiler.table import table
from packhorse.tools.profiler.watched_backend import OperationCall, WatchedBackend


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.MATMUL_SIZE, "cpu", 256)
    monkeypatch.setitem(ceilings.COPIED_BYTES, "cpu", 1 << 20)


@pytest.fixture(scope="module")
def demo() -> Subject:
    config = Config(ModelOptions(device="cpu", dtype="float32"), EngineOptions(threads=1))
    return subject(resolve(config, detect()), our_texts(), 512)


def test_a_batch_has_as_many_tokens_as_asked_for_and_is_sorted(demo: Subject) -> None:
    assert 512 - demo.lengths.max() < demo.lengths.sum() <= 512
    assert (np.diff(demo.lengths) >= 0).all()


def test_flops_of_the_operations_are_those_of_the_whole_pass(demo: Subject) -> None:
    _, calls = demo.calls()
    size = ModelSize.of(demo.checkpoint)
    assert sum(call.flops for call in calls) == packed(size, demo.lengths, first_token_only=True)


def test_layers_of_8_bits_are_refused_with_what_to_do() -> None:
    config = Config(ModelOptions(device="cpu", dtype="int8"), EngineOptions(threads=1))
    with pytest.raises(ConfigError, match="--dtype bfloat16 or float32"):
        subject(resolve(config, detect()), our_texts(), 64)


def test_being_watched_changes_no_answer(demo: Subject) -> None:
    backend = WatchedBackend(demo.model.backend, demo.device, demo.lengths)
    with torch.inference_mode():
        plain = demo.model.forward(demo.input_ids, demo.layout)
        watched = replace(demo.model, backend=backend).forward(demo.input_ids, demo.layout)
    assert torch.equal(plain, watched)


def test_bytes_are_inputs_and_outputs_once() -> None:
    x, layer = torch.zeros(5, 4), Dense(torch.zeros(3, 4), torch.zeros(3))
    assert moved_bytes("dense", (x, layer), {}, torch.zeros(5, 3)) == 4 * (20 + 12 + 3 + 15)
    out = torch.zeros(5, 3)
    assert moved_bytes("dense", (x, layer), {"out": out}, out) == 4 * (20 + 12 + 3 + 15)


def test_times_add_up_to_the_pass_within_a_tenth(demo: Subject) -> None:
    profile = measure(demo, rounds=5)
    assert 0.9 <= profile.accounted <= 1.0, table(profile)
    assert "add up to" in table(profile)


def test_the_roofline_is_the_higher_of_two_floors() -> None:
    ceiling = Ceiling(flops=100.0, bytes=10.0)
    rounds = [
        [OperationCall("dense 1→1", 50, 1, 1.0), OperationCall("norm", 0, 20, 4.0)],
        [OperationCall("dense 1→1", 50, 1, 1.0), OperationCall("norm", 0, 20, 4.0)],
    ]
    norm, dense = operations(rounds, ceiling)
    assert (dense.bound, dense.roofline) == ("compute", 0.5)
    assert (norm.bound, norm.roofline) == ("memory", 0.5)
    assert norm.name == "norm", "the longest comes first"


def test_trace_and_profile_are_written_and_a_missing_py_spy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flame_graph, "py_spy", lambda: None)
    monkeypatch.setattr(profiler, "ROUNDS", 1)
    parser = argparse.ArgumentParser()
    profiler.add_arguments(parser)
    line = f"--device cpu --threads 1 --tokens 256 -o {tmp_path / 'out'}"
    assert profiler.run(parser.parse_args(line.split())) == 0
    trace = json.loads((tmp_path / "out/trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"packhorse::embed", "packhorse::attention", "aten::layer_norm"} <= names
    profile = json.loads((tmp_path / "out/profile.json").read_text())
    assert profile["operations"][0]["seconds"] > 0
    assert "py-spy is not installed" in profile["skipped"][0]
    assert "py-spy is not installed" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(flame_graph.py_spy() is None, reason="needs py-spy")
def test_the_flame_graph_is_not_empty(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--threads", "1", "--tokens", "256"]
    assert flame_graph.write_flame_graph(words, tmp_path / "flame.svg", seconds=2) is None
    assert "forward" in (tmp_path / "flame.svg").read_text()
