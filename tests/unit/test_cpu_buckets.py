"""A CPU's batches are padded to few shapes."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from packhorse.checkpoint import load_checkpoint
from packhorse.engine.cpu_buckets import sequences_bucket, tokens_bucket, with_tail
from packhorse.engine.cpu_runner import CpuRunner
from packhorse.models.backend import Layout
from packhorse.request import Sequences, bounds_of


def batch_of(lengths: list[int], explicit: bool = False) -> Sequences:
    sizes = np.array(lengths, np.int32)
    tokens = int(sizes.sum())
    return Sequences(
        input_ids=np.arange(100, 100 + tokens, dtype=np.int32),
        cu_seqlens=bounds_of(sizes),
        truncated=np.ones(len(sizes), np.bool_),
        segment_starts=sizes // 2 if explicit else None,
        position_ids=np.full(tokens, 7, np.int32) if explicit else None,
    )


def test_a_bucket_holds_what_is_asked_for_and_little_more() -> None:
    for count in range(1, 5000):
        tokens, sequences = tokens_bucket(count), sequences_bucket(count)
        assert count <= tokens <= max(count + 15, count * 17 // 16 + 31)
        assert count <= sequences < 2 * count
        assert tokens_bucket(tokens) == tokens
        assert sequences_bucket(sequences) == sequences


def test_few_shapes_occur_however_many_batches_there_are() -> None:
    random = np.random.default_rng(0)
    shapes = set()
    for _ in range(2000):
        lengths = random.integers(1, 60, random.integers(1, 100)).tolist()
        padded = with_tail(batch_of(lengths), 0, 0)
        shapes |= {("tokens", padded.num_tokens), ("sequences", len(padded))}
    assert len(shapes) < 90


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("lengths", [[1], [16], [5, 9, 17], [32] * 8, [3] * 17, [300] * 7])
def test_the_tail_stands_behind_and_changes_nothing_before(
    lengths: list[int], explicit: bool
) -> None:
    batch = batch_of(lengths, explicit)
    padded = with_tail(batch, 9, 2)
    count, tokens = len(batch), batch.num_tokens
    assert padded.cu_seqlens[: count + 1].tolist() == batch.cu_seqlens.tolist()
    assert padded.input_ids[:tokens].tolist() == batch.input_ids.tolist()
    assert (padded.input_ids[tokens:] == 9).all()
    assert (padded.lengths > 0).all()
    assert len(padded.input_ids) == padded.cu_seqlens[-1] == tokens_bucket(padded.num_tokens)
    assert len(padded) == len(padded.truncated) == sequences_bucket(len(padded))
    if explicit:
        assert padded.segment_starts is not None
        assert padded.position_ids is not None
        assert len(padded.segment_starts) == len(padded)
        assert (padded.segment_starts <= padded.lengths).all()
        assert (padded.position_ids[tokens:] == 2).all()


def test_what_fits_a_bucket_is_left_as_it_is() -> None:
    batch = batch_of([16, 16])
    assert with_tail(batch, 0, 0) is batch


class Counting:
    """A model whose row for a sequence is the number of its tokens."""

    class head:  # noqa: N801
        width = 1
        is_sparse = is_token_level = False

    def forward(self, input_ids: Tensor, layout: Layout, *, token_level: bool = False) -> Tensor:
        return layout.cu_seqlens.diff().float()[:, None]


@pytest.mark.parametrize("buckets", [True, False])
def test_a_runner_counts_the_tokens_that_it_adds(buckets: bool) -> None:
    architecture = load_checkpoint().architecture
    runner = CpuRunner(
        Counting(), architecture, threads=2, max_tokens=4096, max_sequences=64, buckets=buckets
    )
    try:
        for lengths in ([5], [100, 90, 33]):  # in one piece, and in two
            batch = batch_of(lengths)
            assert runner.launch(batch).output().values[:, 0].tolist() == lengths
    finally:
        runner.close()
    added = tokens_bucket(5) - 5 + tokens_bucket(33 + 90) - 33 - 90 + tokens_bucket(100) - 100
    assert runner.padding_tokens == (added if buckets else 0)
