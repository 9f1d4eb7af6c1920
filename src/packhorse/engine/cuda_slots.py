"""A batch in flight on a GPU: pinned memory for what goes in and what comes out, and a watcher."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from packhorse.engine.model_runner import checked_output
from packhorse.engine.sparse_output import sparse_rows
from packhorse.request import Int32Array, Output, Sequences

ALIGNED = 32
"""Numbers of 4 bytes that what follows the header starts at a multiple of, as kernels like it."""


def header_room(max_sequences: int) -> int:
    """H: numbers of the header, 2 M + 2, and what is left free behind it."""
    return -(-(2 * max_sequences + 2) // ALIGNED) * ALIGNED


def header_and_ids(inputs: Tensor, max_sequences: int) -> tuple[Tensor, Tensor]:
    """Header (2 M + 2,) and input ids (T,) of int32 (H + T,)."""
    return inputs[: 2 * max_sequences + 2], inputs[header_room(max_sequences) :]


class Slot:
    """Pinned host memory for one batch in flight: what goes in, and what comes out."""

    def __init__(self, max_tokens: int, max_sequences: int, width: int, max_rows: int) -> None:
        room = header_room(max_sequences)
        self.inputs = torch.zeros(room + max_tokens, dtype=torch.int32, pin_memory=True)
        self.values = torch.zeros(max_rows, width, pin_memory=True)
        self.started = torch.cuda.Event(enable_timing=True)
        self.finished = torch.cuda.Event(enable_timing=True)
        header, input_ids = header_and_ids(self.inputs, max_sequences)
        self._header, self._input_ids = header.numpy(), input_ids.numpy()
        self._room, self._max_sequences = room, max_sequences

    def copy_to(self, inputs: Tensor, tokens: int) -> None:
        """Header and so many ids to the same places on the device, without waiting for it."""
        filled = self._room + tokens
        inputs[:filled].copy_(self.inputs[:filled], non_blocking=True)

    def fill(self, batch: Sequences, tokens: int, sequences: int, pad_token_id: int) -> None:
        """Write a batch, padded to ``tokens`` and ``sequences``.

        Tail tokens are pads that attend to themselves; tail sequences are empty.
        """
        count, num_tokens = len(batch), batch.num_tokens
        header = self._header
        header[0] = count
        header[1 : count + 2] = batch.cu_seqlens
        header[count + 2 : sequences + 2] = num_tokens
        segments = header[self._max_sequences + 2 :]
        if batch.segment_starts is None:  # each sequence's length, without np.diff's overhead
            np.subtract(batch.cu_seqlens[1:], batch.cu_seqlens[:-1], out=segments[:count])
        else:
            segments[:count] = batch.segment_starts
        self._input_ids[:num_tokens] = batch.input_ids
        self._input_ids[num_tokens:tokens] = pad_token_id


class CudaBatch:
    """A batch that was launched."""

    def __init__(
        self,
        slot: Slot,
        values: torch.Tensor,
        row_counts: Int32Array | None,
        release: Callable[[Slot], None],
    ) -> None:
        """``values``, float32 (R, width), are in pinned memory and there when it is finished.

        Those of a sparse model are still on the device: only what is not 0 leaves it.
        """
        self._slot = slot
        self._values = values
        self._row_counts = row_counts
        self._release = release

    def done(self) -> bool:
        return bool(self._slot.finished.query())

    def wait(self) -> None:
        """Until the GPU is through with it; frees the interpreter meanwhile."""
        self._slot.finished.synchronize()

    def output(self) -> Output:
        try:
            self.wait()
            row_counts = self._row_counts
            if self._values.is_cuda:
                values, row_counts = sparse_rows(self._values)
            else:
                values = self._values.numpy().copy()
            milliseconds = self._slot.started.elapsed_time(self._slot.finished)
        finally:
            self._release(self._slot)
        return checked_output(values, row_counts, milliseconds / 1000)


class Watcher:
    """A thread that waits for batches in the order of their launch and tells through a pipe."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CudaBatch | None] = queue.SimpleQueue()
        self.completion_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._signal_fd, False)
        self._thread = threading.Thread(target=self._work, name="packhorse-gpu", daemon=True)
        self._thread.start()

    def watch(self, batch: CudaBatch) -> None:
        """Make ``completion_fd`` readable when the batch is done, or has failed."""
        self._queue.put(batch)

    def close(self) -> None:
        """Once all that is watched is done."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._signal_fd)
        os.close(self.completion_fd)

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            with contextlib.suppress(Exception):  # ``output`` raises it where it is handled
                batch.wait()
            with contextlib.suppress(BlockingIOError):
                os.write(self._signal_fd, b"\0")
