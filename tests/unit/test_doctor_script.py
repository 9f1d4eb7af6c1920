"""`packhorse doctor --script`: each planted fault is named, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.tools.bench.random_checkpoint import Shape, write
from packhorse.tools.doctor import examinee
from packhorse.tools.doctor.diagnosis import diagnosis
from packhorse.tools.doctor.findings import Examination, gain
from packhorse.tools.doctor.sample_texts import our_texts, sample_texts
from packhorse.tools.doctor.script import AUTO, Place, Program, load, place_of, takes_one_text

SCRIPTS = Path(__file__).parents[1] / "doctor_scripts"


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Threads, paths and modules as they were."""
    threads, path, modules = torch.get_num_threads(), list(sys.path), set(sys.modules)
    yield
    torch.set_num_threads(threads)
    sys.path[:] = path
    for name in {path.stem for path in SCRIPTS.glob("*.py")} - modules:
        sys.modules.pop(name, None)


def examined(script: str) -> Examination:
    place = Place(SCRIPTS / script, "predict")
    return examinee.examine(place, Program.of(load(place), AUTO), our_texts(), seconds=0.1)


def set_hardware(monkeypatch: pytest.MonkeyPatch, features: set[str], cpus: int = 64) -> None:
    """More cores than threads, unless told."""
    hardware = Hardware(cpus=cpus, cpu_features=frozenset(features))
    monkeypatch.setattr(examinee, "detect", lambda: hardware)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("healthy.py", None),
        pytest.param("single_texts.py", "single-text-batches", marks=pytest.mark.long),
        ("fixed_padding.py", "fixed-padding"),
        ("tensor_leak.py", "memory-growth"),
        pytest.param("object_leak.py", "memory-growth", marks=pytest.mark.long),
        pytest.param("slow_tokenizer.py", "slow-tokenizer", marks=pytest.mark.long),
    ],
)
def test_a_planted_fault_is_named_and_no_other(
    script: str, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hardware(monkeypatch, set())
    found = examined(script)
    assert [each.id for each in found.findings] == ([fault] if fault else []), diagnosis(found)
    assert found.texts_per_second > 0
    assert not found.not_examined
    for each in found.findings:
        assert each.figure > 0
        assert each.measured
        assert each.change


def test_float32_is_a_fault_only_where_the_chip_has_a_faster_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_hardware(monkeypatch, {"avx512_bf16"})
    found = examined("healthy.py")
    assert [each.id for each in found.findings] == ["fp32"]
    assert "bfloat16" in found.findings[0].change


@pytest.mark.long
def test_more_threads_than_cores_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = examinee.detect().cpus
    set_hardware(monkeypatch, set(), cpus=cores)
    found = examined("many_threads.py")
    assert [each.id for each in found.findings] == ["threads"]
    assert found.findings[0].figure == 4
    assert torch.get_num_threads() == 4 * cores, "what the program had is not changed"


def test_a_growing_tensor_is_named_with_its_size_and_where_it_was_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_hardware(monkeypatch, set())
    (leak,) = examined("tensor_leak.py").findings
    assert leak.figure == 4 * 2 * 4, "bytes of 4 rows of 2 logits in float32"
    assert "that are free are used up after" in leak.measured
    assert leak.costs == 0, "until then"
    assert leak.where[0] == "allocated by aten.cat.default"
    assert leak.where[1] == "tensor_leak.py:12 in predict"


@pytest.mark.long
def test_a_cost_is_what_the_program_gains_without_the_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_hardware(monkeypatch, set())
    found = examined("fixed_padding.py")
    (padding,) = found.findings
    assert padding.costs > 0.5 * found.texts_per_second, "four fifths of the tokens are padding"
    assert padding.where == ["fixed_padding.py:11 in <listcomp>", "fixed_padding.py:11 in predict"]


@pytest.mark.long
def test_the_naive_program_has_the_faults_that_the_guide_teaches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    write(Shape(2, 128, 4, 512), tmp_path / "model")
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    set_hardware(monkeypatch, {"avx512_bf16"})
    found = [f.id for f in examined("naive.py").findings]
    assert found == ["single-text-batches", "fixed-padding", "fp32"]


@pytest.mark.long
def test_this_engine_has_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, set())
    found = examined("engine.py")
    sys.modules["engine"].encoder.close()
    assert not found.findings, diagnosis(found)
    assert "no torch.nn.Module was called" in found.not_examined[0]


@pytest.mark.long
def test_a_program_of_its_own_is_examined_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = SCRIPTS / "single_texts.py"
    command = [sys.executable, "-m", "packhorse.cli", "doctor", "--json", "--seconds", "0.1"]
    done = subprocess.run(
        [*command, "--script", f"{script}:predict"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seen"]["called_with"] == "text"
    assert report["findings"][0]["id"] == "single-text-batches"


def test_a_script_that_fails_is_told_with_its_line_and_nothing_of_its_texts(
    tmp_path: Path,
) -> None:
    place = SCRIPTS / "raises.py"
    report = examinee._report(
        examinee.Assignment(str(place), "predict", AUTO, ["a secret"] * 4, 0.1, "")
    )
    assert report.fault == f"{place}:predict raised KeyError (raises.py:5)"
    assert not report.is_setup
    nowhere = examinee._report(examinee.Assignment(str(place), "nothing", AUTO, ["a"] * 4, 0.1, ""))
    assert nowhere.is_setup


@pytest.mark.parametrize("text", ["predict.py", "predict:predict", "gone.py:predict", "a.py:1x"])
def test_what_is_no_callable_of_a_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--script"):
        place_of(text)


def test_a_first_parameter_says_whether_one_text_is_wanted() -> None:
    def annotated(x: str) -> None: ...
    def listed(text: list[str]) -> None: ...

    assert takes_one_text(annotated)
    assert not takes_one_text(listed)
    assert takes_one_text(lambda text: None)
    assert not takes_one_text(lambda texts: None)


def test_texts_are_the_users_own_lines_spread_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"text {i}\n\n" for i in range(640)))
    assert sample_texts(file) == [f"text {10 * i}" for i in range(64)]
    file.write_text("one\n")
    with pytest.raises(ConfigError, match="has 1 texts"):
        sample_texts(file)
    assert len(set(our_texts())) == 64


def test_a_gain_is_bounded_by_the_time_there_is() -> None:
    assert gain(10, 0.05) == pytest.approx(10)
    assert gain(10, -1) == 0
    assert gain(10, 5) == pytest.approx(190)
    assert gain(10, 5, most=0.5) == pytest.approx(10), "half of the time, whatever was measured"
    assert gain(10, 0.02, most=0.5) == pytest.approx(2.5)
