"""Which cores a run is held to: so many, of one node, no two of them one core's two threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packhorse.errors import ConfigError
from packhorse.tools.bench import machine_load

_WATCH_SECONDS = 0.5
_SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Core:
    """A processor as Linux numbers them.

    siblings  numbers of those that share the physical core with it
    package   of the chip it is on
    busy      share of the time that it was busy just now
    """

    number: int
    siblings: frozenset[int]
    package: int
    busy: float = 0.0


def pin(count: int, named: str | None) -> tuple[int, ...]:
    """Hold this process and those it starts to ``count`` cores: those named, or the idlest.

    Raises ConfigError when there are not so many.
    """
    numbers = chosen(_watched(), count) if named is None else _named(named, count)
    os.sched_setaffinity(0, numbers)
    return numbers


def chosen(cores: Iterable[Core], count: int) -> tuple[int, ...]:
    """The idlest on one chip, where the idlest chip is taken; threads of one core only at last.

    Raises ConfigError when there are fewer.
    """
    by_package: dict[int, list[Core]] = {}
    for core in cores:
        by_package.setdefault(core.package, []).append(core)
    options = [_idlest(package, count) for package in by_package.values()]
    enough = [option for option in options if len(option) == count]
    if not enough:
        most = max((len(option) for option in options), default=0)
        raise ConfigError(f"--threads {count}: no chip has so many cores for us, at most {most}")
    best = min(enough, key=lambda option: sum(core.busy for core in option))
    return tuple(sorted(core.number for core in best))


def _idlest(cores: list[Core], count: int) -> list[Core]:
    # Steps of a tenth: whoever did less than that just now is as idle as any other.
    order = sorted(cores, key=lambda core: (round(core.busy, 1), core.number))
    taken: list[Core] = []
    second: list[Core] = []
    for core in order:
        shares = any(core.number in other.siblings for other in taken)
        (second if shares else taken).append(core)
    return [*taken, *second][:count]


def _named(named: str, count: int) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in named.split(",")}))
    except ValueError:
        raise ConfigError(f"--cores {named}: write numbers, for example 0,1") from None
    if len(numbers) != count:
        raise ConfigError(f"--cores {named}: name as many as --threads says, {count}")
    foreign = set(numbers) - os.sched_getaffinity(0)
    if foreign:
        raise ConfigError(f"--cores {named}: this process may not use {sorted(foreign)}")
    return numbers


def _watched() -> list[Core]:
    """Every core that this process may use."""
    numbers = sorted(os.sched_getaffinity(0))
    first = {number: machine_load.read(pinned=[number]) for number in numbers}
    time.sleep(_WATCH_SECONDS)
    cores = []
    for number in numbers:
        load = machine_load.between(first[number], machine_load.read(pinned=[number]), 0.0)
        busy = 0.0 if load is None else load.others + load.stolen
        cores.append(Core(number, _siblings(number), _package(number), busy))
    return cores


def _siblings(number: int) -> frozenset[int]:
    """From a list such as 0,64 or 0-1; itself alone where that is not told."""
    try:
        text = (_SYSTEM / f"cpu{number}/topology/thread_siblings_list").read_text()
    except OSError:
        return frozenset((number,))
    numbers: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    return frozenset(numbers)


def _package(number: int) -> int:
    try:
        return int((_SYSTEM / f"cpu{number}/topology/physical_package_id").read_text())
    except OSError:
        return 0
