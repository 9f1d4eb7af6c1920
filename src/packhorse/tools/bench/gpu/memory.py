"""What the engine takes of the GPU's memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from packhorse.engine.cuda_runner import CudaRunner
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.gpu.steady import gpu_seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, after full batches of ``batch_tokens`` tokens ran.

    reserved    most that PyTorch took, graphs and buffers included
    allocated   most that tensors held at once
    device      in use on the whole GPU, CUDA's own context included; ``device_by`` says who counts
    """

    batch_tokens: int
    reserved: int
    allocated: int
    device: int
    device_by: str


def measure_memory(material: Material) -> Memory:
    """Of one engine alone in this process."""
    torch.cuda.set_device(material.plan.device)
    torch.cuda.reset_peak_memory_stats(material.plan.device)
    runner = material.runner
    gpu_seconds(runner, list(material.batches.batches(material.sequences))[:8])
    used, by = _in_use(material.plan.device)
    return Memory(
        batch_tokens=runner.buffer_tokens if isinstance(runner, CudaRunner) else runner.max_tokens,
        reserved=torch.cuda.max_memory_reserved(material.plan.device),
        allocated=torch.cuda.max_memory_allocated(material.plan.device),
        device=used,
        device_by=by,
    )


def _in_use(device: str) -> tuple[int, str]:
    """By NVML where its Python package is installed, else by the CUDA driver."""
    if find_spec("pynvml") is not None:
        import pynvml

        try:
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), "NVML"
        except pynvml.NVMLError as error:
            logger.warning("NVML does not say what the GPU holds: %s", error)
    free, total = torch.cuda.mem_get_info(device)
    return total - free, "CUDA driver"
