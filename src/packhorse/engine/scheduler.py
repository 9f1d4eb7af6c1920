"""What runs next: arrivals wait here and leave as packed batches.

No waiting for more: a batch is what queued while the device was busy, bounded
in tokens, in sequences and in predicted time. Everything is columnar, so the
cost in Python is per arrival and per batch, not per sequence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.engine.cost_model import CostModel
from packhorse.request import Arrivals, Int32Array, Sequences, TicketArray, concatenate


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch: tokens, sequences, and predicted seconds (inf for no such bound)."""

    max_tokens: int
    max_sequences: int
    max_seconds: float


Parts = tuple[TicketArray, Int32Array, Int32Array, NDArray[np.float64]]
"""tickets, offsets, counts, arrived, as in a Batch."""


@dataclass(frozen=True, slots=True)
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


class _Waiting:
    """One arrival and how many of its sequences have left."""

    __slots__ = ("arrivals", "bounds", "taken")

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self.taken = 0
        self.bounds = np.zeros(len(arrivals.counts) + 1, np.int64)
        np.cumsum(arrivals.counts, out=self.bounds[1:])

    @property
    def left(self) -> int:
        return len(self.arrivals.sequences) - self.taken

    def fitting(self, tokens: int, sequences: int) -> int:
        """How many of the next sequences stay within both bounds."""
        cu_seqlens = self.arrivals.sequences.cu_seqlens
        end = np.searchsorted(cu_seqlens, cu_seqlens[self.taken] + tokens, side="right") - 1
        return int(min(end - self.taken, sequences))

    def take(self, count: int) -> Batch:
        """The next ``count`` sequences as a batch of their own (views)."""
        start, stop = self.taken, self.taken + count
        self.taken = stop
        first = int(np.searchsorted(self.bounds, start, side="right")) - 1
        last = int(np.searchsorted(self.bounds, stop, side="left"))
        begin = np.maximum(self.bounds[first:last], start)
        end = np.minimum(self.bounds[first + 1 : last + 1], stop)
        return Batch(
            self.arrivals.sequences.slice(start, stop),
            self.arrivals.tickets[first:last],
            (begin - self.bounds[first:last]).astype(np.int32),
            (end - begin).astype(np.int32),
            np.full(last - first, self.arrivals.arrived),
        )


class Scheduler:
    """First come, first served."""

    def __init__(self, limits: Limits, cost: CostModel, first_position: int = 0) -> None:
        self._limits = limits
        self._cost = cost
        self._first_position = first_position
        self._waiting: deque[_Waiting] = deque()
        self.num_sequences = 0
        self.num_tokens = 0

    def add(self, arrivals: Arrivals) -> None:
        """Queue requests."""
        if len(arrivals.sequences) == 0:
            return
        self._waiting.append(_Waiting(arrivals))
        self.num_sequences += len(arrivals.sequences)
        self.num_tokens += arrivals.sequences.num_tokens

    def next_batch(self) -> Batch | None:
        """The next batch, or None when nothing waits.

        A single sequence over the bounds makes a batch of its own.
        """
        tokens = self._token_budget()
        sequences = self._limits.max_sequences
        parts: list[Batch] = []
        while self._waiting and sequences > 0 and tokens > 0:
            head = self._waiting[0]
            count = (
                head.fitting(tokens, sequences)
                if parts
                else max(1, head.fitting(tokens, sequences))
            )
            if count == 0:
                break
            part = head.take(count)
            parts.append(part)
            sequences -= count
            tokens -= part.sequences.num_tokens
            if head.left:
                break
            self._waiting.popleft()
        return self._joined(parts) if parts else None

    def cancel(self, tickets: TicketArray) -> None:
        """Forget what waits of these requests; what already runs is finished."""
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            kept = _without(waiting, tickets)
            self.num_sequences -= waiting.left
            self.num_tokens -= _tokens_left(waiting)
            if kept is not None:
                self._waiting.append(kept)
                self.num_sequences += kept.left
                self.num_tokens += _tokens_left(kept)

    def _token_budget(self) -> int:
        limits = self._limits
        return self._cost.tokens_within(limits.max_seconds, limits.max_tokens)

    def _joined(self, parts: list[Batch]) -> Batch:
        batch = parts[0] if len(parts) == 1 else self._concatenated(parts)
        self.num_sequences -= len(batch.sequences)
        self.num_tokens -= batch.sequences.num_tokens
        return batch

    def _concatenated(self, parts: list[Batch]) -> Batch:
        return Batch(
            concatenate([part.sequences for part in parts], self._first_position),
            np.concatenate([part.tickets for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.arrived for part in parts]),
        )


def _tokens_left(waiting: _Waiting) -> int:
    cu_seqlens = waiting.arrivals.sequences.cu_seqlens
    return int(cu_seqlens[-1] - cu_seqlens[waiting.taken])


def _without(waiting: _Waiting, tickets: TicketArray) -> _Waiting | None:
    """The same arrival without the untaken sequences of ``tickets``; None if nothing is left."""
    arrivals = waiting.arrivals
    keep = ~np.isin(arrivals.tickets, tickets)
    if keep.all():
        return waiting
    owner_kept = np.repeat(keep, arrivals.counts)
    owner_kept[: waiting.taken] = True  # already gone; kept so that offsets stay right
    kept_sequences = np.flatnonzero(owner_kept)
    if len(kept_sequences) == waiting.taken:
        return None
    owners = np.repeat(np.arange(len(arrivals.counts)), arrivals.counts)
    counts = np.bincount(owners[kept_sequences], minlength=len(arrivals.counts)).astype(np.int32)
    left = counts > 0
    smaller = _Waiting(
        Arrivals(
            arrivals.tickets[left],
            counts[left],
            arrivals.clients[left],
            arrivals.priorities[left],
            arrivals.deadlines[left],
            arrivals.sequences.take(kept_sequences),
            arrivals.arrived,
        )
    )
    smaller.taken = waiting.taken
    return smaller
