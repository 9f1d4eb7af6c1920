"""Operations against the roofline: how long each takes, and how long it would at least.

An operation of F FLOPs and B bytes takes at least max(F / f, B / b) on a device
that does f FLOP/s and moves b bytes/s (Williams, Waterman and Patterson,
Roofline, CACM 2009). f and b are measured here, beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.profiler.watched_backend import OperationCall

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one operation with one shape in a forward pass.

    bound     "compute" or "memory": which of the two floors is higher
    roofline  the share of the time that the device would need at least; above 1 where what is
              moved stays in a cache
    """

    name: str
    calls: int
    seconds: float
    flops: int
    bytes: int
    bound: str
    roofline: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A forward pass, operation by operation.

    seconds        of a watched pass, from its beginning to its end, the median of some
    plain_seconds  of a pass with nothing attached to it
    accounted      the operations' seconds together, as a share of their pass's
    ceilings       FLOP/s of a product and bytes/s of a copy on this device, in this type
    """

    subject: dict[str, Any]
    seconds: float
    plain_seconds: float
    accounted: float
    ceilings: Ceiling
    operations: list[Operation]
    files: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def operations(rounds: Sequence[Sequence[OperationCall]], ceiling: Ceiling) -> list[Operation]:
    """The operations of a pass, the longest first; each time is the median of the rounds."""
    names = list(dict.fromkeys(call.name for call in rounds[0]))
    found = [_operation(name, rounds, ceiling) for name in names]
    return sorted(found, key=lambda operation: -operation.seconds)


def _operation(name: str, rounds: Sequence[Sequence[OperationCall]], ceiling: Ceiling) -> Operation:
    calls = [call for call in rounds[0] if call.name == name]
    flops, moved = sum(c.flops for c in calls), sum(c.bytes for c in calls)
    seconds = statistics.median(sum(c.seconds for c in r if c.name == name) for r in rounds)
    compute, memory = flops / ceiling.flops, moved / ceiling.bytes
    return Operation(
        name=name,
        calls=len(calls),
        seconds=seconds,
        flops=flops,
        bytes=moved,
        bound="compute" if compute >= memory else "memory",
        roofline=max(compute, memory) / seconds,
    )
