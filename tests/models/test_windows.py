"""Long texts in windows: their rows are the mean of what the windows give by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse import AsyncEncoder, Encoder, loaded
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import ValidationError
from packhorse.request import Float32Array
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tokenizing.windows import Windows
from tests import tiny_checkpoints
from tests.models.test_fidelity import texts
from tests.models.test_lengths import text_of
from tests.models.test_sentence import pooling
from tests.unit.test_app import Rig, rig

LIMIT, STRIDE = 128, 17
INPUTS = [*texts(5), "", text_of(LIMIT), text_of(LIMIT + 1), text_of(300), *texts(5)]


def windows_of(tokenizer: Tokenizer, text: str, stride: int) -> list[list[int]]:
    """Ids of each window, cut by hand: [CLS], so many as there is room for, [SEP]."""
    whole = tokenizer.library.encode(text, add_special_tokens=False).ids
    room = LIMIT - 2
    found, start = [], 0
    while True:
        found.append([2, *whole[start : start + room], 3])
        if start + room >= len(whole):
            return found
        start += room - stride


def by_hand(
    encoder: Encoder, rows_of: Callable[[Float32Array], Float32Array], stride: int = STRIDE
) -> np.ndarray:
    tokenizer = encoder._loaded.tokenizer
    expected = []
    for text in INPUTS:
        windows = windows_of(tokenizer, text, stride)
        rows = rows_of(encoder.logits(tokenizer.from_ids(windows)))
        expected.append(np.average(rows, axis=0, weights=[len(window) for window in windows]))
    return np.array(expected)


def softmax(logits: Float32Array) -> Float32Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("stride", [0, STRIDE, LIMIT - 3])
def test_scores_are_the_mean_of_the_windows_by_tokens(stride: int) -> None:
    folder = tiny_checkpoints.shared(num_labels=3)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        expected = by_hand(encoder, softmax, stride)
        logits = by_hand(encoder, lambda rows: rows, stride)
        got = encoder.predict_proba(INPUTS, stride=stride)
        raw = encoder.classify(INPUTS, raw_scores=True, stride=stride)
        cut = encoder.predict_proba(INPUTS)
        labels = list(encoder.labels)
    assert np.abs(got - expected).max() < 1e-6
    for one, row in zip(raw, logits, strict=True):
        assert {each.label: each.score for each in one} == pytest.approx(
            dict(zip(labels, row, strict=True)), rel=1e-4, abs=1e-5
        )
    fits = [len(text.split()) <= LIMIT - 2 for text in INPUTS]
    assert np.abs(got - cut)[fits].max() < 1e-6
    assert np.abs(got - cut).max() > 1e-3  # without windows the long ones lose their ends


@pytest.mark.parametrize("normalizes", [False, True])
def test_vectors_are_the_mean_of_the_windows_by_tokens_then_normalized(
    normalizes: bool, tmp_path: Path
) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path / "m", head="Model", num_labels=None)
    modules = [pooling("mean_tokens"), *([{"type": "Normalize"}] if normalizes else [])]
    tiny_checkpoints.add_modules(folder, *modules)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        mean = by_hand(encoder, lambda rows: rows)
        unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        got = encoder.embed(INPUTS, stride=STRIDE)
        assert np.abs(got - (unit if normalizes else mean)).max() < 1e-5
        assert np.abs(encoder.embed(INPUTS, stride=STRIDE, normalize=True) - unit).max() < 1e-5
        assert encoder.embed([], stride=STRIDE).shape == (0, 32)


def test_more_texts_than_one_piece_have_their_own_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library tokenises many texts in pieces, and the engine runs them in batches."""
    monkeypatch.setattr(loaded, "FIRST_TEXTS", 3)
    many = INPUTS * 3
    with Encoder(tiny_checkpoints.shared(), device="cpu", dtype="float32") as encoder:
        few = encoder.predict_proba(INPUTS, stride=STRIDE)
        got = encoder.predict_proba(many, stride=STRIDE)
    assert np.abs(got - np.concatenate([few] * 3)).max() < 1e-5


def test_windows_that_there_cannot_be_are_refused() -> None:
    with Encoder(tiny_checkpoints.shared(), device="cpu", dtype="float32") as encoder:
        for stride in (-1, LIMIT - 2):
            with pytest.raises(ValidationError, match=f"share 0 to {LIMIT - 3}"):
                encoder.classify(["a"], stride=stride)
        with pytest.raises(ValidationError, match=r"inputs\[1\] must be a text, not a tuple"):
            encoder.classify(["a", ("a", "b")], stride=1)


def test_the_asynchronous_encoder_reads_windows_too() -> None:
    async def main() -> np.ndarray:
        async with AsyncEncoder(tiny_checkpoints.shared(), device="cpu", dtype="float32") as each:
            return await each.predict_proba(INPUTS, stride=STRIDE)

    with Encoder(tiny_checkpoints.shared(), device="cpu", dtype="float32") as encoder:
        expected = encoder.predict_proba(INPUTS, stride=STRIDE)
    assert np.abs(asyncio.run(main()) - expected).max() < 1e-6


def run(folder: Path, check: Callable[[Rig], Any], **settings: Any) -> None:
    async def main() -> None:
        async with rig(folder, **settings) as r:
            await check(r)

    asyncio.run(main())


def mean_length(tokenizer: Tokenizer, text: str, stride: int) -> float:
    """What a fake engine's first number, a sequence's length, comes to."""
    lengths = np.array([len(window) for window in windows_of(tokenizer, text, stride)])
    return float((lengths * lengths).sum() / lengths.sum())


def test_a_client_asks_for_windows_of_texts_that_are_classified() -> None:
    async def check(r: Rig) -> None:
        inputs = [[text] for text in INPUTS]
        answer = await r.predict(inputs, raw_scores=True, stride=STRIDE)
        assert answer.status_code == 200
        for text, row in zip(INPUTS, answer.json(), strict=True):
            scores = [one["score"] for one in row if one["label"] == "LABEL_0"]
            assert scores == pytest.approx([mean_length(r.service.tokenizer, text, STRIDE)])
        one = await r.predict(INPUTS[-6], stride=STRIDE)
        assert {each["label"] for each in one.json()} == {"LABEL_0", "LABEL_1"}
        assert one.headers["x-truncated"] == "0"
        for wrong in (-1, LIMIT, "1", 1.5):
            assert (await r.predict(["a"], stride=wrong)).status_code == 422
        pair = await r.predict(["a", "b"], stride=1)
        assert pair.status_code == 422
        many = await r.predict(text_of(5000), stride=LIMIT - 3)
        assert many.status_code == 422
        assert "--max-client-batch-size" in many.json()["error"]

    run(tiny_checkpoints.shared(), check, max_client_batch_size=100)


def test_a_client_asks_for_windows_of_texts_that_are_embedded() -> None:
    folder = tiny_checkpoints.shared("bert", head="Model", num_labels=None)

    async def check(r: Rig) -> None:
        body: dict[str, Any] = {"inputs": INPUTS, "normalize": False, "stride": STRIDE}
        answer = (await r.client.post("/embed", json=body)).json()
        expected = [mean_length(r.service.tokenizer, text, STRIDE) for text in INPUTS]
        assert [row[0] for row in answer] == pytest.approx(expected)
        listed = await r.client.post("/v1/embeddings", json={"input": INPUTS, "stride": STRIDE})
        assert len(listed.json()["data"]) == len(INPUTS)
        for path, wrong in (("/embed", {"inputs": [[2, 5, 3]]}), ("/embed_all", {"inputs": "a"})):
            refused = await r.client.post(path, json=wrong | {"stride": 1})
            assert refused.status_code == 422
            assert "stride" in refused.json()["error"]

    run(folder, check)


def test_the_mean_of_a_single_window_is_that_window_to_the_last_bit() -> None:
    tokenizer = Tokenizer.load(load_checkpoint(tiny_checkpoints.shared()))
    windows = Windows(tokenizer, STRIDE)
    windows.encode(["a good film", "bad"])
    rows = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    assert np.array_equal(windows.per_text(rows), rows)
