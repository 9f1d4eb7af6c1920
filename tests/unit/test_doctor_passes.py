"""What doctor sees of a program: its forward passes, however a model is called, and tokenizing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.tools.doctor import examinee, model_faults, replay
from packhorse.tools.doctor.passes import ForwardPass, Recorder, lines_of, size_of
from packhorse.tools.doctor.sampler import is_tokenizing
from packhorse.tools.doctor.script import AUTO, LIST, Place, Program

PLAIN = Hardware(cpus=64, cpu_features=frozenset())


class Model(nn.Module):
    """Ids (rows, width) and their mask to (rows, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(input_ids).mean(1))
        return out


class InDictionaries(nn.Module):
    """As a module of sentence-transformers: a dictionary in, the same with one entry more out."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        features["logits"] = self.model(features["input_ids"], features["attention_mask"])
        return features


class WithTokenizer(nn.Module):
    """A module that takes strings."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, texts: list[str]) -> Tensor:
        out: Tensor = self.model(**padded(len(texts), 3))
        return out


def padded(rows: int, longest: int, width: int = 16) -> dict[str, Tensor]:
    """Ids and mask: ``longest`` tokens in each row."""
    mask = (torch.arange(width) < longest).long().repeat(rows, 1)
    return {"input_ids": mask * 7, "attention_mask": mask}


def recorded(*calls: tuple[nn.Module, tuple[Any, ...]]) -> list[ForwardPass]:
    recorder = Recorder(Path(__file__).parent)
    with torch.inference_mode(), recorder.recording():
        for module, arguments in calls:
            module(*arguments)
    return recorder.passes


def test_a_model_that_is_given_a_dictionary_is_seen_with_its_padding() -> None:
    module = InDictionaries()
    (one,) = recorded((module, (padded(4, 3),)))
    assert one.module is module
    assert (one.rows, one.width, one.longest, one.real) == (4, 16, 3, 12)
    assert one.where[0].startswith("test_doctor_passes.py:")
    skipped: list[str] = []
    found = model_faults.find([one, one], 8, 100.0, PLAIN, skipped)
    assert [each.id for each in found] == ["fixed-padding"]
    assert not skipped


def test_passes_of_different_width_are_not_padded_to_a_fixed_one() -> None:
    model = InDictionaries()
    same = recorded(*[(model, (padded(4, 4),)) for _ in range(2)])
    assert model_faults.fixed_waste(same) == 0.75
    other = recorded((model, (padded(4, 4, width=12),)))
    assert model_faults.fixed_waste([*same, *other]) == 0
    assert model_faults.fixed_waste([]) == 0


def test_a_cost_is_no_more_than_the_share_of_the_time_that_goes_without_the_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passes are run again at a moment when all is ten times as slow as it was."""
    (one,) = recorded((InDictionaries(), (padded(4, 4),)))
    times = iter([10.0, 2.5])
    monkeypatch.setattr(replay, "seconds", lambda passes: next(times))
    (padding,) = model_faults.find([one], 4, texts_per_second=4.0, hardware=PLAIN, skipped=[])
    assert padding.costs == pytest.approx(12.0), "4 texts/s would be four times as many"


def test_lines_are_those_of_the_scripts_folder_wherever_the_script_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    place = Place(Path("script.py"), "predict")
    monkeypatch.chdir("/")
    assert place.folder == tmp_path.resolve()
    assert lines_of(sys._getframe(), Path(__file__).parents[1])[0].startswith(
        "test_doctor_passes.py:"
    )
    assert not lines_of(sys._getframe(), place.folder)
    beside = Path(__file__).parents[1] / "un"  # as tests/unit begins, and another folder
    assert not lines_of(sys._getframe(), beside)
    made: list[FrameType] = []
    program = Program(lambda texts: made.append(sys._getframe()), LIST)
    program([])
    assert not any("script.py" in line for line in lines_of(made[0], Path("/")))


def test_what_a_pass_writes_into_its_dictionary_is_not_there_when_it_is_run_again() -> None:
    (one,) = recorded((InDictionaries(), (padded(2, 5),)))
    first = replay.run(one)
    assert "logits" in first
    assert list(one.args[0]) == ["input_ids", "attention_mask"]
    (trimmed,) = replay.trimmed([one])
    assert trimmed.args[0]["input_ids"].shape == (2, 5)
    assert replay.together([one, one]).pop().args[0]["input_ids"].shape == (4, 16)


def test_a_module_that_is_given_strings_is_looked_into() -> None:
    module = WithTokenizer()
    (one,) = recorded((module, (["a", "b"],)))
    assert one.module is module.model
    assert one.rows == 2


def test_inputs_are_kept_of_every_module_however_many_small_ones_come_before() -> None:
    small = [(nn.Linear(4, 4), (torch.zeros(1, 4),)) for _ in range(40)]
    model = Model()
    passes = recorded(*small, *[(model, tuple(padded(4, 3).values())) for _ in range(20)])
    assert [one.module for one in passes] == [model] * 20
    assert sum(bool(one.args) for one in passes) == 16


def test_a_quantized_model_is_not_taken_for_float32() -> None:
    class Packed(nn.Module):
        """What torch.ao.quantization.quantize_dynamic makes of a dense layer."""

        in_features, out_features = 8, 64

        def forward(self, x: Tensor) -> Tensor:
            return x

    Packed.__module__ = "torch.ao.nn.quantized.dynamic.modules.linear"
    fast = nn.Sequential(nn.Embedding(500, 8), Packed())
    assert size_of(fast) == 500 * 8 + 8 * 64
    (one,) = recorded((fast, (torch.zeros(2, 3, dtype=torch.long),)))
    assert model_faults.type_of([one]) == torch.qint8
    half = Hardware(cpus=64, cpu_features=frozenset({"avx512_bf16"}))
    assert not model_faults.find([one], 2, 100.0, half, [])


def test_a_fault_is_named_where_its_cost_cannot_be_measured() -> None:
    class OneRow(Model):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            if len(input_ids) > 1:
                raise RuntimeError("one at a time")
            return super().forward(input_ids, attention_mask)

    passes = recorded(*[(OneRow(), tuple(padded(1, 16).values())) for _ in range(3)])
    skipped: list[str] = []
    (single,) = model_faults.find(passes, 3, 100.0, PLAIN, skipped)
    assert (single.id, single.figure, single.costs) == ("single-text-batches", 1, 0)
    assert skipped == ["the cost of single-text-batches: RuntimeError when it was run without"]


def test_a_model_that_is_called_by_what_tokenizes_is_not_tokenizing() -> None:
    seen: list[bool] = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(is_tokenizing(frame()))
            return x

    class Tokenizes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            tokenize()
            return x

    def frame() -> FrameType:
        return sys._getframe(1)

    def tokenize() -> None:
        seen.append(is_tokenizing(frame()))

    def tokenize_and_predict(module: nn.Module) -> None:
        module(torch.zeros(1))

    tokenize_and_predict(Looks())
    tokenize_and_predict(Tokenizes())
    assert seen == [False, True]


def test_answers_that_are_made_when_asked_for_are_asked_for() -> None:
    made = []

    def predict(texts: list[str]) -> Iterator[str]:
        for text in texts:
            made.append(text)
            yield text

    Program.of(predict, AUTO)(["a", "b"])
    assert made == ["a", "b"]


def test_an_asynchronous_function_is_refused_with_what_to_do() -> None:
    async def predict(texts: list[str]) -> None: ...

    with pytest.raises(ConfigError, match="plain function that runs it"):
        Program.of(predict, LIST)


def test_an_interrupted_examination_ends_without_a_word_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "stopped.py"
    script.write_text("def predict(texts):\n    raise KeyboardInterrupt\n")
    with pytest.raises(SystemExit, match="130"):
        examinee._report(examinee.Assignment(str(script), "predict", AUTO, ["a"] * 4, 0.1, ""))
    sys.path.remove(str(tmp_path.resolve()))
    assert not capsys.readouterr().err


def test_a_script_that_python_cannot_read_is_told_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import json\ndef predict(texts)\n    return 1\n")
    report = examinee._report(examinee.Assignment(str(script), "predict", AUTO, ["a"] * 4, 0.1, ""))
    sys.path.remove(str(tmp_path.resolve()))
    assert report.fault == f"{script}:predict raised SyntaxError (broken.py:2)"
