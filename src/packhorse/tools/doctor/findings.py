"""What an examination finds: named faults, each with a measured figure, its cost and its remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
"""Of the JSON; it is raised when a key changes its meaning or goes."""

IDS = {
    "single-text-batches": "one text a forward pass",
    "fixed-padding": "texts padded beyond the longest of their batch",
    "fp32": "float32 on a chip that multiplies a half type faster",
    "blocking-copies": "results copied back one by one, the device waiting each time",
    "launch-overhead": "a device that waits for the CPU to launch its kernels",
    "memory-growth": "memory that grows from call to call",
    "fragmentation": "device memory in pieces that fit nobody, or asked for anew at every call",
    "threads": "more computing threads than cores",
    "slow-tokenizer": "more time for tokenizing than a model deserves",
    "throttling": "the container's quota of cores is used up before its period ends",
    "busy-machine": "other programs take the cores",
    "numa": "cores of several memory nodes",
}
"""Every finding there is, and what it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    id        one of IDS
    measured  the figure in a sentence
    figure    the same as a number, in ``unit``
    costs     texts/s that are lost to it now: measured by doing the same without it where that
              can be done, else from the time that it was seen to take
    change    what to do
    where     lines of code, innermost first: "predict.py:12 in predict"
    """

    id: str
    measured: str
    figure: float
    unit: str
    costs: float
    change: str
    where: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was looked at, how fast it is, and what is wrong with it.

    subject           the script and its callable, or the model
    texts_per_second  as it is, nothing attached to it
    seen              what the examination saw: forward passes, devices, types, threads
    not_examined      what could not be looked at, and why
    """

    subject: str
    texts: int
    texts_per_second: float
    seen: dict[str, Any]
    findings: list[Finding]
    not_examined: list[str] = field(default_factory=list)
    format: int = FORMAT


def gain(texts_per_second: float, saved: float, most: float = 0.95) -> float:
    """Texts/s more when ``saved`` seconds a text are saved.

    A saving that was measured apart, at a moment when the machine was slower, can come out larger
    than what there is. So it is at most the share ``most`` of the time: that of the part which was
    run with and without the fault, at one moment, and never more than nineteen twentieths.
    """
    now = 1 / texts_per_second
    return 1 / (now - min(max(saved, 0.0), min(most, 0.95) * now)) - texts_per_second
