"""A GPU's memory in PyTorch's allocator: pieces that fit nobody, and new segments at every call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from packhorse.tools.doctor.findings import Finding, gain

SPLIT, LEAST = 0.25, 256 << 20
"""Share of the reserved memory, and bytes, that may lie in free pieces of segments in use."""

CALLS = 4
"""Equal calls; a segment that is asked for at every one of them is not the first use of a size."""

_PROBE = 64 << 20
"""Bytes of the segment whose allocation is timed."""


def examine(
    call: Callable[[], None], texts: int, texts_per_second: float, device: torch.device
) -> tuple[Finding | None, dict[str, float]]:
    """The finding, and what was seen. Needs a GPU.

    call  answers ``texts`` texts
    """
    call()
    before = torch.cuda.memory_stats(device)
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    seen = figures(before, after)
    asked = seen["device_segments_a_call"]
    seconds = asked * _segment_seconds(device) / texts if asked else 0.0
    return finding(seen, gain(texts_per_second, seconds)), seen


def figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """From two answers of ``torch.cuda.memory_stats`` with CALLS calls in between.

    device_reserved_bytes   that the allocator took from the driver
    device_split_bytes      of these, free pieces of segments that are partly in use: too small
                            for what is asked for, and impossible to give back
    device_segments_a_call  times that the driver was asked for more, which stops the device
    """
    segments = "segment.all.allocated"
    return {
        "device_reserved_bytes": after.get("reserved_bytes.all.current", 0),
        "device_split_bytes": after.get("inactive_split_bytes.all.current", 0),
        "device_segments_a_call": (after.get(segments, 0) - before.get(segments, 0)) / CALLS,
    }


def finding(seen: Mapping[str, float], costs: float) -> Finding | None:
    """What ``figures`` say; ``costs`` are those of asking the driver for segments."""
    reserved, split = seen["device_reserved_bytes"], seen["device_split_bytes"]
    asked = seen["device_segments_a_call"]
    share = split / reserved if reserved else 0.0
    if asked < 1 and (share < SPLIT or split < LEAST):
        return None
    return Finding(
        id="fragmentation",
        measured=f"{share:.0%} of the {reserved / 1e6:,.0f} MB that are reserved on the GPU lie in "
        f"free pieces between others, and the driver is asked for {asked:.1f} new segments a call",
        figure=share,
        unit="share of the reserved memory",
        costs=costs,
        change="Allocate buffers once, for the largest batch, and reuse them; or let segments "
        "grow: PYTORCH_ALLOC_CONF=expandable_segments:True.",
    )


def _segment_seconds(device: torch.device) -> float:
    """Of one allocation that the driver is asked for."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    started = time.perf_counter()
    torch.empty(_PROBE, dtype=torch.uint8, device=device)
    torch.cuda.synchronize(device)
    return time.perf_counter() - started
