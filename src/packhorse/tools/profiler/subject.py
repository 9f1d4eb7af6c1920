"""What is profiled: a model and one packed batch, run operation by operation in one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, tokenizer_choice
from packhorse.configured import configured_checkpoint
from packhorse.engine.cpu_runner import packed_layout
from packhorse.engine.load import probe_cuda, resolve_dtype
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.kernels import select
from packhorse.models.backend import Layout
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.encoder import PackedEncoder
from packhorse.models.kernel_backend import KernelBackend
from packhorse.models.load import load_encoder
from packhorse.request import Int32Array, Sequences
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.profiler.watched_backend import OperationCall, WatchedBackend

_HOLD = 200_000_000
"""GPU cycles, about 0.1 s, for which the stream is held while a pass is queued: kernels then follow
one another as in a captured graph, and no time is Python's."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and ids and layout of one batch.

    lengths  int32 (N,): tokens of each sequence
    """

    checkpoint: Checkpoint
    model: PackedEncoder
    input_ids: Tensor
    layout: Layout
    lengths: Int32Array
    device: torch.device
    dtype: torch.dtype

    def seconds(self) -> float:
        """One forward pass, nothing attached to it."""
        with torch.inference_mode():
            return self._run(self.model)

    def calls(self) -> tuple[float, list[OperationCall]]:
        """The seconds of one forward pass, and those of each of its operations."""
        backend = WatchedBackend(self.model.backend, self.device, self.lengths)
        watched = replace(self.model, backend=backend)
        with torch.inference_mode():
            seconds = self._run(watched)
        return seconds, backend.taken()

    def _run(self, model: PackedEncoder) -> float:
        if self.device.type == "cuda":
            return self._run_on_gpu(model)
        started = time.perf_counter()
        model.forward(self.input_ids, self.layout)
        return time.perf_counter() - started

    def _run_on_gpu(self, model: PackedEncoder) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HOLD)
        first.record()
        model.forward(self.input_ids, self.layout)
        last.record()
        torch.cuda.synchronize(self.device)
        return float(first.elapsed_time(last)) / 1000


def subject(config: Config, texts: Sequence[str], tokens: int) -> Subject:
    """The configured model with a batch of about ``tokens`` tokens; every "auto" is decided.

    Raises CheckpointError, DeviceError or ConfigError.
    """
    if config.model.dtype == "int8":
        raise ConfigError(
            "profile counts layers of floating-point numbers: give --dtype bfloat16 or float32; "
            "packhorse doctor --dtype int8 says how fast layers of 8 bits are as a whole"
        )
    checkpoint = configured_checkpoint(config)
    device = torch.device(config.model.device)
    dtype = resolve_dtype(config.model.dtype, device, checkpoint, detect())
    off = config.engine.without
    if device.type == "cuda":
        probe_cuda(device)
        backend = KernelBackend(select(device, fused="fused-kernels" not in off))
    else:
        torch.set_num_threads(int(config.engine.threads))
        backend = CpuBackend(prepack="prepacked-weights" not in off)  # type: ignore[assignment]
    model = load_encoder(
        checkpoint, backend, device, dtype, first_token_only="first-token-only" not in off
    )
    tokenizer = Tokenizer.load(checkpoint, backend=tokenizer_choice(config))  # type: ignore[arg-type]
    batch = filled(tokenizer.encode(list(texts)), tokens)
    input_ids, layout = packed_layout(batch, checkpoint.architecture)
    return Subject(
        checkpoint, model, input_ids.to(device), _on(layout, device), batch.lengths, device, dtype
    )


def filled(sequences: Sequences, tokens: int) -> Sequences:
    """The sequences again and again until there are ``tokens`` tokens, sorted by length."""
    order: list[int] = []
    total = row = 0
    lengths = sequences.lengths.tolist()
    while not order or total + lengths[row % len(lengths)] <= tokens:
        order.append(row % len(lengths))
        total += lengths[order[-1]]
        row += 1
    order.sort(key=lambda row: lengths[row])
    return sequences.take(torch.tensor(order).numpy())


def _on(layout: Layout, device: torch.device) -> Layout:
    types = layout.token_type_ids
    return replace(
        layout,
        position_ids=layout.position_ids.to(device),
        token_type_ids=None if types is None else types.to(device),
        cu_seqlens=layout.cu_seqlens.to(device),
        starts=layout.starts.to(device),
        ends=layout.ends.to(device),
    )
