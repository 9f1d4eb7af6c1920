"""The interface between the engine and what computes: one for the CPU, one for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from packhorse.errors import NonFiniteOutputError
from packhorse.request import Float32Array, Int32Array, Output, Sequences


def checked_output(values: Float32Array, row_counts: Int32Array | None, seconds: float) -> Output:
    """An output, float32 (R, width), whose sequences that are not finite are marked as such.

    ``row_counts`` is int32 (N,), or None for one row a sequence.
    """
    is_finite = np.isfinite(values)
    if np.count_nonzero(is_finite) == values.size:  # nearly always, and quicker than by row
        count = len(values) if row_counts is None else len(row_counts)
        return Output(values, np.zeros(count, np.uint8), seconds, row_counts)
    bad = np.flatnonzero(~is_finite.all(axis=1))
    if row_counts is not None:
        bad = np.searchsorted(np.cumsum(row_counts), bad, side="right")
    codes = np.zeros(len(values) if row_counts is None else len(row_counts), np.uint8)
    codes[bad] = NonFiniteOutputError.code
    return Output(values, codes, seconds, row_counts)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch would have had room."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class Launched(Protocol):
    """A batch that is running."""

    def done(self) -> bool:
        """Whether ``output`` would return at once."""

    def output(self) -> Output:
        """Wait for the batch and return its output.

        Raises whatever the forward pass raised.
        """


class ModelRunner(Protocol):
    """Runs packed batches of one model on one device.

    width                      columns of the output: labels, or the length of a vector
    max_tokens, max_sequences  the largest batch it accepts
    max_in_flight              how many batches may be launched before the first is collected
    completion_fd              becomes readable when a batch is done, or None: poll ``done``
    padding_tokens             how many it has added so far to fill batches up
    has_wider                  whether it can run a batch in a type of wider range
    """

    @property
    def width(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def completion_fd(self) -> int | None: ...
    @property
    def padding_tokens(self) -> int: ...
    @property
    def has_wider(self) -> bool: ...

    def launch(self, batch: Sequences, *, wider: bool = False) -> Launched:
        """Start a batch and return while it runs; a wider one once ``wider_is_ready``."""

    def wider_is_ready(self) -> bool:
        """Whether a wider batch can start at once; if not, the model for it is being loaded.

        Where ``has_wider`` only. Raises what loading raised; ``has_wider`` is false from then on.
        """

    def memory(self) -> dict[str, int]:
        """Device memory in bytes, by name; empty where the device is the CPU."""

    def warm_up_batches(self) -> Iterator[Sequences]:
        """Batches worth running once before serving, small ones first."""

    def close(self) -> None:
        """Free the device; batches in flight are abandoned."""
