"""The lines of the table, and when one holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packhorse.errors import ConfigError
from packhorse.request import Float32Array
from packhorse.tools.bench.results import Run

RELATIVE = 1e-5
"""float32: the largest error, as a share of the largest number of the reference."""

RMS, LARGEST = 1.1, 1.5
"""Half types: our errors against float32, as multiples of Transformers' own in that type."""


@dataclass(frozen=True, slots=True)
class Line:
    """One family, problem, device and type; numbers are None where they could not be had.

    relative  largest error against float32, as a share of the reference's largest number
    rms, largest                of our errors against Transformers in float32 on the same device
    their_rms, their_largest    of Transformers' in the same type; None for float32
    fault     what is wrong; None: the line holds
    """

    task: str
    family: str
    problem: str
    device: str
    dtype: str
    texts: int
    relative: float | None = None
    rms: float | None = None
    largest: float | None = None
    their_rms: float | None = None
    their_largest: float | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault that was planted on purpose, and what the check then said; None: it saw nothing."""

    name: str
    device: str
    relative: float | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class Worst:
    """Of several lines of one device and type.

    hold                      how many of the ``lines`` hold
    relative_millionths       the largest ``relative``, in millionths
    rms_ratio, largest_ratio  the largest of our errors over Transformers' own; half types only
    """

    lines: int
    hold: int
    relative_millionths: float | None
    rms_ratio: float | None
    largest_ratio: float | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The file; ``worst`` is what documents quote: by family and for "all", by device and type."""

    format: int
    run: Run
    texts: int
    note: str
    seconds: float
    limits: dict[str, float]
    lines: list[Line]
    planted: list[Planted]
    worst: dict[str, dict[str, Worst]]

    @property
    def failures(self) -> list[str]:
        """Lines that do not hold, and planted faults that nobody saw."""
        lines = [
            f"{line.family}, {line.problem}, {line.dtype} on {line.device}: {line.fault}"
            for line in self.lines
            if line.fault is not None
        ]
        unseen = [
            f"planted on {planted.device} and not seen: {planted.name}"
            for planted in self.planted
            if planted.fault is None
        ]
        return lines + unseen


@dataclass(frozen=True, slots=True)
class Errors:
    """Of some answers against the reference in float32: the largest, its share, and the RMS."""

    largest: float
    relative: float
    rms: float

    @classmethod
    def of(cls, answers: Float32Array, reference: Float32Array) -> Errors:
        """Raises ConfigError when the shapes differ."""
        if answers.shape != reference.shape:
            raise ConfigError(f"answers of shape {answers.shape} instead of {reference.shape}")
        error = answers.astype(np.float64) - reference
        largest = float(np.abs(error).max())
        return cls(
            largest, largest / float(np.abs(reference).max()), float(np.sqrt((error**2).mean()))
        )


def verdict(ours: Errors, theirs: Errors | None) -> str | None:
    """What is wrong; ``theirs`` is None in float32. Turned around, so that NaN is a fault."""
    if theirs is None:
        if not ours.relative <= RELATIVE:
            return f"{ours.relative:.1e} of the largest logit away, more than {RELATIVE:.0e}"
        return None
    if not ours.rms <= RMS * theirs.rms:
        return f"RMS {ours.rms / theirs.rms:.2f}x Transformers' own, more than {RMS}x"
    if not ours.largest <= LARGEST * theirs.largest:
        return (
            f"largest {ours.largest / theirs.largest:.2f}x Transformers' own, more than {LARGEST}x"
        )
    return None


def worst_of(lines: list[Line]) -> dict[str, dict[str, Worst]]:
    """By family and for "all", by device and type ("cpu_float32"): the worst of each number."""
    groups: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        kind = f"{line.device.partition(':')[0]}_{line.dtype}"
        for name in ("all", line.family):
            groups.setdefault(name, {}).setdefault(kind, []).append(line)
    return {
        name: {kind: _worst(group) for kind, group in kinds.items()}
        for name, kinds in groups.items()
    }


def _worst(lines: list[Line]) -> Worst:
    rms = [line.rms / line.their_rms for line in lines if line.rms and line.their_rms]
    largest = [
        line.largest / line.their_largest for line in lines if line.largest and line.their_largest
    ]
    relative = [line.relative for line in lines if line.relative is not None]
    return Worst(
        lines=len(lines),
        hold=sum(line.fault is None for line in lines),
        relative_millionths=1e6 * max(relative) if relative else None,
        rms_ratio=max(rms, default=None),
        largest_ratio=max(largest, default=None),
    )
