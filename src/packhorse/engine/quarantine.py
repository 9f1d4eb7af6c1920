"""Sequences that an engine died with: they run alone, and those that killed it twice not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from packhorse.channel.journal import Fingerprint, fingerprints
from packhorse.request import Sequences


class Quarantine:
    """Tells what the supervisor suspects from what is innocent.

    cleared  is told of a suspect that ran alone and did no harm
    """

    def __init__(
        self,
        suspects: Iterable[Fingerprint],
        refused: Iterable[Fingerprint],
        cleared: Callable[[Fingerprint], None],
    ) -> None:
        self._suspects = set(suspects)
        self._refused = set(refused)
        self._cleared = cleared
        self._note_lengths()

    def sort(self, batch: Sequences) -> tuple[list[int], list[int]]:
        """(refused, suspected): rows of a batch. Nearly free unless a length is one of theirs."""
        if not len(self._lengths):
            return [], []
        rows = np.flatnonzero(np.isin(batch.lengths, self._lengths))
        refused: list[int] = []
        suspected: list[int] = []
        for row in rows.tolist():
            mark = fingerprint_of(batch.slice(row, row + 1))
            if mark in self._refused:
                refused.append(row)
            elif mark in self._suspects:
                suspected.append(row)
        return refused, suspected

    def clear(self, sequence: Sequences) -> None:
        """A suspect ran alone, and the engine lives."""
        mark = fingerprint_of(sequence)
        if mark in self._suspects:
            self._suspects.remove(mark)
            self._note_lengths()
            self._cleared(mark)

    def _note_lengths(self) -> None:
        marks = self._suspects | self._refused
        self._lengths = np.array(sorted({length for length, _ in marks}), np.int32)


def fingerprint_of(sequence: Sequences) -> Fingerprint:
    """Of one sequence."""
    return fingerprints(sequence.input_ids, sequence.cu_seqlens, sequence.segment_starts)[0]
