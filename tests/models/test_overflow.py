"""Numbers that are too large for a type, and numbers that are none: neither is ever an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packhorse import Encoder
from packhorse.errors import DeviceError, NonFiniteOutputError
from tests import tiny_checkpoints
from tests.models.test_fidelity import texts

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

INPUTS = texts(100)


def scaled(folder: Path, factor: float, **options: Any) -> Path:
    """A model in whose feed-forward layers numbers are ``factor`` times larger, then smaller."""

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name in tensors:
            if "intermediate.dense" in name:
                tensors[name] = tensors[name] * factor
            elif ".output.dense.weight" in name and "attention" not in name:
                tensors[name] = tensors[name] / factor
        return tensors

    made = tiny_checkpoints.make_bert(folder, hidden_act="relu", **options)
    return tiny_checkpoints.edit_tensors(made, edit)


def largest(folder: Path) -> float:
    """The largest number between the layers of the reference."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    seen = [0.0]
    for layer in model.encoder.layer:
        layer.intermediate.register_forward_hook(
            lambda _m, _i, out: seen.append(float(out.abs().max()))
        )
    with torch.no_grad():
        model(**tokenizer(INPUTS[30], return_tensors="pt"))
    return max(seen)


@pytest.mark.case(71)
@pytest.mark.parametrize("device", DEVICES)
def test_what_overflows_float16_is_answered_by_auto_as_by_float32(
    device: str, tmp_path: Path
) -> None:
    folder = scaled(tmp_path, 1e5)
    assert 65504 < largest(folder) < 1e38
    vectors = {}
    dtypes = ["auto", "float32", "bfloat16", *(["float16"] if device == "cuda" else [])]
    for dtype in dtypes:
        with Encoder(folder, device=device, dtype=dtype, task="embed") as encoder:
            vectors[dtype] = encoder.embed(INPUTS, normalize=True)
        assert np.isfinite(vectors[dtype]).all(), dtype
    cosines = (vectors["auto"] * vectors["float32"]).sum(axis=1)
    assert cosines.min() >= 0.999


@pytest.mark.case(71)
def test_a_cpu_is_not_asked_for_a_type_that_overflows() -> None:
    with pytest.raises(DeviceError, match=r"float16 is for GPUs: .* overflows"):
        Encoder(tiny_checkpoints.shared(), device="cpu", dtype="float16")


@pytest.mark.case(71, 73)
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_what_overflows_every_type_is_an_error_and_no_number(dtype: str, tmp_path: Path) -> None:
    """Two layers: the first is multiplied beyond float32's range, whatever the text."""

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name in tensors:
            if "layer.1.intermediate.dense" in name or "layer.1.output.dense.weight" in name:
                tensors[name] = tensors[name] * 1e25
        return tensors

    folder = tiny_checkpoints.edit_tensors(tiny_checkpoints.make_bert(tmp_path), edit)
    with Encoder(folder, device="cpu", dtype=dtype) as encoder:
        for inputs in (["good"], ["good", "a film", ""]):
            with pytest.raises(NonFiniteOutputError, match="input 0"):
                encoder.predict_proba(inputs)
            with pytest.raises(NonFiniteOutputError, match="input 0"):
                encoder.classify(inputs, raw_scores=True)


@pytest.mark.case(73)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("task", ["classify", "embed", "token_classify", "rerank"])
def test_a_word_without_a_number_fails_alone_in_every_task(
    task: str, bad: float, tmp_path: Path
) -> None:
    head = "ForTokenClassification" if task == "token_classify" else "ForSequenceClassification"
    labels = 1 if task == "rerank" else 3
    folder = tiny_checkpoints.make_bert(tmp_path, head=head, num_labels=labels)
    good = ["good film", "the sea"]
    with Encoder(folder, device="cpu", dtype="float32", task=task) as encoder:
        number = int(encoder.encode(["war"]).input_ids[1])
        expected = asked(encoder, good)

    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["bert.embeddings.word_embeddings.weight"][number, 0] = bad
        return tensors

    tiny_checkpoints.edit_tensors(folder, poison)
    with Encoder(folder, device="cpu", dtype="float32", task=task) as encoder:
        with pytest.raises(NonFiniteOutputError, match="input 1"):
            asked(encoder, [good[0], "a war", good[1]])
        assert asked(encoder, good) == pytest.approx(expected, abs=1e-5)


def asked(encoder: Encoder, given: list[str]) -> list[float]:
    """Whatever the model does, as numbers."""
    if encoder.task == "embed":
        return [float(x) for x in encoder.embed(given).ravel()]
    if encoder.task == "token_classify":
        rows = encoder.token_classify(given, ignore_labels=())
        return [one.score for row in rows for one in row]
    if encoder.task == "rerank":
        return [one.score for one in encoder.rerank("question", given)]
    return [float(x) for x in encoder.predict_proba(given).ravel()]
