"""From a resolved config and a checkpoint to a runner that is ready to be warmed up."""

from __future__ import annotations

import importlib.metadata
import logging
import time
from functools import partial
from typing import Any

import torch

from packhorse.checkpoint import Checkpoint
from packhorse.config import AUTO, Config
from packhorse.engine.cpu_allocator import keep_freed_memory
from packhorse.engine.cpu_runner import CpuRunner
from packhorse.engine.cuda_runner import CudaRunner
from packhorse.engine.load_int8 import load_in_8_bits
from packhorse.engine.model_runner import ModelRunner
from packhorse.errors import DeviceError
from packhorse.hardware import Hardware, detect
from packhorse.kernels import select
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.fallback import load_fallback
from packhorse.models.int8 import can_quantise
from packhorse.models.kernel_backend import KernelBackend
from packhorse.models.load import load_encoder

logger = logging.getLogger(__name__)

WIDER = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float32}
"""The type in which a sequence is computed again whose output is not finite: bfloat16 has
float32's range, and where that is not enough float32 has more room in sums."""


FALLBACK_TOKENS = 8192
"""In a batch of a model without a packed path on a GPU, where no graph tells the best size."""


def load_runner(
    config: Config, checkpoint: Checkpoint, *, notify: bool
) -> tuple[ModelRunner, dict[str, Any]]:
    """The runner of this checkpoint on this device, and what ``/info`` says of it.

    ``notify``: have a completion_fd even where polling would be quicker.
    Raises CheckpointError or DeviceError.
    """
    device = torch.device(config.model.device)
    dtype = resolve_dtype(config.model.dtype, device, checkpoint, detect())
    started = time.monotonic()
    runner: ModelRunner
    about: dict[str, Any] = {}
    if not checkpoint.is_packed:
        runner, about = _fallback_runner(config, checkpoint, device, dtype)
        kernels = "transformers"
    elif device.type == "cuda":
        runner, kernels = _cuda_runner(config, checkpoint, device, dtype, notify)
    else:
        runner, kernels = _cpu_runner(config, checkpoint, dtype), "pytorch"
    seconds = time.monotonic() - started
    logger.info("loaded %s in %s on %s in %.2f s", checkpoint.model_id, dtype, device, seconds)
    return runner, {
        "model_id": checkpoint.model_id,
        "device": str(device),
        "device_name": device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": kernels,
        "max_batch_tokens": runner.max_tokens,
        "max_batch_requests": runner.max_sequences,
        "threads": config.engine.threads,
        **about,
    }


def resolve_dtype(
    wanted: str, device: torch.device, checkpoint: Checkpoint, hardware: Hardware
) -> torch.dtype:
    """The type of weights and activations.

    Raises DeviceError for a type that the device does not compute in.
    """
    if wanted == AUTO and not checkpoint.is_packed:
        return torch.float32  # not every operation of every family has another
    if device.type == "cpu":
        if wanted == "float16":
            raise DeviceError(
                "--dtype float16 is for GPUs: CPUs compute it slowly and it overflows; "
                "use bfloat16, float32 or auto"
            )
        if wanted == AUTO:
            wanted = "bfloat16" if hardware.native_bfloat16 else "float32"
        if wanted == "int8" and not checkpoint.is_packed:
            raise DeviceError(
                f"--dtype int8 is for families with a packed path, and "
                f"{checkpoint.architecture.family} has none: use auto"
            )
        if wanted == "int8" and not can_quantise():
            raise DeviceError(
                "--dtype int8 needs oneDNN's products of bytes, which this build of PyTorch has "
                "not: use auto"
            )
    elif wanted == "int8":
        raise DeviceError("--dtype int8 is for CPUs: use float16, bfloat16, float32 or auto")
    elif wanted == AUTO:
        stored = checkpoint.architecture.torch_dtype
        wanted = stored if stored in ("float16", "bfloat16") else "float16"
    dtype = getattr(torch, wanted)
    assert isinstance(dtype, torch.dtype)
    return dtype


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _cpu_runner(config: Config, checkpoint: Checkpoint, dtype: torch.dtype) -> CpuRunner:
    threads, off = int(config.engine.threads), config.engine.without
    torch.set_num_threads(threads)  # loading converts weights in this thread
    if "allocator" not in off:
        keep_freed_memory()
    prepack, first_token_only = "prepacked-weights" not in off, "first-token-only" not in off
    if dtype is torch.int8:
        model = load_in_8_bits(
            checkpoint, detect(), prepack=prepack, first_token_only=first_token_only
        )
    else:
        model = load_encoder(
            checkpoint,
            CpuBackend(prepack=prepack),
            torch.device("cpu"),
            dtype,
            first_token_only=first_token_only,
        )
    return CpuRunner(
        model,
        checkpoint.architecture,
        threads=threads,
        max_tokens=int(config.engine.max_batch_tokens),
        max_sequences=int(config.engine.max_batch_requests),
        streams="streams" not in off,
    )


def _fallback_runner(
    config: Config, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> tuple[CpuRunner, dict[str, Any]]:
    """Transformers' own model in a thread of the CPU's runner, whatever the device."""
    if device.type == "cuda":
        probe_cuda(device)
    model = load_fallback(checkpoint, device, dtype)
    version = f"transformers {importlib.metadata.version('transformers')}"
    logger.warning(
        "%s: there is no packed path for %s: it runs padded, through %s, and slower",
        checkpoint.model_id,
        checkpoint.architecture.family,
        version,
    )
    budget = config.engine.max_batch_tokens
    runner = CpuRunner(
        model,
        checkpoint.architecture,
        threads=int(config.engine.threads),
        max_tokens=FALLBACK_TOKENS if budget == AUTO else int(budget),
        max_sequences=int(config.engine.max_batch_requests),
        streams=False,  # nobody says that such a model may be called by several threads
        buckets=False,
    )
    return runner, {"fallback": version}


def _cuda_runner(
    config: Config,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    notify: bool,
) -> tuple[CudaRunner, str]:
    probe_cuda(device)
    off, budget = config.engine.without, config.engine.max_batch_tokens
    kernels = select(device, fused="fused-kernels" not in off)
    load = partial(
        load_encoder,
        checkpoint,
        KernelBackend(kernels),
        device,
        first_token_only="first-token-only" not in off,
    )
    runner = CudaRunner(
        load(dtype),
        checkpoint.architecture,
        kernels,
        device,
        max_tokens=None if budget == AUTO else int(budget),
        max_sequences=int(config.engine.max_batch_requests),
        load_wider=partial(load, WIDER[dtype]) if dtype in WIDER else None,
        # The twins ask the device for sizes, which no graph may.
        graphs="graphs" not in off and kernels.name == "triton",
        overlap="overlap" not in off,
        notify=notify,
    )
    return runner, kernels.name


def probe_cuda(device: torch.device) -> None:
    """Have it add up some numbers, so that an unusable GPU is found at once and by its name.

    Not a matrix product: cuBLAS would keep 32 MiB for the stream that it was done on.

    Raises DeviceError.
    """
    try:
        torch.cuda.set_device(device)
        usable = int(torch.ones(256, device=device).sum()) == 256
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(f"{device} is not usable: {error}") from error
    if not usable:
        raise DeviceError(f"{device} adds up wrongly: the GPU or its driver is faulty")
