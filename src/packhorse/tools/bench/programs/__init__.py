"""The programs that are compared: strings in, scores out, each as its user would write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize


@dataclass(frozen=True, slots=True)
class Place:
    """What a program loads, and where it runs: torch's names of device and type."""

    folder: str
    device: str
    dtype: str
    threads: int


class Program(Protocol):
    """One rung at work.

    dtype  the type it computes in
    """

    @property
    def dtype(self) -> str: ...

    def predict(self, texts: list[str]) -> Float32Array | list[float]:
        """What is timed: scores (N, labels), or the probability of label 1 of each text."""

    def logits(self, texts: list[str]) -> Float32Array:
        """The logits behind those scores, (N, labels), by the same path; not timed."""

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        """What ``predict`` multiplies for texts of these lengths, padding included."""

    def close(self) -> None: ...


Builder = Callable[[Place, tuple[str, ...]], Program]
"""Loads a program; the names are of optimisations that stay off, where it is ours."""


def builder(name: str) -> Builder:
    """How a program is loaded, by its name in the table of rungs. Imports what it needs."""
    if name == "naive":
        from packhorse.tools.bench.programs.naive import Naive

        return lambda place, off: Naive(place)
    if name == "batched":
        from packhorse.tools.bench.programs.batched import Batched

        return lambda place, off: Batched(place)
    if name in ("sorted", "compile"):
        from packhorse.tools.bench.programs.length_sorted import LengthSorted

        return lambda place, off: LengthSorted(place, compiled=name == "compile")
    if name == "packed":
        from packhorse.tools.bench.programs.packed import Packed

        return Packed
    from packhorse.tools.bench.programs.public_encoder import PublicEncoder

    return lambda place, off: PublicEncoder(place)
