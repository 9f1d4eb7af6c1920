"""What a GPU's bus and driver cost: copies, launches and waits, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

COPIED = 64 << 20
"""Bytes: far more than what a copy costs at its start."""

_REPEATS = 100


def gpu_facts(device: torch.device) -> dict[str, float]:
    """Bytes/s of copies from pinned and from pageable memory and back; µs of small things."""
    pageable, on_device = (
        torch.zeros(COPIED, dtype=torch.uint8),
        torch.zeros(COPIED, dtype=torch.uint8, device=device),
    )
    pinned = pageable.pin_memory()
    small, number = torch.zeros(16, device=device), torch.zeros((), device=device)

    def seconds(operation: Callable[[], object], repeats: int) -> float:
        operation()
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        for _ in range(repeats):
            operation()
        torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / repeats

    return {
        "pinned_to_device_bytes_per_second": COPIED / seconds(lambda: on_device.copy_(pinned), 5),
        "pageable_to_device_bytes_per_second": COPIED
        / seconds(lambda: on_device.copy_(pageable), 5),
        "device_to_pinned_bytes_per_second": COPIED / seconds(lambda: pinned.copy_(on_device), 5),
        "launch_us": 1e6 * seconds(lambda: small.add_(1), _REPEATS),
        "blocking_copy_us": 1e6 * seconds(number.item, _REPEATS),
    }
