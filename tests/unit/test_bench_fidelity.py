"""What `bench fidelity` compares, when a line holds, and that it finds what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.errors import ConfigError
from packhorse.families import FAMILIES
from packhorse.tasks import Task
from packhorse.tools.bench.__main__ import main
from packhorse.tools.bench.fidelity import measure as measuring
from packhorse.tools.bench.fidelity.faults import FAULTS
from packhorse.tools.bench.fidelity.lines import Errors, Fidelity, Line, verdict, worst_of
from packhorse.tools.bench.fidelity.subjects import PROBLEMS, subjects
from tests import tiny_checkpoints

ROOT = Path(__file__).parents[2]
REVIEWS = ROOT / "benchmarks/data/reviews.tsv"

CLASSIFICATION = [each.name for each in PROBLEMS if each.task is Task.CLASSIFY]
OTHER_TASKS = [each.name for each in PROBLEMS if each.task is not Task.CLASSIFY]


def errors(largest: float, rms: float, relative: float = 0.0) -> Errors:
    return Errors(largest=largest, relative=relative, rms=rms)


def test_every_family_has_every_problem() -> None:
    everything = subjects()
    assert {subject.family for subject in everything} == set(FAMILIES)
    assert {(s.family, s.problem.name) for s in everything} == {
        (family, problem.name) for family in FAMILIES for problem in PROBLEMS
    }
    for subject in everything:
        assert subject.model_class in FAMILIES[subject.family].architectures
        assert subject.model_class.endswith(subject.problem.head)
    assert {subject.problem.task for subject in everything} == set(Task)


@pytest.mark.parametrize(("flag", "value"), [("families", "bort"), ("problems", "pears")])
def test_an_unknown_name_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fidelity", f"--{flag}", value, "--device", "cpu"]) == 2
    assert f"--{flag}: '{value}' is not one of" in capsys.readouterr().err


def test_errors_are_the_largest_its_share_and_the_root_mean_square() -> None:
    reference = np.array([[4.0, -8.0], [0.0, 2.0]], np.float32)
    found = Errors.of(reference + np.array([[1, 0], [0, -2]], np.float32), reference)
    assert (found.largest, found.relative, found.rms) == (2.0, 0.25, pytest.approx(1.25**0.5))
    with pytest.raises(ConfigError, match=r"shape \(2, 1\) instead of \(2, 2\)"):
        Errors.of(reference[:, :1], reference)


@pytest.mark.parametrize(
    ("ours", "theirs", "fault"),
    [
        (errors(1.0, 1.0, 1e-5), None, None),
        (errors(1.0, 1.0, 1.01e-5), None, "1.0e-05 of the largest logit away"),
        (errors(1.0, 1.0, float("nan")), None, "nan of the largest"),
        (errors(1.5, 1.1), errors(1.0, 1.0), None),
        (errors(1.5, 1.11), errors(1.0, 1.0), "RMS 1.11x"),
        (errors(1.51, 1.1), errors(1.0, 1.0), "largest 1.51x"),
        (errors(float("nan"), 1.0), errors(1.0, 1.0), "largest nan"),
    ],
)
def test_a_line_holds_within_its_limits_only(
    ours: Errors, theirs: Errors | None, fault: str | None
) -> None:
    found = verdict(ours, theirs)
    assert found is None if fault is None else found is not None and fault in found


def test_the_worst_of_each_kind_is_told_by_family_and_of_all() -> None:
    half = Line(
        "classify", "bert", "pairs", "cuda:0", "float16", 9, 0.1, 1.0, 3.0, 2.0, 2.0, "largest"
    )
    single = Line("classify", "bert", "pairs", "cpu", "float32", 9, 2e-6, 1.0, 1.0)
    other = replace(half, family="mpnet", rms=3.0, largest=1.0, fault=None)
    worst = worst_of([half, single, replace(single, relative=None, fault="broken"), other])
    assert worst["bert"]["cuda_float16"].rms_ratio == 0.5
    assert worst["all"]["cuda_float16"].rms_ratio == 1.5
    assert worst["all"]["cuda_float16"].largest_ratio == 1.5
    assert (worst["all"]["cuda_float16"].lines, worst["all"]["cuda_float16"].hold) == (2, 1)
    assert worst["bert"]["cpu_float32"].relative_millionths == pytest.approx(2.0)
    assert worst["bert"]["cpu_float32"].hold == 1


@pytest.mark.long
def test_the_command_measures_writes_and_sees_planted_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "fidelity.json"
    flags = {"families": "mpnet", "problems": "regression", "device": "cpu", "texts": "40"}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    code = main(
        ["fidelity", *words, "--threads", "1", "--reviews", str(REVIEWS), "--json", str(target)]
    )
    printed = capsys.readouterr().out
    result: dict[str, Any] = json.loads(target.read_bytes())
    single, half = result["lines"]
    assert single["fault"] is None, single["fault"]
    assert 0 < single["relative"] < 1e-5 < half["relative"]
    # Forty numbers say little about ratios: the half type's verdict is that of the long run.
    assert half["their_rms"] > 0
    assert [each["name"] for each in result["planted"]] == [fault.name for fault in FAULTS]
    assert all(each["fault"] for each in result["planted"])
    assert "6 of 6 planted faults are seen" in printed
    assert code == (0 if half["fault"] is None else 1)


@pytest.mark.parametrize("problem", ["rerank", "token labels", "mean embeddings", "sparse"])
def test_every_task_is_measured(problem: str, tmp_path: Path) -> None:
    (subject,) = subjects(["bert"], [problem])
    texts = [f"{text} {number}" for number, text in enumerate(tiny_checkpoints.TEXTS)]
    single, half = measuring._lines(measuring.Bench(texts, tmp_path, "cpu", 1), subject)
    assert (single.task, single.fault) == (subject.problem.task, None)
    assert single.relative is not None
    assert 0 < single.relative < 1e-5
    assert half.relative is not None
    assert 1e-5 < half.relative < 0.1


def test_an_unseen_fault_and_a_line_that_broke_down_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "FAULTS", (replace(FAULTS[0], folder=None),))

    def broken(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(measuring.Bench, "folder", broken)
    chosen = subjects(["bert"], ["single label"])
    lines = measuring._lines(measuring.Bench(["a", "b"], tmp_path, "cpu", 1), chosen[0])
    assert [line.fault for line in lines] == ["RuntimeError: no such luck"] * 2

    monkeypatch.undo()
    monkeypatch.setattr(measuring, "FAULTS", (replace(FAULTS[0], folder=None),))
    _, planted = measuring.measure([], 30, REVIEWS, "cpu", 1, 1)
    assert [(each.name, each.fault) for each in planted] == [(FAULTS[0].name, None)]
    result = Fidelity(1, None, 30, "", 1.0, {}, lines, planted, {})  # type: ignore[arg-type]
    assert len(result.failures) == 3
    assert result.failures[-1] == f"planted on cpu and not seen: {FAULTS[0].name}"


@pytest.mark.gpu
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_gpu_keeps_the_limits(family: str) -> None:
    chosen = subjects([family], ["single label", "pairs"])
    lines, planted = measuring.measure(chosen, 1024, REVIEWS, "cuda:0", 1, 2)
    assert [line.fault for line in lines] == [None] * len(lines)
    assert all(each.fault for each in planted)
    assert len(lines) == 6


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("problems", "texts"),
    [(CLASSIFICATION, "1024"), (OTHER_TASKS, "256")],
    ids=["classify", "other"],
)
def test_every_line_holds_on_the_cpu(
    problems: list[str], texts: str, request: pytest.FixtureRequest
) -> None:
    """Other tasks have more numbers a text, but for reranking."""
    arguments = ["fidelity", "--device", "cpu", "--reviews", str(REVIEWS), "--texts", texts]
    if request.config.getoption("--slice"):
        arguments += ["--families", "mpnet"]
        problems = problems[-1:]
    assert main([*arguments, "--problems", ",".join(problems)]) == 0
