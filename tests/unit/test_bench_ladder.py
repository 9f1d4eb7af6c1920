"""The ladder from the command line to the file, on a model that takes no time."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from packhorse.tools.bench import add_arguments, run
from packhorse.tools.bench import ladder as ladders
from packhorse.tools.bench.gpu.details import measure
from packhorse.tools.bench.gpu.latency import measure_latency
from packhorse.tools.bench.gpu.padding import count_padding
from packhorse.tools.bench.gpu.report import faults, report
from packhorse.tools.bench.preparation import Plan, Prepared, Reference
from packhorse.tools.bench.results import DISAGREES, FAILED, OK, read
from packhorse.tools.bench.rungs import CPU_RUNGS, Rung
from packhorse.tools.bench.worker_process import WorkerProcess

PACKED = next(rung for rung in CPU_RUNGS if rung.name == "packed")


def arguments(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(line.split())


def reviews(folder: Path) -> Path:
    path = folder / "reviews.tsv"
    texts = [f"This is review number {i}, and it is{' very' * (i % 5)} good." for i in range(40)]
    path.write_text("source\tscore\ttext\n" + "".join(f"tweet\t1.0\t{text}\n" for text in texts))
    return path


def plan(folder: Path, rungs: list[Rung]) -> Plan:
    return Plan("cpu", "float32", 1, "tiny", rungs, ["seed"], 4, 2, reviews=reviews(folder))


def made_up_reference(plan: Plan, prepared: Prepared, scratch: Path) -> Reference:
    """Answers that no rung gives."""
    np.save(scratch / "seed.npy", np.array([[1, -1], [-1, 1]] * 2, np.float32))
    return Reference("Made up.", {"seed": scratch / "seed.npy"}, 1.0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_ladder_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    json, svg = tmp_path / "ladder.json", tmp_path / "ladder.svg"
    line = (
        "ladder --model tiny --device cpu --threads 1 --rungs naive,packed,overlap --texts 6 "
        f"--rounds 2 --subset naive=4 --reviews {reviews(tmp_path)} --json {json} --svg {svg}"
    )
    assert run(arguments(line)) == 0
    ladder = read(json)
    assert [(rung.name, rung.status) for rung in ladder.rungs] == [
        ("naive", OK),
        ("packed", OK),
        ("overlap", OK),
    ]
    naive, packed, _ = ladder.rungs
    assert [row.workload for row in packed.measured] == ["seed", "reviews"]
    assert [(row.texts, len(row.samples)) for row in naive.measured] == [(4, 2), (4, 2)]
    assert packed.measured[0].vs_naive is not None
    assert packed.measured[0].vs_batched is None
    assert packed.measured[1].executed_flops == ladder.workloads[1].nominal_flops
    assert naive.measured[0].executed_flops > 10 * naive.measured[0].nominal_flops
    assert all(row.agreement.fault is None for rung in ladder.rungs for row in rung.measured)
    assert all(len(ceilings) == 2 for ceilings in ladder.ceilings.values())
    assert ladder.run.versions["torch"]
    assert ladder.reference == "Transformers in float32."
    assert "overlap" in capsys.readouterr().out
    assert svg.read_text().startswith("<svg")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_rung_that_disagrees_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladders, "compute_reference", made_up_reference)
    broken = Rung("broken", "Cannot be loaded.", "packed", off=("no such switch",))
    result = ladders.run(plan(tmp_path, [PACKED, broken]))
    wrong, failed = result.rungs
    assert wrong.status == DISAGREES
    assert wrong.fault is not None
    assert wrong.fault.startswith("seed: ")
    assert wrong.measured[0].agreement.score_error is not None
    assert failed.status == FAILED
    assert failed.fault is not None
    assert "'no such switch' is not one of" in failed.fault
    assert result.failures == [wrong, failed]


def test_a_worker_that_is_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse.tools.bench import worker_process
    from packhorse.tools.bench.preparation import assignment, prepare, tasks_of

    monkeypatch.setattr(worker_process, "PATIENCE", 0.01)
    asked = plan(tmp_path, [PACKED])
    prepared = prepare(asked, tmp_path)
    task = assignment(PACKED, asked, prepared, tasks_of(PACKED, asked, prepared))
    worker = WorkerProcess("packed", task, tmp_path / "log")
    try:
        with pytest.raises(worker_process.WorkerError, match="no answer within"):
            worker.wait()
    finally:
        worker.close()


def test_parts_of_the_gpu_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no GPU to be tried."""
    monkeypatch.setattr("packhorse.tools.bench.gpu.latency._REPEATS", 100)
    monkeypatch.setattr("packhorse.tools.bench.gpu.latency.LENGTH", 13)

    def broken(material: object) -> None:
        raise RuntimeError("no GPU")

    parts = {"latency": measure_latency, "padding": count_padding, "memory": broken}
    details = measure(plan(tmp_path, []), parts)
    assert details["padding"][1]["texts"] == 1
    assert 0 <= details["padding"][1]["tokens"] < 0.9
    assert faults(details) == ["memory: RuntimeError: no GPU"]
    text = report(details)
    assert "one text of 13 tokens" in text
    assert "memory: FAILED: RuntimeError: no GPU" in text


def test_the_gpu_numbers_need_a_gpu() -> None:
    from packhorse.errors import ConfigError

    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        run(arguments("gpu --device cpu"))


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_all_gpu_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.tools.bench.gpu.latency.LENGTH", 13)
    asked = Plan("cuda:0", "float16", 4, "tiny", [], [], 4, 2, reviews=reviews(tmp_path))
    details = measure(asked)
    assert faults(details) == []
    assert details["memory"]["reserved"] > 0
