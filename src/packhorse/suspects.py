"""What the supervisor suspects of killing engines: learned from their journals, told to the next.

A sequence that was on the device of an engine that crashed is a suspect: it
runs alone from then on. If it was alone on the device of another that
crashed, it is refused. If it ran alone and nothing happened, it is cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as PySequence

from packhorse.channel.journal import Fingerprint

logger = logging.getLogger(__name__)

MOST = 20_000
"""Suspects that are remembered; the oldest are forgotten."""


class Suspects:
    """Of all engines of a generation."""

    def __init__(self) -> None:
        self._suspects: dict[Fingerprint, None] = {}  # in order of age
        self._refused: dict[Fingerprint, None] = {}

    @property
    def suspects(self) -> list[Fingerprint]:
        """What runs alone."""
        return list(self._suspects)

    @property
    def refused(self) -> list[Fingerprint]:
        """What does not run."""
        return list(self._refused)

    def crashed_with(self, on_device: PySequence[Fingerprint]) -> None:
        """An engine crashed with these on its device."""
        if len(on_device) == 1 and on_device[0] in self._suspects:
            (killer,) = on_device
            del self._suspects[killer]
            self._refused[killer] = None
            logger.error("a sequence of %d tokens killed two engines: it is refused", killer[0])
            return
        for mark in on_device:
            self._suspects[mark] = None
        if on_device:
            logger.error("%d sequences were on the device: they will run alone", len(on_device))
        for marks in (self._suspects, self._refused):
            while len(marks) > MOST:
                del marks[next(iter(marks))]

    def clear(self, mark: Fingerprint) -> None:
        """It ran alone, and nothing happened."""
        self._suspects.pop(mark, None)
