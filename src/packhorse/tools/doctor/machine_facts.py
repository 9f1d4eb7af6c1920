"""What the machine takes from whoever computes on it: a quota that runs out, and other work."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packhorse.tools.bench.machine_load import Load
from packhorse.tools.doctor.findings import Finding, gain

THROTTLED, BUSY = 0.05, 0.1
"""Share of quota periods that were cut short, and of all cores that others use, that are told."""

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Quota:
    """What became of the container's quota of cores so far.

    periods    that the quota was dealt out for
    throttled  those in which it ran out
    waited     seconds for which cores then stood still, all of them added up
    clock      seconds, when this was read
    """

    periods: int
    throttled: int
    waited: float
    clock: float


def quota(cgroup: Path = CGROUP) -> Quota | None:
    """The counters now; None without a quota.

    See cpu.stat in the kernel's admin-guide/cgroup-v2.rst; v1 has the same words in cpu/cpu.stat,
    but nanoseconds in ``throttled_time``.
    """
    for file in (cgroup / "cpu.stat", cgroup / "cpu/cpu.stat"):
        with suppress(OSError, ValueError):
            words = dict(line.split()[:2] for line in file.read_text().splitlines())
            if "nr_periods" in words:
                waited = int(words.get("throttled_usec", 0)) / 1e6
                waited += int(words.get("throttled_time", 0)) / 1e9
                counted = int(words["nr_periods"]), int(words["nr_throttled"])
                return Quota(*counted, waited, time.monotonic())
    return None


def throttling(
    start: Quota | None, end: Quota | None, cores: int, texts_per_second: float
) -> Finding | None:
    """Whether the quota ran out between two readings.

    The cost is the time for which ``cores`` cores stood still meanwhile.
    """
    if start is None or end is None or end.periods <= start.periods:
        return None
    share = (end.throttled - start.throttled) / (end.periods - start.periods)
    if share < THROTTLED:
        return None
    lost = (end.waited - start.waited) / (cores * max(end.clock - start.clock, 1e-9))
    return Finding(
        id="throttling",
        measured=f"the quota ran out in {share:.0%} of its periods while measuring; cores then "
        f"stood still for {min(lost, 1.0):.0%} of the time",
        figure=share,
        unit="share of the quota's periods",
        costs=gain(texts_per_second, lost / texts_per_second),
        change=f"Use at most {cores} computing threads in all of the container's processes, or "
        "raise its CPU limit to a whole number of cores.",
    )


def busy(load: Load | None, threads: int, cores: int, texts_per_second: float) -> Finding | None:
    """Whether others took the cores while measuring.

    The cost is the share of what ``threads`` threads need that the others left them without.
    """
    if load is None or load.others + load.stolen <= BUSY:
        return None
    taken = load.others + load.stolen
    needed = min(threads, cores)
    lost = max(0.0, needed - (1 - taken) * cores) / needed
    return Finding(
        id="busy-machine",
        measured=f"other programs took {taken:.0%} of the cores while measuring",
        figure=taken,
        unit="share of all cores",
        costs=gain(texts_per_second, lost / texts_per_second),
        change="Stop the other work, or give this program cores of its own (taskset, cpuset); "
        "figures measured meanwhile are too low.",
    )
