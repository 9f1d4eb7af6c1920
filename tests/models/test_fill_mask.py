"""Masks are filled as Transformers' pipeline fills them, of every family and in every option."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from packhorse import AsyncEncoder, Encoder, verbs
from packhorse.checkpoint import load_checkpoint
from packhorse.engine import sparse_output
from packhorse.errors import CheckpointError, NonFiniteOutputError, TaskError, ValidationError
from packhorse.families import FAMILIES
from packhorse.tasks import Task
from packhorse.tokenizing.masks import Fills, first_masks
from tests import tiny_checkpoints
from tests.models.test_families import VARIANTS

TEXTS = [
    "a {} film",
    "{}",
    "The story was {}, and the sound was bad!",
    "日本語 and {} in one {} line; it isn't {} ?",
    "Wasn't it {} ! [PAD] <pad> [CLS]",
]


def shared(family: str = "bert", **config: Any) -> Path:
    return tiny_checkpoints.shared(family, head="ForMaskedLM", num_labels=None, **config)


def make(folder: Path, family: str = "bert", **config: Any) -> Path:
    return tiny_checkpoints.make(folder, family, head="ForMaskedLM", num_labels=None, **config)


def encoder_of(folder: Path, **options: Any) -> Encoder:
    return Encoder(folder, device="cpu", **({"dtype": "float32", "task": "fill_mask"} | options))


def pipeline_of(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.pipeline("fill-mask", model=str(folder), dtype=torch.float32, device=-1)


def inputs_of(pipe: Any) -> list[str]:
    return [text.replace("{}", pipe.tokenizer.mask_token) for text in TEXTS]


def assert_equal(got: Fills, expected: Any) -> None:
    """The pipeline has a list of masks only where there are several."""
    expected = [expected] if isinstance(expected[0], dict) else expected
    assert len(got) == len(expected)
    for fills, wanted in zip(got, expected, strict=True):
        assert [fill.score for fill in fills] == pytest.approx(
            [one["score"] for one in wanted], rel=1e-4, abs=1e-7
        )
        for name in ("token", "token_str", "sequence"):
            assert [getattr(fill, name) for fill in fills] == [one[name] for one in wanted], name


@pytest.mark.parametrize("family", list(FAMILIES))
def test_fills_are_those_of_the_pipeline(family: str) -> None:
    options = next(options for name, options in VARIANTS.values() if name == family)
    folder = shared(family, **options)
    pipe = pipeline_of(folder)
    inputs = inputs_of(pipe)
    with encoder_of(folder) as encoder:
        assert encoder.task == "fill_mask"
        found = encoder.fill_mask(inputs)
        few = encoder.fill_mask(inputs, top_k=1)
        named = encoder.fill_mask(inputs, targets=["good", "film", "good", "filmfilm"])
    assert [len(fills) for fills in found] == [1, 1, 1, 3, 1]
    for text, got, one, among in zip(inputs, found, few, named, strict=True):
        assert_equal(got, pipe(text))
        assert_equal(one, pipe(text, top_k=1))
        assert_equal(among, pipe(text, targets=["good", "film", "good", "filmfilm"]))


def test_spaces_are_cleaned_up_where_the_tokenizers_config_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    path = folder / "tokenizer_config.json"
    said = json.loads(path.read_text()) | {"clean_up_tokenization_spaces": True}
    path.write_text(json.dumps(said))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["decoder"]["cleanup"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    pipe = pipeline_of(folder)
    with encoder_of(folder) as encoder:
        for text in inputs_of(pipe):
            (got,) = encoder.fill_mask([text])
            assert_equal(got, pipe(text))


def test_deberta_has_its_head_under_other_names(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "deberta-v2", legacy=False)
    pipe = pipeline_of(folder)
    with encoder_of(folder) as encoder:
        for text in inputs_of(pipe):
            (got,) = encoder.fill_mask([text])
            assert_equal(got, pipe(text))
    tiny_checkpoints.edit_config(folder, without=["legacy"])
    with pytest.raises(CheckpointError, match='say "legacy": false in config'):
        encoder_of(folder)


def test_half_types_give_about_the_same() -> None:
    folder = shared("bert")
    text = "The story was [MASK]."
    with encoder_of(folder) as one, encoder_of(folder, dtype="bfloat16") as other:
        (exact,), (rough,) = one.fill_mask([text], top_k=500), other.fill_mask([text], top_k=500)
    scores = {fill.token: fill.score for fill in rough[0]}
    assert max(abs(fill.score - scores[fill.token]) for fill in exact[0]) < 0.02


def test_texts_of_any_number_and_length_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many masks at once as memory allows, by library and engine."""
    folder = shared("bert")
    width = load_checkpoint(folder, task=Task.FILL_MASK).width
    texts = ["a [MASK] film " * (1 + i % 3) + "word " * (7 * i % 50) for i in range(20)]
    with encoder_of(folder) as encoder:
        whole = encoder.fill_mask(texts, top_k=2)
        singly = [encoder.fill_mask([text], top_k=2)[0] for text in texts]
        assert encoder.fill_mask([]) == []
    monkeypatch.setattr(sparse_output, "MOST_BYTES", 3 * 4 * width)
    monkeypatch.setattr(verbs, "LOGIT_BYTES", 5 * 4 * width)
    with encoder_of(folder) as encoder:
        assert encoder.info["max_batch_requests"] == 3
        assert len(verbs.fill_mask_plans(encoder._loaded, texts, 2, None, True, "right")) > 5
        parts = encoder.fill_mask(texts, top_k=2)
    for found in (singly, parts):
        for one, other in zip(whole, found, strict=True):
            assert [[fill.token for fill in mask] for mask in one] == [
                [fill.token for fill in mask] for mask in other
            ]
            assert np.allclose(
                [[fill.score for fill in mask] for mask in one],
                [[fill.score for fill in mask] for mask in other],
                rtol=1e-4,
            )


def test_what_cannot_be_filled_is_refused_by_its_place(tmp_path: Path) -> None:
    folder = shared("bert")
    with encoder_of(folder) as encoder:
        with pytest.raises(ValidationError, match=r"inputs\[1\] has no mask: put \[MASK\]"):
            encoder.fill_mask(["a [MASK]", "a film", "b"])
        cut = r"inputs\[2\] has no mask, as far as it was not cut"
        with pytest.raises(ValidationError, match=cut):
            encoder.fill_mask(["[MASK]", "a [MASK]", "word " * 500 + "[MASK]"])
        (late,) = encoder.fill_mask(["word " * 500 + "[MASK]"], truncation_direction="left")
        assert len(late[0]) == 5
        with pytest.raises(ValidationError, match="set truncate to true"):
            encoder.fill_mask(["word " * 500 + "[MASK]"], truncate=False)
        with pytest.raises(ValidationError, match="top_k must be at least 1"):
            encoder.fill_mask(["a [MASK]"], top_k=0)
        for nothing in ([], "", [" "]):
            with pytest.raises(ValidationError, match="`targets` names no token"):
                encoder.fill_mask(["a [MASK]"], targets=nothing)
        with pytest.raises(TaskError, match="this model fills masks"):
            encoder.embed(["a"])
    with Encoder(folder, device="cpu") as encoder:
        assert encoder.task == "embed"
        with pytest.raises(TaskError, match="load one that fills masks"):
            encoder.fill_mask(["a [MASK]"])


def test_a_tokenizer_without_a_mask_and_a_checkpoint_without_the_head(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": "<blank>"}))
    with pytest.raises(CheckpointError, match=r"has no mask token \(<blank>\)"):
        encoder_of(folder)
    headless = tiny_checkpoints.shared("bert", head="Model", num_labels=None)
    with pytest.raises(CheckpointError, match=r"missing: cls.predictions"):
        encoder_of(headless)
    with pytest.raises(CheckpointError, match="pooling mean is not for this task"):
        encoder_of(folder, pooling="mean")


def test_a_logit_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    def broken(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bias = tensors["cls.predictions.bias"].clone()
        bias[7] = float("nan")
        return tensors | {"cls.predictions.bias": bias}

    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m"), broken)
    with encoder_of(folder) as encoder, pytest.raises(NonFiniteOutputError, match="input 0"):
        encoder.fill_mask(["a [MASK]"])


def test_the_asynchronous_encoder_gives_the_same() -> None:
    folder = shared("bert")
    text = "a [MASK] in [MASK]"

    async def fills() -> Any:
        options: Any = {"device": "cpu", "dtype": "float32", "task": "fill_mask"}
        async with AsyncEncoder(folder, **options) as encoder:
            return await encoder.fill_mask([text], 3, ["good", "film"])

    with encoder_of(folder) as encoder:
        assert asyncio.run(fills()) == encoder.fill_mask([text], 3, ["good", "film"])


def test_of_which_text_a_sequence_is_shows_in_ids_and_marks() -> None:
    folder = shared("bert")
    texts = ["[MASK]", "[MASK]", "a [MASK] b [MASK]", "a [MASK] b [MASK]", "b [MASK]"]
    with encoder_of(folder) as encoder:
        masked = encoder._loaded.masks.encode(texts)
    assert masked.counts.tolist() == [1, 1, 2, 2, 1]
    assert masked.text_of == [0, 1, 2, 2, 3, 3, 4]
    assert first_masks(masked.sequences).tolist() == [0, 1, 2, 4, 6]
