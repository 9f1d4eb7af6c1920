"""One short text, whose copies are in its graph, against the same text on the way of all others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.engine.load import load_runner
from packhorse.engine.solo_graphs import MOST_TOKENS
from packhorse.request import Sequences, bounds_of
from tests import tiny_checkpoints
from tests.gpu.test_cuda_engine import config_of
from tests.models.test_sentence import make, pooling

pytestmark = pytest.mark.gpu

MODELS: dict[str, dict[str, Any]] = {
    "classify": {"num_labels": 3},
    "token_classify": {"head": "ForTokenClassification", "num_labels": 5},
    "embed": {"head": "Model", "num_labels": None},
}


def one_text(source: random.Random, vocab: int, tokens: int) -> Sequences:
    """One in two is a pair."""
    ids = np.random.default_rng(source.randrange(10**9)).integers(5, vocab, tokens)
    lengths = np.array([tokens], np.int32)
    starts = np.array([source.randint(1, tokens)], np.int32) if source.random() < 0.5 else None
    return Sequences(ids.astype(np.int32), bounds_of(lengths), np.zeros(1, np.bool_), starts)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_text_alone_has_the_same_output_as_by_the_other_way(model: str, dtype: str) -> None:
    checkpoint = load_checkpoint(tiny_checkpoints.shared(**MODELS[model]))
    runner, _ = load_runner(config_of(dtype), checkpoint, notify=False)
    source, vocab = random.Random(4), checkpoint.architecture.vocab_size
    longest = min(MOST_TOKENS, checkpoint.architecture.max_positions)
    solo = runner._solo
    assert solo is not None
    for tokens in [*range(1, longest + 1), *(source.randint(1, longest) for _ in range(100))]:
        batch = one_text(source, vocab, tokens)
        assert solo.takes(batch)
        alone = runner.launch(batch).output()
        runner._solo = None
        usual = runner.launch(batch).output()
        runner._solo = solo
        assert np.array_equal(alone.values, usual.values)
        assert np.array_equal(alone.codes, usual.codes)
        assert (alone.row_counts is None) == (usual.row_counts is None)
    runner.close()


def test_a_second_text_takes_the_other_way_while_the_first_is_not_collected() -> None:
    checkpoint = load_checkpoint(tiny_checkpoints.shared(num_labels=3))
    runner, _ = load_runner(config_of("float16"), checkpoint, notify=False)
    source, vocab = random.Random(5), checkpoint.architecture.vocab_size
    for _ in range(200):
        batches = [one_text(source, vocab, source.randint(1, 60)) for _ in range(2)]
        expected = [runner.launch(batch).output().values for batch in batches]
        first, second = (runner.launch(batch) for batch in batches)
        assert first._slot is not second._slot
        assert np.array_equal(second.output().values, expected[1])
        assert np.array_equal(first.output().values, expected[0])
    runner.close()


def test_vectors_are_cut_where_the_folder_says_so(tmp_path: Path) -> None:
    modules = [pooling("mean_tokens")]
    cut = make(tmp_path / "m", modules, config_sentence_transformers={"truncate_dim": 9})
    inputs = ["a good film", "so much story", "x"]
    with (
        Encoder(cut, device="cpu", dtype="float32") as cpu,
        Encoder(cut, device="cuda", dtype="float32") as gpu,
    ):
        expected = cpu.embed(inputs)
        assert expected.shape == (3, 9)
        assert np.abs(gpu.embed(inputs) - expected).max() < 1e-5
        assert np.abs(gpu.embed(inputs[:1]) - expected[:1]).max() < 1e-5
