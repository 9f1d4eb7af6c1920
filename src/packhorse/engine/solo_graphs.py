"""One short text alone on the device: its copies and all of its forward pass in one graph.

A launch is otherwise a copy, two graphs and a copy back, each a call that takes
the CPU 5 to 15 µs and the GPU a pause. A text of few tokens is computed in
0.3 ms, so that counts for one client that asks again and again. A graph fixes
addresses in pinned memory as well, hence a slot of its own: what is launched
while that is in use takes the way of all others.
"""

from __future__ import annotations

from functools import partial

import torch

from packhorse.engine.cuda_graphs import DeviceBuffers, ForwardGraphs, no_garbage_collected
from packhorse.engine.cuda_slots import CudaBatch, Slot
from packhorse.models.encoder import PackedEncoder
from packhorse.request import Sequences

MOST_TOKENS = 128
"""Longer texts keep the GPU busy for so long that their launch hardly counts."""


class SoloGraphs:
    """The forward pass of one sequence, from pinned memory to pinned memory, by its tokens."""

    def __init__(
        self, model: PackedEncoder, forward: ForwardGraphs, buffers: DeviceBuffers
    ) -> None:
        self._forward = forward
        self._buffers = buffers
        self._per_token = model.head.is_token_level
        self._most = max(bucket for bucket in forward.token_buckets if bucket <= MOST_TOKENS)
        self._slot = Slot(
            self._most,
            buffers.max_sequences,
            model.head.width,
            self._most if self._per_token else 1,
        )
        self._is_free = True
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self) -> None:
        """Capture every bucket, once ``forward`` has its own and all of it was launched."""
        buckets = [tokens for tokens in self._forward.token_buckets if tokens <= self._most]
        with no_garbage_collected():
            for tokens in buckets:
                self._graphs[tokens] = self._forward.captured(partial(self._pass, tokens))

    def takes(self, batch: Sequences) -> bool:
        """Whether there is a graph for it, and the slot is free."""
        return (
            self._is_free
            and len(batch) == 1
            and batch.num_tokens <= self._most
            and batch.position_ids is None
            and batch.marks is None
            and batch.token_level is None
        )

    def padding_of(self, batch: Sequences) -> int:
        """Tokens that a batch is filled up with."""
        return self._forward.token_bucket(batch.num_tokens) - batch.num_tokens

    def launch(self, batch: Sequences, pad_token_id: int, stream: torch.cuda.Stream) -> CudaBatch:
        """Run a batch that it takes."""
        slot, self._is_free = self._slot, False
        tokens = self._forward.token_bucket(batch.num_tokens)
        try:
            slot.fill(batch, tokens, 1, pad_token_id)
            slot.started.record(stream)
            with torch.cuda.stream(stream):
                self._graphs[tokens].replay()
            slot.finished.record(stream)
        except BaseException:
            self._release(slot)
            raise
        values = slot.values[: batch.num_tokens if self._per_token else 1]
        return CudaBatch(slot, values, batch.lengths if self._per_token else None, self._release)

    def close(self) -> None:
        """Give the graphs' memory back; none of them may be running."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()

    def _release(self, slot: Slot) -> None:
        self._is_free = True

    def _pass(self, tokens: int) -> None:
        rows = tokens if self._per_token else 1
        self._slot.copy_to(self._buffers.inputs, tokens)
        self._forward.run(tokens, 1)
        self._slot.values[:rows].copy_(self._buffers.values[:rows], non_blocking=True)
