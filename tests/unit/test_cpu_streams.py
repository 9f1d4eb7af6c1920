"""A batch in pieces, and the threads that run them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from packhorse.engine.cpu_allocator import keep_freed_memory
from packhorse.engine.cpu_runner import FEWEST_TOKENS, MOST_TOKENS, pieces_of
from packhorse.engine.cpu_streams import MOST_STREAMS, Streams
from packhorse.request import Sequences, bounds_of


def batch_of(lengths: list[int]) -> Sequences:
    sizes = np.array(lengths, np.int32)
    return Sequences(
        input_ids=np.arange(sizes.sum(), dtype=np.int32),
        cu_seqlens=bounds_of(sizes),
        truncated=np.zeros(len(sizes), np.bool_),
    )


def test_pieces_are_the_batch_in_order_and_about_equal() -> None:
    batch = batch_of([4] * 30 + [16] * 60 + [100] * 20)
    for streams in (2, 3, 8):
        pieces = pieces_of(batch, streams)
        assert np.concatenate([piece.input_ids for piece in pieces]).tolist() == list(
            range(batch.num_tokens)
        )
        assert len(pieces) % streams == 0
        sizes = [piece.num_tokens for piece in pieces]
        assert max(sizes) - min(sizes) <= 2 * 100  # by less than the texts at its two ends


def test_a_large_batch_has_pieces_that_stay_in_cache() -> None:
    pieces = pieces_of(batch_of([32] * 400), 2)
    assert len(pieces) == 10
    assert all(piece.num_tokens <= MOST_TOKENS for piece in pieces)


@pytest.mark.parametrize("lengths", [[5], [2 * FEWEST_TOKENS - 1], [512], [1] * 20])
def test_what_is_too_little_to_be_shared_stays_whole(lengths: list[int]) -> None:
    assert len(pieces_of(batch_of(lengths), 2)) == 1


def test_two_texts_and_many_streams_are_two_pieces_at_most() -> None:
    assert len(pieces_of(batch_of([400, 400]), 4)) == 2


def test_streams_run_beside_each_other_with_their_own_threads() -> None:
    streams = Streams(4)
    try:
        assert (streams.count, streams.threads) == (4, 1)
        meeting = threading.Barrier(4)

        def meet(number: int) -> tuple[int, int]:
            meeting.wait(timeout=30)  # fails unless all four are here at once
            return number, torch.get_num_threads()

        assert streams.map(meet, range(4)) == [(number, 1) for number in range(4)]
    finally:
        streams.close()


def test_a_piece_that_fails_is_told_of_when_none_runs_any_more() -> None:
    streams, finished = Streams(2), threading.Event()

    def run(number: int) -> int:
        if number == 0:
            raise ValueError("piece 0")
        time.sleep(0.1)
        finished.set()
        return number

    try:
        with pytest.raises(ValueError, match="piece 0"):
            streams.map(run, [0, 1])
        assert finished.is_set()
        assert streams.map(abs, [-3]) == [3]  # and they still work
    finally:
        streams.close()


def test_a_large_machine_has_streams_of_several_threads() -> None:
    streams = Streams(4 * MOST_STREAMS)
    try:
        assert (streams.count, streams.threads) == (MOST_STREAMS, 4)
    finally:
        streams.close()


@pytest.mark.parametrize("threads", [1, 5, 16, 17, 20, 24, 31, 33, 48, 61, 96, 127])
def test_streams_leave_hardly_a_core_idle(threads: int) -> None:
    streams = Streams(threads)
    streams.close()
    assert 1 <= streams.count <= MOST_STREAMS
    used = streams.count * streams.threads
    assert threads * 15 / 16 <= used <= threads  # and never more than there are


def test_freed_memory_is_kept_where_the_c_library_is_glibc() -> None:
    import platform

    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
