"""The interface between the engine and what computes: one for the CPU, one for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from packhorse.request import Output, Sequences


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

    num_labels                 columns of the logits
    max_tokens, max_sequences  the largest batch it accepts
    max_in_flight              how many batches may be launched before the first is collected
    completion_fd              becomes readable when a batch is done, or None: poll ``done``
    has_wider                  whether it can run a batch in a type of wider range
    """

    @property
    def num_labels(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def completion_fd(self) -> int | None: ...
    @property
    def has_wider(self) -> bool: ...

    def launch(self, batch: Sequences, *, wider: bool = False) -> Launched:
        """Start a batch and return while it runs."""

    def memory(self) -> dict[str, int]:
        """Device memory in bytes, by name; empty where the device is the CPU."""

    def warm_up_batches(self) -> Iterator[Sequences]:
        """Batches worth running once before serving, small ones first."""

    def close(self) -> None:
        """Free the device; batches in flight are abandoned."""
