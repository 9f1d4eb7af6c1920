"""What the machine does to whoever computes on it: quota, other work, memory nodes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from packhorse.tools.bench.machine_load import Load
from packhorse.tools.doctor.findings import Finding

THROTTLED, BUSY = 0.05, 0.1
"""Share of quota periods that were cut short, and of all cores that others use, that are told."""

CGROUP = Path("/sys/fs/cgroup")
NODES = Path("/sys/devices/system/node")


def periods(cgroup: Path = CGROUP) -> tuple[int, int] | None:
    """Periods of the container's quota so far, and those in which it ran out; None without one.

    See cpu.stat in the kernel's admin-guide/cgroup-v2.rst; v1 has the same words in cpu/cpu.stat.
    """
    for file in (cgroup / "cpu.stat", cgroup / "cpu/cpu.stat"):
        with suppress(OSError, ValueError):
            words = dict(line.split()[:2] for line in file.read_text().splitlines())
            if "nr_periods" in words:
                return int(words["nr_periods"]), int(words["nr_throttled"])
    return None


def throttling(
    start: tuple[int, int] | None, end: tuple[int, int] | None, cores: int
) -> Finding | None:
    """Whether the quota ran out between two readings."""
    if start is None or end is None or end[0] <= start[0]:
        return None
    share = (end[1] - start[1]) / (end[0] - start[0])
    if share < THROTTLED:
        return None
    return Finding(
        id="throttling",
        measured=f"the quota ran out in {share:.0%} of its periods while measuring",
        figure=share,
        unit="share of the quota's periods",
        costs=None,
        change=f"Use at most {cores} computing threads in all of the container's processes, or "
        "raise its CPU limit to a whole number of cores.",
    )


def busy(load: Load | None) -> Finding | None:
    """Whether others took the cores while measuring."""
    if load is None or load.others + load.stolen <= BUSY:
        return None
    taken = load.others + load.stolen
    return Finding(
        id="busy-machine",
        measured=f"other programs took {taken:.0%} of the cores while measuring",
        figure=taken,
        unit="share of all cores",
        costs=None,
        change="Stop the other work, or give this program cores of its own (taskset, cpuset); "
        "figures measured meanwhile are too low.",
    )


def numa(on_gpu: bool, nodes: Path = NODES, cores: set[int] | None = None) -> Finding | None:
    """Whether the cores of this process are of several memory nodes; of no weight with a GPU."""
    if cores is None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    used = [name for name, its in _nodes(nodes).items() if its & cores]
    if on_gpu or len(used) < 2:
        return None
    return Finding(
        id="numa",
        measured=f"the {len(cores)} cores of this process are of {len(used)} memory nodes: a core "
        "reads another node's memory more slowly",
        figure=len(used),
        unit="memory nodes",
        costs=None,
        change="Run one server a node: numactl --cpunodebind=0 --membind=0 packhorse serve …",
    )


def _nodes(folder: Path) -> dict[str, set[int]]:
    """Cores by node: {"node0": {0, 1}}."""
    found = {}
    for node in sorted(folder.glob("node[0-9]*")):
        with suppress(OSError, ValueError):
            found[node.name] = set(_cores((node / "cpulist").read_text().strip()))
    return found


def _cores(text: str) -> list[int]:
    """The numbers that "0-3,8" means."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
