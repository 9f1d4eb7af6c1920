"""`packhorse doctor [MODEL]`: the machine's faults, planted, and the demo model without any."""

from __future__ import annotations

import argparse
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packhorse.config import Config, EngineOptions, ModelOptions
from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.tools.bench.machine_load import Load
from packhorse.tools.doctor import (
    add_arguments,
    device_memory,
    examine_model,
    machine_facts,
    memory_nodes,
    run,
)
from packhorse.tools.doctor.diagnosis import diagnosis
from packhorse.tools.doctor.free_memory import free_bytes, how_long
from packhorse.tools.doctor.model_program import padding_elsewhere
from packhorse.tools.doctor.sample_texts import our_texts

MACHINES = ("busy-machine", "throttling", "numa")
"""What the machine that runs the tests may have of its own."""


def test_a_quota_that_ran_out_while_measuring_is_named_with_the_time_lost(tmp_path: Path) -> None:
    start = machine_facts.Quota(100, 40, 1.0, clock=0.0)
    end = machine_facts.Quota(200, 70, 5.0, clock=10.0)
    found = machine_facts.throttling(start, end, 2, 80.0)
    assert found is not None
    assert found.figure == pytest.approx(0.3)
    assert found.costs == pytest.approx(20.0), "two cores stood still for 4 of their 20 s"
    assert machine_facts.throttling(start, replace(end, throttled=41), 2, 80.0) is None
    assert machine_facts.throttling(None, None, 2, 80.0) is None


@pytest.mark.parametrize(
    ("file", "waited"),
    [("cpu.stat", "throttled_usec 1500000"), ("cpu/cpu.stat", "throttled_time 1500000000")],
)
def test_quotas_of_both_versions_of_cgroups_are_read(
    tmp_path: Path, file: str, waited: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"usage_usec 5\nnr_periods 100\nnr_throttled 40\n{waited}\n")
    quota = machine_facts.quota(tmp_path)
    assert quota is not None
    assert (quota.periods, quota.throttled, quota.waited) == (100, 40, 1.5)
    assert machine_facts.quota(tmp_path / "nowhere") is None


def test_cores_of_several_memory_nodes_are_named(tmp_path: Path) -> None:
    for number, cores in enumerate(("0-3,8", "4-7")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}/cpulist").write_text(cores + "\n")
    assert memory_nodes.numa(memory_nodes.own_nodes(tmp_path, {0, 8}), 100, lambda _: 0) is None
    nodes = memory_nodes.own_nodes(tmp_path, {1, 2, 3, 4})
    assert nodes == [{1, 2, 3}, {4}]
    found = memory_nodes.numa(nodes, 100, lambda cores: 40.0 * len(cores))
    assert found is not None
    assert found.figure == 2
    assert found.costs == pytest.approx(60), "40 texts/s a core apart, 25 together"


def test_threads_are_held_to_cores_and_let_go_again() -> None:
    whole = os.sched_getaffinity(0)
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with memory_nodes.held_to({min(whole)}):
            assert os.sched_getaffinity(0) == {min(whole)}
            assert other.native_id is not None
            assert os.sched_getaffinity(other.native_id) == {min(whole)}
        assert os.sched_getaffinity(0) == whole
        assert os.sched_getaffinity(other.native_id) == whole
    finally:
        over.set()
        other.join()


def test_other_work_on_the_machine_is_named_with_what_it_takes() -> None:
    assert machine_facts.busy(Load(others=0.05, stolen=0.0), 2, 2, 100.0) is None
    assert machine_facts.busy(None, 2, 2, 100.0) is None
    found = machine_facts.busy(Load(others=0.3, stolen=0.1), 2, 2, 60.0)
    assert found is not None
    assert found.figure == pytest.approx(0.4)
    assert found.costs == pytest.approx(40.0)
    spared = machine_facts.busy(Load(others=0.3, stolen=0.1), 1, 8, 60.0)
    assert spared is not None
    assert spared.costs == 0, "seven cores were not asked for, and three are taken"


def test_device_memory_in_pieces_and_new_segments_at_every_call_are_named() -> None:
    before = {"segment.all.allocated": 10}
    after = {"segment.all.allocated": 10, "reserved_bytes.all.current": 1 << 30}
    calm = device_memory.figures(before, after | {"inactive_split_bytes.all.current": 1 << 20})
    assert device_memory.finding(calm, 0.0) is None
    torn = device_memory.figures(before, after | {"inactive_split_bytes.all.current": 1 << 29})
    found = device_memory.finding(torn, 0.0)
    assert found is not None
    assert (found.id, found.figure) == ("fragmentation", 0.5)
    asking = device_memory.figures(before, after | {"segment.all.allocated": 18})
    found = device_memory.finding(asking, 7.0)
    assert found is not None
    assert found.costs == 7
    assert "2.0 new segments a call" in found.measured


def test_free_memory_is_what_the_containers_limit_leaves(tmp_path: Path) -> None:
    assert free_bytes(False, tmp_path) > 0
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(False, tmp_path) > 10_000
    (tmp_path / "memory.max").write_text("10000\n")
    assert free_bytes(False, tmp_path) == 7000
    assert [how_long(s) for s in (5, 119, 120, 7200, 172_800)] == [
        "5 seconds", "119 seconds", "2 minutes", "2 hours", "2 days",
    ]  # fmt: skip


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
    assert all(f.costs >= 0 for f in found.findings)


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_server_for_each_node_is_measured_on_cores_that_stand_for_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(memory_nodes, "own_nodes", lambda: [{first}, {second}])
    config = Config(ModelOptions(device="cpu", dtype="float32"), EngineOptions(threads=2))
    found = examine_model.examine_model(config, our_texts(), 0.05)
    (numa,) = [f for f in found.findings if f.id == "numa"]
    assert 0 <= numa.costs < 5 * found.texts_per_second, "two servers of one core each"
    assert len(os.sched_getaffinity(0)) >= 2


@pytest.mark.long
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
