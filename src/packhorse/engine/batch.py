"""A batch: packed sequences, and which parts of which requests they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packhorse.request import Int32Array, Sequences, TicketArray

Parts = tuple[TicketArray, Int32Array, Int32Array, NDArray[np.float64]]
"""tickets, offsets, counts, arrived, as in a Batch."""


@dataclass(slots=True)  # as in packhorse.request
class Batch:
    """What the model sees next, and whose it is.

    tickets, offsets, counts  (P,): part p is ``counts[p]`` sequences of request ``tickets[p]``,
                              from its sequence ``offsets[p]`` on; parts are in order
    arrived                   float64 (P,): time.monotonic() when the request was queued
    """

    sequences: Sequences
    tickets: TicketArray
    offsets: Int32Array
    counts: Int32Array
    arrived: NDArray[np.float64]

    def halves(self) -> tuple[Batch, Batch]:
        """The batch in two, for finding the sequence that fails it; needs two sequences."""
        middle = len(self.sequences) // 2
        return self._cut(0, middle), self._cut(middle, len(self.sequences))

    def alike(self) -> list[Batch]:
        """Neighbours that are read alike, as batches of their own; mostly that is the batch.

        A batch has one row a sequence or one row a token, never both.
        """
        token_level = self.sequences.token_level
        if token_level is None or (token_level == token_level[0]).all():
            return [self]
        breaks = [0, *(np.flatnonzero(np.diff(token_level)) + 1).tolist(), len(token_level)]
        return [self._cut(start, stop) for start, stop in pairwise(breaks)]

    def alone(self, row: int) -> Batch:
        """Sequence ``row`` as a batch of its own."""
        return self._cut(row, row + 1)

    def without(self, rows: NDArray[np.intp]) -> Parts:
        """The parts that are left when ``rows`` (at least one) are taken out.

        A part with a gap becomes several; a part with nothing left disappears.
        """
        firsts = np.cumsum(self.counts) - self.counts
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        kept = np.delete(np.arange(len(owner)), rows)
        breaks = np.flatnonzero((np.diff(kept) > 1) | (np.diff(owner[kept]) > 0)) + 1
        begins = kept[np.concatenate([[0], breaks]).astype(np.intp)] if len(kept) else kept
        counts = np.diff(np.concatenate([[0], breaks, [len(kept)]])) if len(kept) else kept
        parts = owner[begins]
        offsets = self.offsets[parts] + begins - firsts[parts]
        return (
            self.tickets[parts],
            offsets.astype(np.int32),
            counts.astype(np.int32),
            self.arrived[parts],
        )

    def rest(self, rows: NDArray[np.intp]) -> Batch:
        """The batch without ``rows``, at least one but not all."""
        kept = np.delete(np.arange(len(self.sequences)), rows)
        return Batch(self.sequences.take(kept), *self.without(rows))

    def _cut(self, start: int, stop: int) -> Batch:
        firsts = np.cumsum(self.counts) - self.counts
        begin = np.maximum(firsts, start)
        end = np.minimum(firsts + self.counts, stop)
        kept = begin < end
        return Batch(
            self.sequences.slice(start, stop),
            self.tickets[kept],
            (self.offsets + begin - firsts)[kept].astype(np.int32),
            (end - begin)[kept].astype(np.int32),
            self.arrived[kept],
        )
