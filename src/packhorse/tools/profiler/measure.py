"""Rounds of passes, watched and not, in turn: what operations take, and what all of it takes."""

from __future__ import annotations

import statistics

import msgspec
import torch

from packhorse.tools.bench.ceilings import Ceilings
from packhorse.tools.bench.ladder import run_now
from packhorse.tools.profiler.roofline import Profile, operations
from packhorse.tools.profiler.subject import Subject


def measure(subject: Subject, rounds: int) -> Profile:
    """The profile of one forward pass."""
    name = str(subject.dtype).removeprefix("torch.")
    threads = torch.get_num_threads()
    ceiling = Ceilings(str(subject.device), [name], threads).measure()[name]
    subject.seconds()
    subject.calls()
    plain, totals, watched = [], [], []
    for _ in range(rounds):
        plain.append(subject.seconds())
        seconds, calls = subject.calls()
        totals.append(seconds)
        watched.append(calls)
    found = operations(watched, ceiling)
    shares = [sum(c.seconds for c in r) / t for r, t in zip(watched, totals, strict=True)]
    return Profile(
        subject={
            "model": subject.checkpoint.model_id,
            "device": str(subject.device),
            "dtype": name,
            "threads": threads,
            "tokens": int(subject.lengths.sum()),
            "sequences": len(subject.lengths),
        },
        seconds=statistics.median(totals),
        plain_seconds=statistics.median(plain),
        accounted=statistics.median(shares),
        ceilings=ceiling,
        operations=found,
        run=msgspec.to_builtins(run_now(threads)),
    )
