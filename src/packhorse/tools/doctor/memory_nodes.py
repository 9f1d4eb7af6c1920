"""Cores of several memory nodes: whether there are, and what it costs to compute across them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packhorse.tools.doctor.findings import Finding

NODES = Path("/sys/devices/system/node")
_TASKS = Path("/proc/self/task")


def own_nodes(nodes: Path = NODES, cores: Collection[int] | None = None) -> list[set[int]]:
    """The cores of this process by memory node, nodes without any left out."""
    if cores is None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return [its & set(cores) for its in _nodes(nodes) if its & set(cores)]


def numa(
    nodes: list[set[int]], texts_per_second: float, on_one: Callable[[set[int]], float]
) -> Finding | None:
    """Whether there are several nodes, and what a server for each would bring.

    on_one  texts/s of a program that is loaded and run on these cores alone
    """
    if len(nodes) < 2:
        return None
    smallest = min(nodes, key=len)
    apart = on_one(smallest) * sum(map(len, nodes)) / len(smallest)
    return Finding(
        id="numa",
        measured=f"the {sum(map(len, nodes))} cores of this process are of {len(nodes)} memory "
        "nodes: a core reads another node's memory more slowly",
        figure=len(nodes),
        unit="memory nodes",
        costs=max(0.0, apart - texts_per_second),
        change="Run one server a node: numactl --cpunodebind=0 --membind=0 packhorse serve …",
    )


@contextmanager
def held_to(cores: Collection[int]) -> Iterator[None]:
    """All threads of this process, and those that they start, on these cores alone.

    Memory that is touched first within the block is the node's of these cores.
    """
    before = _set_affinity({thread: set(cores) for thread in _threads()})
    try:
        yield
    finally:
        whole = set().union(*before.values()) or set(cores)
        _set_affinity({thread: before.get(thread, whole) for thread in _threads()})


def _threads() -> list[int]:
    return [int(task.name) for task in _TASKS.iterdir()]


def _set_affinity(wanted: dict[int, set[int]]) -> dict[int, set[int]]:
    """What each thread had before; one that has ended meanwhile is left out."""
    before = {}
    for thread, cores in wanted.items():
        with suppress(ProcessLookupError):
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cores)
    return before


def _nodes(folder: Path) -> list[set[int]]:
    """The cores of each node."""
    found = []
    for node in sorted(folder.glob("node[0-9]*")):
        with suppress(OSError, ValueError):
            found.append(set(_cores((node / "cpulist").read_text().strip())))
    return found


def _cores(text: str) -> list[int]:
    """The numbers that "0-3,8" means."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
