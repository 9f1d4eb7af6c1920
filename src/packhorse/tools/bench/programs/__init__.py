"""The programs that are compared: strings in, scores out, each as its user would write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize


@dataclass(frozen=True, slots=True)
class Place:
    """What a program loads, and where it runs: torch's names of device and type, or "int8".

    scratch  a folder that the workers of one run share, for models that other libraries convert
    """

    folder: str
    device: str
    dtype: str
    threads: int
    scratch: str | None = None


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


@runtime_checkable
class Tunable(Protocol):
    """A program that has a choice of texts a batch.

    note  what it says of itself: versions of what it was converted with, texts a batch
    """

    @property
    def note(self) -> str: ...

    def tune(self, texts: list[str]) -> None:
        """Try a few numbers of texts a batch, and keep the fastest."""


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
    if name in ("transformers", "compile-padded", "compile-frozen"):
        from packhorse.tools.bench.programs.padded_torch import PaddedTorch

        return lambda place, off: PaddedTorch(place, name)
    if name == "onnxruntime":
        from packhorse.tools.bench.programs.padded_onnx import PaddedOnnx

        return lambda place, off: PaddedOnnx(place)
    if name in ("openvino", "openvino-streams"):
        from packhorse.tools.bench.programs.padded_openvino import PaddedOpenvino

        return lambda place, off: PaddedOpenvino(
            place, place.threads if name == "openvino-streams" else 1
        )
    if name == "packed":
        from packhorse.tools.bench.programs.packed import Packed

        return Packed
    from packhorse.tools.bench.programs.public_encoder import PublicEncoder

    return lambda place, off: PublicEncoder(place)
