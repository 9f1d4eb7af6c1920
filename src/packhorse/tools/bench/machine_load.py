"""How busy the machine is with other work, from /proc/stat (Linux; see proc(5))."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.1
"""A sample counts as quiet while others use at most this share of the cores."""

SETTLE_SECONDS = 0.2
"""How long the machine is watched before each sample, while no program of ours runs."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds summed over all cores since the start of the machine, and the clock.

    busy    user, nice, system, interrupts
    stolen  a hypervisor gave to other machines
    """

    busy: float
    stolen: float
    clock: float
    cores: int


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of all cores: used by others, and withheld by the hypervisor."""

    others: float
    stolen: float

    @property
    def is_quiet(self) -> bool:
        return self.others <= QUIET and self.stolen <= QUIET


def read(stat: Path = Path("/proc/stat"), pinned: Collection[int] | None = None) -> CpuTimes | None:
    """The counters now; None where there are none, or where they count cores that are not ours.

    pinned  numbers of the cores that all our programs are held to: theirs alone are counted,
            since whoever else is busy there takes from us

    In a container on a larger host the file shows the whole host: others may
    be busy there without taking anything from us.
    """
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    of_core = {line.split()[0]: line for line in lines if line.startswith("cpu")}
    if pinned is not None:
        names = {f"cpu{number}" for number in pinned}
        if not names <= of_core.keys():
            return None
        return _summed([of_core[name] for name in names], len(names))
    cores = len(of_core) - 1
    if cores < 1 or cores != len(os.sched_getaffinity(0)):
        return None
    return _summed([of_core["cpu"]], cores)


def _summed(lines: list[str], cores: int) -> CpuTimes:
    """The times of these lines of /proc/stat, which stand for so many cores."""
    busy = stolen = 0
    for line in lines:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, line.split()[1:9])
        busy += user + nice + system + irq + softirq
        stolen += steal
    tick = os.sysconf("SC_CLK_TCK")
    return CpuTimes(busy / tick, stolen / tick, time.monotonic(), cores)


def between(start: CpuTimes | None, end: CpuTimes | None, ours: float) -> Load | None:
    """The load from ``start`` to ``end``, less ``ours``: CPU seconds of the program measured."""
    if start is None or end is None or end.clock <= start.clock:
        return None
    available = (end.clock - start.clock) * end.cores
    return Load(
        max(0.0, end.busy - start.busy - ours) / available, (end.stolen - start.stolen) / available
    )


def before(pinned: Collection[int] | None = None) -> Load | None:
    """The load of the next SETTLE_SECONDS."""
    start = read(pinned=pinned)
    time.sleep(SETTLE_SECONDS)
    return between(start, read(pinned=pinned), 0.0)
