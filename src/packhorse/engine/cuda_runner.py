"""Runs packed batches on an NVIDIA GPU: pinned slots, static buffers, captured graphs.

A launch copies ids and bounds from a pinned slot to the device, replays the
graphs and copies the logits back into the slot, all on one stream and without
waiting: the buffers of a running graph are never overwritten, and the CPU
prepares the next batch while this one runs. One short text has it all in one graph.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from packhorse.checkpoint import Architecture
from packhorse.engine.cuda_graphs import DeviceBuffers, ForwardGraphs
from packhorse.engine.cuda_slots import CudaBatch, Slot, Watcher
from packhorse.engine.solo_graphs import SoloGraphs
from packhorse.engine.sparse_output import PAIR, most_rows
from packhorse.engine.wider_model import WiderModel
from packhorse.errors import DeviceError
from packhorse.kernels import Ops
from packhorse.kernels.tiles import FEW_ROWS_STEPS
from packhorse.models.backend import Layout
from packhorse.models.encoder import PackedEncoder
from packhorse.request import Sequences, is_token_level

logger = logging.getLogger(__name__)

FEWEST_TOKENS = 512
"""Below this budget, or the longest text if that is more, a GPU out of memory is given up."""

MOST_TOKENS = 16384
"""The largest batch that an "auto" budget considers."""

WORTHWHILE = 0.98
"""An "auto" budget is the smallest with this share of the best rate: smaller batches wait less."""


class CudaRunner:
    """A ``ModelRunner`` on one GPU.

    load_wider  makes the same model in a type with a wider range, for sequences
                whose output is not finite, in another thread; None where there is none
    max_tokens  None: the smallest budget that keeps the GPU busy, found by timing the graphs
    graphs      False launches kernel by kernel, for comparison
    overlap     False has one batch in flight, so the GPU waits while the next one is formed
    notify      have a thread watch for finished batches and make ``completion_fd``
                readable; without it the engine polls
    """

    def __init__(
        self,
        model: PackedEncoder,
        architecture: Architecture,
        kernels: Ops,
        device: torch.device,
        *,
        max_tokens: int | None,
        max_sequences: int,
        load_wider: Callable[[], PackedEncoder] | None = None,
        graphs: bool = True,
        overlap: bool = True,
        notify: bool = False,
    ) -> None:
        self._is_sparse = model.head.is_sparse
        self.width = PAIR if self._is_sparse else model.head.width
        self._per_token = model.head.is_token_level
        max_sequences = min(max_sequences, most_rows(model.head.width))
        graphs = graphs and not model.head.reads_marked_token  # all have marks: graphs know none
        self.max_sequences = max_sequences
        # A sparse output stays in the graph's buffer until it is collected.
        self.max_in_flight = 2 if overlap and not self._is_sparse else 1
        self._architecture = architecture
        self._kernels = kernels
        self._device = device
        self._explicit = model
        self._counted = _counting_from_first(model, architecture.first_position)
        self._wider = None if load_wider is None else WiderModel(partial(self._warmed, load_wider))
        self._stream = torch.cuda.Stream(device)
        self._fewest_tokens = max(FEWEST_TOKENS, architecture.max_positions)
        if max_tokens is not None and max_tokens < architecture.max_positions:
            raise DeviceError(
                f"--max-batch-tokens {max_tokens} cannot hold one text of this model, which may "
                f"have {architecture.max_positions} tokens: take at least that"
            )
        self.padding_tokens = 0
        self.max_tokens, self._buffers, self._graphs, self._solo = self._prepare(
            max_tokens or max(MOST_TOKENS, architecture.max_positions), graphs
        )
        torch.cuda.empty_cache()  # what the captures needed once
        self._slots = deque(
            Slot(
                self.max_tokens,
                max_sequences,
                self.width,
                self.max_tokens if self._per_token else 1 if self._is_sparse else max_sequences,
            )
            for _ in range(self.max_in_flight)
        )
        self._watcher = Watcher() if notify else None
        self.completion_fd = self._watcher.completion_fd if self._watcher else None
        if max_tokens is None and self._graphs is not None:
            self.max_tokens = self._smallest_worthwhile_budget(self._graphs)

    @property
    def buffer_tokens(self) -> int:
        """Tokens that the buffers hold: at least ``max_tokens``, which timing may have lowered."""
        return self._buffers.input_ids.shape[0]

    @property
    def has_wider(self) -> bool:
        """Whether ``launch`` can run a batch in a wider type."""
        return self._wider is not None and not self._wider.has_failed

    def wider_is_ready(self) -> bool:
        return self._wider is not None and self._wider.is_ready()

    def launch(self, batch: Sequences, *, wider: bool = False) -> CudaBatch:
        solo = self._solo
        if solo is not None and not wider and solo.takes(batch):
            self.padding_tokens += solo.padding_of(batch)
            return self._watched(solo.launch(batch, self._architecture.pad_token_id, self._stream))
        slot = self._slots.popleft()
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                whole = is_token_level(batch)
                explicit = batch.position_ids is not None or batch.marks is not None
                if wider or whole or explicit or self._graphs is None:
                    values = self._launch_eagerly(slot, batch, wider, whole)
                else:
                    values = self._launch_graphs(slot, batch, self._graphs)
        except BaseException:
            self._slots.append(slot)
            raise
        row_counts = batch.lengths if whole or self._per_token else None
        return self._watched(CudaBatch(slot, values, row_counts, self._slots.append))

    def warm_up_batches(self) -> Iterator[Sequences]:
        for tokens in (32, 1024, self.max_tokens):
            yield self._even_batch(min(tokens, self.max_tokens))

    def memory(self) -> dict[str, int]:
        """Bytes on the device: reserved by PyTorch here, and in use by everybody."""
        free, total = torch.cuda.mem_get_info(self._device)
        return {
            "device_memory_reserved": torch.cuda.memory_reserved(self._device),
            "device_memory_used": total - free,
            "device_memory_total": total,
        }

    def close(self) -> None:
        if self._wider is not None:
            self._wider.close()
        torch.cuda.synchronize(self._device)
        if self._watcher is not None:
            self._watcher.close()
        if self._solo is not None:
            self._solo.close()
        if self._graphs is not None:
            self._graphs.close()

    def _even_batch(self, tokens: int) -> Sequences:
        """About ``tokens`` tokens in sequences of 32, the usual length of a sentence or two."""
        length = min(32, self._architecture.max_positions)
        count = min(max(1, tokens // length), self.max_sequences)
        return Sequences(
            input_ids=np.zeros(count * length, np.int32),
            cu_seqlens=np.arange(0, (count + 1) * length, length, dtype=np.int32),
            truncated=np.zeros(count, np.bool_),
        )

    def _smallest_worthwhile_budget(self, graphs: ForwardGraphs) -> int:
        """Time the larger graphs, and take the smallest that is nearly as quick as the best."""
        rates = {}
        for tokens in graphs.token_buckets:
            if 4 * tokens >= self.max_tokens and tokens >= self._architecture.max_positions:
                batch = self._even_batch(tokens)
                seconds = sorted(self.launch(batch).output().seconds for _ in range(3))
                rates[tokens] = batch.num_tokens / seconds[0]
        best = max(rates.values())
        chosen = min(tokens for tokens, rate in rates.items() if rate >= WORTHWHILE * best)
        logger.info("batches of up to %d tokens: %.2f M tokens/s", chosen, rates[chosen] / 1e6)
        return chosen

    def _prepare(
        self, max_tokens: int, graphs: bool
    ) -> tuple[int, DeviceBuffers, ForwardGraphs | None, SoloGraphs | None]:
        """The largest budget that fits, from ``max_tokens`` down by halves; buffers, graphs."""
        while True:
            try:
                return max_tokens, *self._allocate(max_tokens, graphs)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                if max_tokens // 2 < self._fewest_tokens:
                    raise DeviceError(
                        f"{self._device} has no room for batches of {max_tokens} tokens; free its "
                        "memory or take a smaller --max-batch-requests"
                    ) from None
                max_tokens //= 2
                logger.warning("out of device memory: batches of at most %d tokens", max_tokens)

    def _allocate(
        self, max_tokens: int, graphs: bool
    ) -> tuple[DeviceBuffers, ForwardGraphs | None, SoloGraphs | None]:
        with torch.inference_mode():
            buffers = DeviceBuffers.allocate(
                self._counted, max_tokens, self.max_sequences, self._device
            )
            # Weights and zeros were written on the loader's stream, which ours does not wait for.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            if not graphs:
                return buffers, None, None
            forward = ForwardGraphs(self._counted, self._kernels, buffers, self._stream)
            forward.capture()
            if self._is_sparse:  # the rows that leave the device are not known before
                return buffers, forward, None
            solo = SoloGraphs(self._counted, forward, buffers)
            solo.capture()
            return buffers, forward, solo

    def _watched(self, running: CudaBatch) -> CudaBatch:
        if self._watcher is not None:
            self._watcher.watch(running)
        return running

    def _launch_graphs(self, slot: Slot, batch: Sequences, graphs: ForwardGraphs) -> torch.Tensor:
        """The pinned values, float32 (R, width), as they will be."""
        tokens = graphs.token_bucket(batch.num_tokens)
        sequences = graphs.sequence_bucket(len(batch))
        self.padding_tokens += tokens - batch.num_tokens
        slot.fill(batch, tokens, sequences, self._architecture.pad_token_id)
        slot.started.record(self._stream)
        slot.copy_to(self._buffers.inputs, tokens)
        graphs.replay(tokens, sequences)
        rows = batch.num_tokens if self._per_token else len(batch)
        values = self._buffers.values[:rows]
        if not self._is_sparse:
            values = slot.values[:rows].copy_(values, non_blocking=True)
        slot.finished.record(self._stream)
        return values

    def _launch_eagerly(
        self, slot: Slot, batch: Sequences, wider: bool, whole: bool
    ) -> torch.Tensor:
        """Without graphs: explicit positions, marks, the wider type, a row for each token of
        what mostly has one for each sequence (``whole``), or graphs switched off."""
        tokens, count = batch.num_tokens, len(batch)
        slot.fill(batch, tokens, count, self._architecture.pad_token_id)
        slot.started.record(self._stream)
        slot.copy_to(self._buffers.inputs, tokens)
        layout = self._eager_layout(tokens, count)
        model = self._counted
        if batch.position_ids is not None:
            model = self._explicit
            positions = torch.from_numpy(batch.position_ids.copy()).to(self._device)
            layout = replace(layout, position_ids=positions)
        if batch.marks is not None:
            marks = torch.from_numpy(batch.marks.copy()).to(self._device)
            layout = replace(layout, marks=marks)
        if wider:
            model = self._wider_model(counted=batch.position_ids is None)
        result = model.forward(self._buffers.input_ids[:tokens], layout, token_level=whole)
        if whole:  # rare and large: memory of its own, not the slot's
            values = torch.empty(result.shape, pin_memory=True).copy_(result, non_blocking=True)
        elif self._is_sparse:
            values = result
        else:
            values = slot.values[: len(result)].copy_(result, non_blocking=True)
        slot.finished.record(self._stream)
        return values

    def _eager_layout(self, tokens: int, count: int) -> Layout:
        buffers = self._buffers
        bounds = (buffers.cu_seqlens, buffers.num_sequences)
        positions, starts, ends, types = self._kernels.expand(
            *bounds, tokens, segment_starts=buffers.segment_starts
        )
        return Layout(positions, types, buffers.cu_seqlens[: count + 1], starts, ends)

    def _wider_model(self, counted: bool) -> PackedEncoder:
        """The same model in a wider type; see ``wider_is_ready``."""
        assert self._wider is not None
        if not counted:
            return self._wider.model()
        return _counting_from_first(self._wider.model(), self._architecture.first_position)

    def _warmed(self, load: Callable[[], PackedEncoder]) -> PackedEncoder:
        """A model whose kernels are compiled; in a thread of its own, beside running batches."""
        torch.cuda.set_device(self._device)  # each thread has its own
        stream = torch.cuda.Stream(self._device)
        with torch.inference_mode(), torch.cuda.stream(stream):
            model = load()
            counted = _counting_from_first(model, self._architecture.first_position)
            for tokens in (*FEW_ROWS_STEPS, FEW_ROWS_STEPS[-1] + 1):
                tokens = min(tokens, self._architecture.max_positions)
                header = torch.tensor([1, 0, tokens, tokens], dtype=torch.int32).to(self._device)
                num_sequences, cu_seqlens, segment_starts = header[:1], header[1:3], header[3:]
                positions, starts, ends, types = self._kernels.expand(
                    cu_seqlens, num_sequences, tokens, segment_starts=segment_starts
                )
                layout = Layout(positions, types, cu_seqlens, starts, ends)
                counted.forward(torch.zeros_like(positions), layout)
        stream.synchronize()
        return model


def _counting_from_first(model: PackedEncoder, first_position: int) -> PackedEncoder:
    """The model with a position table that starts at the first position: no copy, a view."""
    position = model.embeddings.position
    if position is None or first_position == 0:
        return model
    return replace(model, embeddings=replace(model.embeddings, position=position[first_position:]))
