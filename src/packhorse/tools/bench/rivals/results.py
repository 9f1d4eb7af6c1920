"""What a comparison of engines leaves behind: the JSON file, as classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from packhorse.tools.bench.agreement import Agreement
from packhorse.tools.bench.results import DISAGREES, FAILED, Run, Sample

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration.

    status, fault     how it ended, and why if not well
    note              what it says of itself: conversion, streams, texts a batch
    has_amx           whether the kernel granted AMX to its process; None: unknown
    texts             a round; fewer than there are for naive alone, whose time is scaled up
    texts_per_second  median of the samples that count (see bench/summary.py)
    noisy             fewer than half of the samples were quiet, so all count
    vs_naive          times faster, median of the ratios round by round
    peak_bytes        resident memory of the process
    """

    name: str
    change: str
    status: str
    fault: str | None = None
    dtype: str | None = None
    note: str | None = None
    has_amx: bool | None = None
    ready_seconds: float | None = None
    texts: int = 0
    texts_per_second: float = 0.0
    noisy: bool = False
    vs_naive: float | None = None
    peak_bytes: int = 0
    agreement: Agreement | None = None
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours against the fastest of a group of rivals.

    rival    the one with the highest median rate
    rounds   times faster, round by round; ratio is their median
    """

    ours: str
    group: str
    rival: str
    ratio: float
    rounds: list[float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The file.

    cores   numbers of those that all were held to
    no_amx  whether AMX was kept from all
    """

    format: int
    run: Run
    model: str
    model_note: str
    threads: int
    cores: list[int]
    no_amx: bool
    rounds: int
    texts: int
    tokens: int
    workload: str
    reference: str
    spread: float
    entries: list[Entry]
    ratios: list[Ratio]

    @property
    def failures(self) -> list[Entry]:
        """Those of ours that disagreed, and whatever broke down."""
        return [
            entry
            for entry in self.entries
            if entry.status == FAILED
            or (entry.status == DISAGREES and entry.name.startswith("packhorse"))
        ]


def write(comparison: Comparison, path: Path) -> None:
    """The JSON file, indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
