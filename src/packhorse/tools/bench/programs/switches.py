"""The engine with optimisations switched off by name."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, EngineOptions, ModelOptions, resolve
from packhorse.engine.cpu_allocator import keep_freed_memory
from packhorse.engine.cpu_runner import CpuRunner
from packhorse.engine.cuda_runner import CudaRunner
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.kernels import select
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.kernel_backend import KernelBackend
from packhorse.models.load import load_encoder
from packhorse.tools.bench.programs import Place

FIRST_TOKEN_ONLY = "first-token-only"  # a last layer that computes what is read
FAST_TOKENIZER = "fast-tokenizer"  # nanotoken or gigatoken in place of `tokenizers`
OVERLAP = "overlap"  # tokenising and forming batches while the device works
FUSED_KERNELS = "fused-kernels"  # Triton's in place of their twins in PyTorch; GPU
GRAPHS = "graphs"  # captured forward passes; GPU, and only over fused kernels
PREPACKED_WEIGHTS = "prepacked-weights"  # laid out once as oneDNN reads them; CPU
STREAMS = "streams"  # threads run batches of their own; CPU
ALLOCATOR = "allocator"  # freed memory is kept in the process; CPU

CPU_SWITCHES = (
    *(PREPACKED_WEIGHTS, STREAMS, ALLOCATOR),
    *(FIRST_TOKEN_ONLY, FAST_TOKENIZER, OVERLAP),
)
GPU_SWITCHES = (FUSED_KERNELS, GRAPHS, FIRST_TOKEN_ONLY, FAST_TOKENIZER, OVERLAP)

Runner = CpuRunner | CudaRunner


def resolved(place: Place, off: Collection[str] = ()) -> Config:
    """The settings of a place, every "auto" decided.

    Raises ConfigError for a name that is no optimisation of this kind of device.
    """
    known = CPU_SWITCHES if place.device == "cpu" else GPU_SWITCHES
    for name in off:
        if name not in known:
            raise ConfigError(f"{name!r} is not one of {', '.join(known)}")
    config = Config(
        ModelOptions(
            model_id=place.folder,
            device=place.device,
            dtype=place.dtype,
            tokenizer="tokenizers" if FAST_TOKENIZER in off else "auto",
        ),
        EngineOptions(threads=place.threads, without=tuple(off)),
    )
    return resolve(config, detect())


def load_runner(
    place: Place, checkpoint: Checkpoint, off: Collection[str] = (), max_tokens: int | None = None
) -> Runner:
    """A runner of the engine with every optimisation but those in ``off``."""
    return load_runners(place, checkpoint, 1, off, max_tokens)[0]


def load_runners(
    place: Place,
    checkpoint: Checkpoint,
    count: int,
    off: Collection[str] = (),
    max_tokens: int | None = None,
) -> list[Runner]:
    """Several over one copy of the weights; on a GPU each with a stream and buffers of its own."""
    config = resolved(place, off)
    load = partial(
        load_encoder,
        checkpoint,
        device=torch.device(place.device),
        dtype=getattr(torch, place.dtype),
        first_token_only=FIRST_TOKEN_ONLY not in off,
    )
    budget = config.engine.max_batch_tokens
    tokens = max_tokens or (None if budget == "auto" else int(budget))
    sequences = int(config.engine.max_batch_requests)
    if place.device == "cpu":
        assert tokens is not None
        torch.set_num_threads(place.threads)
        if ALLOCATOR not in off:
            keep_freed_memory()
        model = load(CpuBackend(prepack=PREPACKED_WEIGHTS not in off))
        return [
            CpuRunner(
                model,
                checkpoint.architecture,
                threads=place.threads,
                max_tokens=tokens,
                max_sequences=sequences,
                streams=STREAMS not in off,
            )
            for _ in range(count)
        ]
    torch.cuda.set_device(place.device)
    kernels = select(place.device, fused=FUSED_KERNELS not in off)
    model = load(KernelBackend(kernels))
    return [
        CudaRunner(
            model,
            checkpoint.architecture,
            kernels,
            torch.device(place.device),
            max_tokens=tokens,
            max_sequences=sequences,
            graphs=GRAPHS not in off and kernels.name == "triton",
            overlap=OVERLAP not in off,
        )
        for _ in range(count)
    ]
