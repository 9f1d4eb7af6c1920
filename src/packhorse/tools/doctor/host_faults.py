"""What the CPU suffers from: more threads than cores, and a slow tokenizer."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from packhorse.tools.doctor.findings import Finding, gain

SECONDS = 0.15
"""For which a call is repeated, at least."""

TOKENIZING = 0.4
"""Share of a call's time that tokenizing may take."""


def threads(call: Callable[[], None], texts: int, cores: int) -> Finding | None:
    """Whether torch computes with more threads than there are cores; the cost is measured."""
    number = torch.get_num_threads()
    if number <= cores:
        return None
    many = _seconds(call)
    torch.set_num_threads(cores)
    few = _seconds(call)
    torch.set_num_threads(number)
    return Finding(
        id="threads",
        measured=f"torch computes with {number} threads on {cores} "
        f"usable core{'s' if cores > 1 else ''}",
        figure=number / cores,
        unit="threads a core",
        costs=max(0.0, texts / few - texts / many),
        change=f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores} in the environment: "
        "a container's quota is not what the libraries count.",
    )


def _seconds(call: Callable[[], None]) -> float:
    """The best of some, after one that starts or ends threads."""
    call()
    times: list[float] = []
    while len(times) < 2 or sum(times) < SECONDS:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def tokenizer(share: float, texts_per_second: float) -> Finding | None:
    """``share`` is that of the samples in which a tokenizer was on the stack."""
    if share < TOKENIZING:
        return None
    return Finding(
        id="slow-tokenizer",
        measured=f"{share:.0%} of the time goes into tokenizing",
        figure=share,
        unit="share of the time",
        costs=gain(texts_per_second, share / texts_per_second),
        change="Use a tokenizer in native code (AutoTokenizer of a model with tokenizer.json, or "
        "packhorse.Encoder), give it all texts in one call, and tokenize the next batch while the "
        "model runs this one.",
    )
