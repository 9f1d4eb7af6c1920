"""What a GPU did during a call: kernels, launches and copies back, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """busy: seconds in which at least one kernel or copy ran; launches: kernels that the CPU
    launched one by one (those of a captured graph are one launch, and not counted);
    copies_back: copies from the device to the host."""

    busy: float
    launches: int
    copies_back: int


def trace(call: Callable[[], None]) -> DeviceTrace:
    """Run it once under the profiler."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    spans, launches, copies_back = [], 0, 0
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA:
            spans.append((event.time_range.start, event.time_range.end))
            copies_back += event.name.startswith("Memcpy DtoH")
        launches += event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
    return DeviceTrace(_covered(spans) / 1e6, launches, copies_back)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
