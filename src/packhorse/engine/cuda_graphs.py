"""Captured forward passes: the trunk by tokens, the tail by sequences, over shared buffers.

A captured graph launches the hundred kernels of a forward pass as one. It
fixes every address and size, so batches are padded up to buckets: the trunk's
work depends on the number of tokens alone and the tail's on the number of
sequences alone, hence two short lists of graphs instead of their product. Where
every token has a row of output, or a row of logits that the output is made of,
the tail too goes by tokens, and is in the trunk's graph.
"""

from __future__ import annotations

import bisect
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from packhorse.engine.cuda_slots import header_and_ids, header_room
from packhorse.kernels import Ops
from packhorse.kernels.tiles import FEW_ROWS_STEPS
from packhorse.models.backend import Layout
from packhorse.models.encoder import PackedEncoder, TrunkBuffers

logger = logging.getLogger(__name__)

OWN_THREAD = "thread_local"
"""Whose calls a capture forbids: other threads may have an engine of their own at work."""


@dataclass(frozen=True, slots=True)
class DeviceBuffers:
    """Everything a replayed graph reads and writes, allocated once.

    inputs      int32 (H + T,), in which the next two are, so that one copy brings both
    header      int32 (1 + M + 1 + M,): number of sequences, cu_seqlens, segment starts
    input_ids   int32 (T,)
    positions, starts, ends, token_types   int32 (T,), made on the device from the header
    trunk       the memory of the trunk, in which it hands its result to the tail
    values      float32 (M, width), or (T, width) where every token has a row

    for at most T tokens and M sequences.
    """

    inputs: Tensor
    header: Tensor
    input_ids: Tensor
    positions: Tensor
    starts: Tensor
    ends: Tensor
    token_types: Tensor
    trunk: TrunkBuffers
    values: Tensor

    @classmethod
    def allocate(
        cls,
        model: PackedEncoder,
        max_tokens: int,
        max_sequences: int,
        device: torch.device,
    ) -> DeviceBuffers:
        def row(length: int) -> Tensor:
            return torch.zeros(length, dtype=torch.int32, device=device)

        inputs = row(header_room(max_sequences) + max_tokens)
        header, input_ids = header_and_ids(inputs, max_sequences)
        return cls(
            inputs=inputs,
            header=header,
            input_ids=input_ids,
            positions=row(max_tokens),
            starts=row(max_tokens),
            ends=row(max_tokens),
            token_types=row(max_tokens),
            trunk=TrunkBuffers.allocate(model, max_tokens),
            values=torch.zeros(
                max_tokens if model.head.is_token_level else max_sequences,
                model.head.width,
                device=device,
            ),
        )

    @property
    def max_sequences(self) -> int:
        return (self.header.shape[0] - 2) // 2

    @property
    def num_sequences(self) -> Tensor:
        return self.header[:1]

    @property
    def cu_seqlens(self) -> Tensor:
        return self.header[1 : self.max_sequences + 2]

    @property
    def segment_starts(self) -> Tensor:
        return self.header[self.max_sequences + 2 :]


def token_buckets(most: int) -> list[int]:
    """Tokens in a trunk graph: in steps of an eighth of their size, of 16 at least."""
    buckets = [16]
    while buckets[-1] < most:
        step = max(16, 1 << max(0, buckets[-1].bit_length() - 4))
        buckets.append(min(most, buckets[-1] + step))
    return buckets


def sequence_buckets(most: int) -> list[int]:
    """Sequences in a tail graph: powers of two and the halves between them."""
    buckets = [1, 2, 4, 8]
    while buckets[-1] < most:
        last = buckets[-1]
        buckets.append(last * 3 // 2 if last & (last - 1) == 0 and last >= 32 else _doubled(last))
    return [*[bucket for bucket in buckets if bucket < most], most]


def _doubled(bucket: int) -> int:
    return 1 << bucket.bit_length()


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """A graph of an earlier model that is collected during a capture makes the capture fail."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ForwardGraphs:
    """The forward pass of one model over one set of buffers, replayed by bucket."""

    def __init__(
        self, model: PackedEncoder, kernels: Ops, buffers: DeviceBuffers, stream: torch.cuda.Stream
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._buffers = buffers
        self._stream = stream
        self._per_token = model.head.is_token_level or model.head.is_sparse
        self._pool = torch.cuda.graph_pool_handle()
        self.token_buckets = token_buckets(buffers.input_ids.shape[0])
        self.sequence_buckets = sequence_buckets(buffers.max_sequences)
        self._trunks: dict[int, torch.cuda.CUDAGraph] = {}
        self._tails: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self) -> None:
        """Launch every bucket once, then capture them: the largest first, so that smaller ones
        reuse its memory."""
        started = time.monotonic()
        tails = [] if self._per_token else self.sequence_buckets[::-1]
        with no_garbage_collected():
            self._launch_all(tails)
            for tokens in reversed(self.token_buckets):
                self._trunks[tokens] = self.captured(partial(self._trunk, tokens))
            for sequences in tails:
                self._tails[sequences] = self.captured(partial(self._tail, sequences))
        logger.info(
            "captured %d trunk and %d tail graphs in %.2f s",
            len(self._trunks),
            len(self._tails),
            time.monotonic() - started,
        )

    def token_bucket(self, num_tokens: int) -> int:
        """The smallest captured number of tokens that holds ``num_tokens``."""
        return self.token_buckets[bisect.bisect_left(self.token_buckets, num_tokens)]

    def sequence_bucket(self, num_sequences: int) -> int:
        """The smallest captured number of sequences that holds ``num_sequences``.

        A sparse tail is in the trunk's graph and reads the bounds of all sequences there can be.
        """
        if self._model.head.is_sparse:
            return self._buffers.max_sequences
        return self.sequence_buckets[bisect.bisect_left(self.sequence_buckets, num_sequences)]

    def close(self) -> None:
        """Give the graphs' memory back; none of them may be running."""
        for graph in (*self._trunks.values(), *self._tails.values()):
            graph.reset()
        self._trunks.clear()
        self._tails.clear()

    def run(self, tokens: int, sequences: int) -> None:
        """Trunk and tail of these buckets without a graph: what ``captured`` makes one of."""
        self._trunk(tokens)
        if not self._per_token:
            self._tail(sequences)

    def replay(self, tokens: int, sequences: int) -> None:
        """Run the trunk of this token bucket and the tail of this sequence bucket."""
        self._trunks[tokens].replay()
        if not self._per_token:
            self._tails[sequences].replay()

    def captured(self, forward: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What it launches, as a graph over the same pool of memory.

        All of that was launched before: kernels are compiled then, and cuBLAS chooses, which a
        capture may not.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode=OWN_THREAD
        ):
            forward()
        return graph

    def _launch_all(self, tails: Iterable[int]) -> None:
        """Leaves no memory behind that was taken for it: captures take their own."""
        with torch.cuda.stream(self._stream):
            self._trunk(FEW_ROWS_STEPS[0])  # so few tokens are launched without a graph alone
            for tokens in reversed(self.token_buckets):
                self._trunk(tokens)
            for sequences in tails:
                self._tail(sequences)
        torch.cuda.empty_cache()

    def _trunk(self, tokens: int) -> None:
        buffers = self._buffers
        layout = self._layout(tokens, buffers.cu_seqlens)
        self._kernels.expand(
            buffers.cu_seqlens,
            buffers.num_sequences,
            tokens,
            segment_starts=buffers.segment_starts,
            out=(layout.position_ids, layout.starts, layout.ends, layout.token_type_ids),
        )
        hidden, key_value = self._model.trunk(
            buffers.input_ids[:tokens],
            layout,
            buffers.trunk.first(tokens),
        )
        if self._per_token:
            rows = buffers.max_sequences if self._model.head.is_sparse else tokens
            self._model.tail(hidden, key_value, layout, out=buffers.values[:rows])

    def _tail(self, sequences: int) -> None:
        buffers = self._buffers
        tokens = buffers.input_ids.shape[0]
        layout = self._layout(tokens, buffers.cu_seqlens[: sequences + 1])
        key_value = buffers.trunk.key_value if self._model.first_token_only else None
        self._model.tail(buffers.trunk.hidden, key_value, layout, out=buffers.values[:sequences])

    def _layout(self, tokens: int, cu_seqlens: Tensor) -> Layout:
        buffers = self._buffers
        return Layout(
            position_ids=buffers.positions[:tokens],
            token_type_ids=buffers.token_types[:tokens],
            cu_seqlens=cu_seqlens,
            starts=buffers.starts[:tokens],
            ends=buffers.ends[:tokens],
        )
