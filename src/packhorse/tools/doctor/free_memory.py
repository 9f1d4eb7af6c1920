"""How much memory a program can still take, and how long that lasts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
_SPANS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


def free_bytes(on_gpu: bool, cgroup: Path = CGROUP) -> int:
    """Bytes that are free: of the current GPU, or of the host within the container's limit."""
    if on_gpu:
        return int(torch.cuda.mem_get_info()[0])
    rooms = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        rooms = [int(available.split()[1]) * 1024]
    with suppress(OSError, ValueError):  # "max" is no number: no limit
        limit = int((cgroup / "memory.max").read_text())
        rooms.append(limit - int((cgroup / "memory.current").read_text()))
    return max(0, min(rooms))


def how_long(seconds: float) -> str:
    """In the largest unit of which there are two: "3 hours"; whole numbers."""
    for length, name in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {name}"
    return f"{seconds:,.0f} seconds"
