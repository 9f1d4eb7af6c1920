"""Runs packed batches on the CPU, in threads of its own.

They free the interpreter while they are inside PyTorch's operations, so the
engine's thread can take requests and form the next batch meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from packhorse.checkpoint import Architecture
from packhorse.engine.cpu_buckets import with_tail
from packhorse.engine.cpu_streams import Streams
from packhorse.engine.model_runner import checked_output
from packhorse.engine.sparse_output import PAIR, most_rows, sparse_rows
from packhorse.models.backend import Layout, Run
from packhorse.request import (
    Float32Array,
    Int32Array,
    Output,
    Sequences,
    bounds_of,
    counted_positions,
    is_token_level,
    rows_of_pieces,
)

FEWEST_TOKENS, MOST_TOKENS = 96, 1536
"""Of a piece that a stream runs by itself."""

WARM_UP_TOKENS = (16, 64, 256)
"""Enough for oneDNN to build its kernels and for a first guess of the cost of a batch."""


class ModelHead(Protocol):
    """What a runner asks of a head; see ``Head``."""

    @property
    def width(self) -> int: ...
    @property
    def is_sparse(self) -> bool: ...
    @property
    def is_token_level(self) -> bool: ...


class Model(Protocol):
    """What a runner asks of a model; see ``PackedEncoder``."""

    @property
    def head(self) -> ModelHead: ...
    def forward(
        self, input_ids: Tensor, layout: Layout, *, token_level: bool = False
    ) -> Tensor: ...


class RunningBatch:
    """A batch that the CPU thread has or will have."""

    def __init__(self, batch: Sequences) -> None:
        self.batch = batch
        self._finished = threading.Event()
        self._output: Output | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._finished.is_set()

    def output(self) -> Output:
        self._finished.wait()
        if self._error is not None:
            raise self._error
        assert self._output is not None
        return self._output

    def finish(self, output: Output | None, error: BaseException | None) -> None:
        """Called once, by the CPU thread."""
        self._output, self._error = output, error
        self._finished.set()


class CpuRunner:
    """A ``ModelRunner``: one batch at a time on ``threads`` threads of the CPU.

    streams  whether threads run pieces of a batch, each its own; False: they share each operation
    buckets  whether batches are padded to few shapes, see ``cpu_buckets``
    """

    max_in_flight = 1  # a second one would be formed before its time
    has_wider = False

    def __init__(
        self,
        model: Model,
        architecture: Architecture,
        *,
        threads: int,
        max_tokens: int,
        max_sequences: int,
        streams: bool = True,
        buckets: bool = True,
    ) -> None:
        self.width = PAIR if model.head.is_sparse else model.head.width
        self.max_tokens = max_tokens
        self.max_sequences = min(max_sequences, most_rows(model.head.width))
        self.padding_tokens = 0
        self._model = model
        self._architecture = architecture
        self._threads = threads
        self._buckets = buckets
        self._streams = Streams(threads) if streams and threads > 1 else None
        self._queue: queue.SimpleQueue[RunningBatch | None] = queue.SimpleQueue()
        # Not a pipe: on Windows only sockets can be waited for and are non-blocking.
        self._signalled, self._signaller = socket.socketpair()
        self._signalled.setblocking(False)
        self._signaller.setblocking(False)
        self.completion_fd = self._signalled.fileno()
        self._thread = threading.Thread(target=self._work, name="packhorse-cpu", daemon=True)
        self._thread.start()

    def launch(self, batch: Sequences, *, wider: bool = False) -> RunningBatch:
        assert not wider, "there is no wider type on the CPU"
        running = RunningBatch(batch)
        self._queue.put(running)
        return running

    def wider_is_ready(self) -> bool:
        return False

    def memory(self) -> dict[str, int]:
        return {}

    def warm_up_batches(self) -> Iterator[Sequences]:
        longest = self._architecture.max_positions
        for tokens in WARM_UP_TOKENS:
            length = min(32, tokens, longest)
            lengths = np.full(tokens // length, length, np.int32)
            yield Sequences(
                input_ids=np.zeros(int(lengths.sum()), np.int32),
                cu_seqlens=bounds_of(lengths),
                truncated=np.zeros(len(lengths), np.bool_),
            )

    def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            if self._streams:
                self._streams.close()
            self._signaller.close()
            self._signalled.close()

    def _work(self) -> None:
        with torch.inference_mode():
            while (running := self._queue.get()) is not None:
                try:
                    running.finish(self._run(running.batch), None)
                except BaseException as error:  # whoever waits for the batch must hear of it
                    running.finish(None, error)
                self._signal()

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError):  # already readable, which is all that is asked
            self._signaller.send(b"\0")

    def _run(self, batch: Sequences) -> Output:
        started = time.perf_counter()
        lengths = batch.lengths
        order = np.argsort(lengths, kind="stable")
        by_length = batch.take(order)
        whole = is_token_level(batch)
        per_token = whole or self._model.head.is_token_level
        pieces = pieces_of(by_length, self._streams.count if self._streams else 1)
        forward = partial(self._forward, token_level=whole)
        rows = self._each(forward, [self._filled(piece) for piece in pieces])
        wanted = [piece.num_tokens if per_token else len(piece) for piece in pieces]
        in_order = np.concatenate([of[:count] for of, count in zip(rows, wanted, strict=True)])
        if per_token:
            inverse = np.argsort(order, kind="stable")
            starts = by_length.cu_seqlens[:-1][inverse]
            values = in_order[rows_of_pieces(starts, batch.cu_seqlens)]
            return checked_output(values, lengths, time.perf_counter() - started)
        values = np.empty_like(in_order)
        values[order] = in_order
        if self._model.head.is_sparse:
            pairs, counts = sparse_rows(torch.from_numpy(values))
            return checked_output(pairs, counts, time.perf_counter() - started)
        return checked_output(values, None, time.perf_counter() - started)

    def _filled(self, batch: Sequences) -> Sequences:
        """The batch with a tail that makes it one of few shapes; nobody reads the tail's rows."""
        if not self._buckets:
            return batch
        architecture = self._architecture
        filled = with_tail(batch, architecture.pad_token_id, architecture.first_position)
        self.padding_tokens += filled.num_tokens - batch.num_tokens
        return filled

    def _each(
        self, forward: Callable[[Sequences], Float32Array], pieces: list[Sequences]
    ) -> list[Float32Array]:
        """All pieces at once, a stream each; all threads work on each operation of a single one."""
        if len(pieces) == 1 or self._streams is None:
            torch.set_num_threads(self._threads)
            return [forward(piece) for piece in pieces]
        torch.set_num_threads(self._streams.threads)  # MKL's number is that of the process
        return self._streams.map(forward, pieces)

    def _forward(self, batch: Sequences, *, token_level: bool) -> Float32Array:
        input_ids, layout = packed_layout(batch, self._architecture)
        values: Float32Array = self._model.forward(
            input_ids, layout, token_level=token_level
        ).numpy()
        return values


def pieces_of(batch: Sequences, streams: int) -> list[Sequences]:
    """Neighbours of a batch, in pieces of about as many tokens, as many for each stream.

    A piece is small enough that what passes from one operation to the next stays in a core's
    cache, and large enough that starting the operations takes little of its time.
    """
    tokens = batch.num_tokens
    if streams == 1 or tokens < streams * FEWEST_TOKENS:
        count = 1
    else:
        count = math.ceil(tokens / (streams * MOST_TOKENS)) * streams
    if count == 1 or len(batch) == 1:
        return [batch]
    marks = np.arange(1, count) * (tokens / count)
    cuts = np.unique(np.searchsorted(batch.cu_seqlens, marks))
    bounds = [0, *[int(cut) for cut in cuts if 0 < cut < len(batch)], len(batch)]
    return [batch.slice(*pair) for pair in pairwise(bounds)]


def packed_layout(batch: Sequences, architecture: Architecture) -> tuple[Tensor, Layout]:
    """Ids, int32 (T,), and layout of sequences that are sorted by length."""
    lengths = batch.lengths
    positions = batch.position_ids
    if positions is None:
        positions = counted_positions(batch.cu_seqlens, architecture.first_position)
    starts = np.repeat(batch.cu_seqlens[:-1], lengths)
    layout = Layout(
        position_ids=torch.from_numpy(positions),
        token_type_ids=_token_types(batch, starts),
        cu_seqlens=torch.from_numpy(batch.cu_seqlens),
        starts=torch.from_numpy(starts),
        ends=torch.from_numpy(np.repeat(batch.cu_seqlens[1:], lengths)),
        runs=tuple(runs_of_equal_length(lengths)),
        marks=None if batch.marks is None else torch.from_numpy(batch.marks),
    )
    return torch.from_numpy(batch.input_ids), layout


def _token_types(batch: Sequences, starts: Int32Array) -> Tensor | None:
    """int32 (T,): 1 from each sequence's second segment on."""
    if batch.segment_starts is None:
        return None
    second = starts + np.repeat(batch.segment_starts, batch.lengths)
    tokens = np.arange(batch.num_tokens, dtype=np.int32)
    return torch.from_numpy((tokens >= second).astype(np.int32))


def runs_of_equal_length(lengths: Int32Array) -> Iterator[Run]:
    """Neighbours of equal length, as runs over the packed row."""
    changes = np.flatnonzero(np.diff(lengths)) + 1
    firsts = np.concatenate([[0], changes])
    counts = np.diff(np.concatenate([firsts, [len(lengths)]]))
    start = 0
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        length = int(lengths[first])
        yield Run(start, count, length)
        start += count * length
