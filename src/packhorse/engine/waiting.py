"""What waits in the scheduler: runs of requests, in queues of their clients."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packhorse.engine.batch import Batch
from packhorse.request import Arrivals


class Waiting:
    """Neighbouring requests of one arrival, of one client and priority, and what of them has left.

    first, last  the first of the requests, and the one after the last, in the arrival's columns
    earliest     deadline of any of them
    tickets      the smallest and the largest of theirs
    """

    __slots__ = ("arrivals", "bounds", "earliest", "first", "last", "stop", "taken", "tickets")

    def __init__(
        self, arrivals: Arrivals, bounds: NDArray[np.int64], first: int, last: int
    ) -> None:
        self.arrivals = arrivals
        self.bounds = bounds
        self.first, self.last = first, last
        self.taken = int(bounds[first])
        self.stop = int(bounds[last])
        deadlines, tickets = arrivals.deadlines, arrivals.tickets
        if last == first + 1:
            self.earliest = float(deadlines[first])
            only = int(tickets[first])
            self.tickets = only, only
        else:
            self.earliest = float(deadlines[first:last].min())
            self.tickets = int(tickets[first:last].min()), int(tickets[first:last].max())

    def may_have(self, tickets: list[int]) -> bool:
        """Whether any of these, in order, may be among its own: mostly none is."""
        smallest, largest = self.tickets
        at = bisect_left(tickets, smallest)
        return at < len(tickets) and tickets[at] <= largest

    @property
    def num_sequences(self) -> int:
        return self.stop - self.taken

    @property
    def num_tokens(self) -> int:
        cu_seqlens = self.arrivals.sequences.cu_seqlens
        return int(cu_seqlens[self.stop] - cu_seqlens[self.taken])

    @property
    def next_length(self) -> int:
        """Tokens of the next sequence."""
        cu_seqlens = self.arrivals.sequences.cu_seqlens
        return int(cu_seqlens[self.taken + 1] - cu_seqlens[self.taken])

    def fitting(self, tokens: int, sequences: int) -> int:
        """How many of the next sequences stay within both bounds."""
        cu_seqlens = self.arrivals.sequences.cu_seqlens
        end = np.searchsorted(cu_seqlens, cu_seqlens[self.taken] + tokens, side="right") - 1
        return int(min(end - self.taken, sequences, self.num_sequences))

    def take(self, count: int) -> Batch:
        """The next ``count`` sequences as a batch of their own (views)."""
        start, stop = self.taken, self.taken + count
        self.taken = stop
        if stop == self.stop and start == self.bounds[self.first]:
            return self._whole(start, stop)
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

    def _whole(self, start: int, stop: int) -> Batch:
        """All requests, of which nothing was taken before: what small requests mostly are."""
        arrivals, first, last = self.arrivals, self.first, self.last
        sequences = arrivals.sequences
        arrived = np.empty(last - first)
        arrived.fill(arrivals.arrived)
        return Batch(
            sequences if stop - start == len(sequences) else sequences.slice(start, stop),
            arrivals.tickets[first:last],
            np.zeros(last - first, np.int32),
            arrivals.counts[first:last],
            arrived,
        )

    def without(self, dropped: NDArray[np.bool_]) -> list[Waiting]:
        """What is left when the requests ``dropped`` (R,) of the arrival are: runs between them."""
        first = int(np.searchsorted(self.bounds, self.taken, side="right")) - 1
        last = int(np.searchsorted(self.bounds, self.stop, side="left"))
        left, run = [], first
        for request in [*(first + np.flatnonzero(dropped[first:last])).tolist(), last]:
            if run < request:
                piece = Waiting(self.arrivals, self.bounds, run, request)
                piece.taken = max(piece.taken, self.taken)
                left.append(piece)
            run = request + 1
        return left


class ClientQueue:
    """What one client has waiting, by priority, and how many tokens it may still take."""

    __slots__ = ("deficit", "queues")

    def __init__(self) -> None:
        self.deficit = 0
        self.queues: dict[int, deque[Waiting]] = {}

    def add(self, waiting: Waiting, priority: int) -> None:
        self.queues.setdefault(priority, deque()).append(waiting)

    def all(self) -> Iterator[Waiting]:
        """All that waits, the highest priority first."""
        for priority in sorted(self.queues, reverse=True):
            yield from self.queues[priority]

    def shortfall(self, most: int) -> int:
        """Tokens that it lacks for its next sequence, of which ``most`` are paid for at most."""
        queue = self.first()
        return 0 if queue is None else min(queue[0].next_length, most) - self.deficit

    def first(self) -> deque[Waiting] | None:
        """The queue of the highest priority that has anything; None when nothing waits."""
        while self.queues:
            highest = max(self.queues)
            if self.queues[highest]:
                return self.queues[highest]
            del self.queues[highest]
        return None
