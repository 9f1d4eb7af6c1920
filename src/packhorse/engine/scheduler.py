"""What runs next: arrivals wait here and leave as packed batches.

No waiting for more: a batch is what queued while the device was busy, bounded
in tokens, in sequences and in predicted time. Clients take turns in tokens;
within one, priority goes first, then arrival. Everything is columnar, so the
cost in Python is per arrival, client and batch, not per sequence.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packhorse.engine.batch import Batch
from packhorse.engine.cost_model import CostModel
from packhorse.engine.waiting import ClientQueue, Waiting
from packhorse.request import Arrivals, TicketArray, concatenate

WORTH = 8
"""How many times its fixed cost a batch may take: then seven eighths of its time is work."""

SAMPLE = 64
"""Clients whose next sequences tell how much a turn must be worth to be worth its time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch.

    max_seconds   predicted; inf for no such bound
    most_seconds  what ``max_seconds`` may grow to where that is little beside the fixed cost of a
                  batch; 0: it does not grow
    """

    max_tokens: int
    max_sequences: int
    max_seconds: float
    most_seconds: float = 0.0


class Scheduler:
    """Deficit round-robin between clients (Shreedhar & Varghese 1995), in tokens."""

    def __init__(self, limits: Limits, cost: CostModel, first_position: int = 0) -> None:
        self._limits = limits
        self._cost = cost
        self._first_position = first_position
        self._clients: dict[int, ClientQueue] = {}  # in the order of their turns
        self.num_sequences = 0
        self.num_tokens = 0

    def bound(self, max_tokens: int) -> None:
        """Batches are of at most so many tokens from now on."""
        self._limits = replace(self._limits, max_tokens=max_tokens)

    def add(self, arrivals: Arrivals) -> None:
        """Queue requests."""
        if len(arrivals.sequences) == 0:
            return
        arrivals, groups = _grouped(arrivals)
        bounds = _bounds_of(arrivals)
        for first, last in groups:
            client = self._clients.setdefault(int(arrivals.clients[first]), ClientQueue())
            waiting = Waiting(arrivals, bounds, first, last)
            client.add(waiting, int(arrivals.priorities[first]))
        self.num_sequences += len(arrivals.sequences)
        self.num_tokens += arrivals.sequences.num_tokens

    @property
    def num_clients(self) -> int:
        """Clients that have something waiting, or had when their turn was last."""
        return len(self._clients)

    @property
    def rate(self) -> float:
        """Tokens a second that batches of the usual size are predicted to do; 0 if not known."""
        tokens = self._tokens_within(max(self._limits.max_seconds, self._worthwhile()))
        seconds = self._cost.predict(tokens)
        return tokens / seconds if seconds > 0 else 0.0

    def next_batch(self) -> Batch | None:
        """The next batch, or None when nothing waits.

        A single sequence over the bounds makes a batch of its own. What has
        passed its deadline is dropped here: nobody waits for it any more.
        """
        if not self.num_sequences:
            self._clients.clear()
            return None
        room = _Room(self._token_budget(), self._limits.max_sequences)
        now = time.monotonic()
        parts = self._everything(room, now)
        while self._clients and not room.is_full and self._round(room, parts, now):
            pass
        return self._joined(parts) if parts else None

    def _everything(self, room: _Room, now: float) -> list[Batch]:
        """All that waits, if there is room for it and nobody's turn matters; else nothing."""
        if self.num_sequences > room.sequences or self.num_tokens > room.tokens:
            return []
        waiting = [one for client in self._clients.values() for one in client.all()]
        if any(one.earliest <= now for one in waiting):
            return []
        self._clients.clear()
        return [one.take(one.num_sequences) for one in waiting]

    def cancel(self, tickets: TicketArray) -> None:
        """Forget what waits of these requests; what already runs is finished."""
        in_order = np.sort(tickets).tolist()
        for client in self._clients.values():
            for queue in client.queues.values():
                for _ in range(len(queue)):
                    waiting = queue.popleft()
                    if waiting.may_have(in_order):
                        dropped = np.isin(waiting.arrivals.tickets, tickets)
                        queue.extend(self._kept(waiting, dropped))
                    else:
                        queue.append(waiting)

    def _round(self, room: _Room, parts: list[Batch], now: float) -> bool:
        """One turn of every client, until one finds no room for what it may take.

        That one goes first into the next batch. True if all had their turn: another round may
        add to this batch.
        """
        quantum = _quantum(self._clients.values(), room)
        served: dict[int, ClientQueue] = {}
        clients = iter(self._clients.items())
        for name, client in clients:
            granted = quantum if client.shortfall(room.whole) > 0 else 0  # its turn is not over
            client.deficit += granted
            before = len(parts)
            if not self._turn(client, room, parts, now):
                continue  # a client with nothing left has no claim on later turns
            if client.shortfall(room.whole) <= 0:
                if len(parts) == before:
                    client.deficit -= granted  # its turn is the next batch's, from the start
                self._clients = {name: client} | dict(clients) | served
                return False
            served[name] = client
        self._clients = served
        return True

    def _turn(self, client: ClientQueue, room: _Room, parts: list[Batch], now: float) -> bool:
        """Take from one client what its deficit and the room allow; whether anything is left."""
        while (queue := client.first()) is not None:
            head = queue[0]
            if head.earliest <= now:
                queue.popleft()
                queue.extendleft(reversed(self._kept(head, head.arrivals.deadlines <= now)))
                continue
            count = head.fitting(min(room.tokens, client.deficit), room.sequences)
            if count <= 0 and not parts and head.next_length > room.tokens:
                count = 1  # longer than any batch: it runs alone
            if count <= 0:
                return True
            part = head.take(count)
            parts.append(part)
            room.take(part)
            client.deficit -= part.sequences.num_tokens
            if head.num_sequences == 0:
                queue.popleft()
        client.deficit = 0
        return False

    def _kept(self, waiting: Waiting, dropped: NDArray[np.bool_]) -> list[Waiting]:
        """``waiting`` without dropped requests, and the counts set right."""
        if not dropped.any():
            return [waiting]
        kept = waiting.without(dropped)
        self.num_sequences -= waiting.num_sequences - sum(w.num_sequences for w in kept)
        self.num_tokens -= waiting.num_tokens - sum(w.num_tokens for w in kept)
        return kept

    def _token_budget(self) -> int:
        """Tokens for the next batch.

        Where a batch worth its fixed cost takes longer than ``max_seconds``, it may, as far as
        that makes nobody wait: a client who has little waiting is answered after this batch, so
        it is no more than twice what such clients have, or what ``max_seconds`` allows.
        """
        usual = self._tokens_within(self._limits.max_seconds)
        seconds = self._worthwhile()
        if seconds <= self._limits.max_seconds:
            return usual
        most = self._tokens_within(seconds)
        waiting = [sum(one.num_tokens for one in each.all()) for each in self._clients.values()]
        little = [tokens for tokens in waiting if tokens * len(waiting) <= most]
        return min(most, max(usual, 2 * sum(little))) if little else most

    def _worthwhile(self) -> float:
        """Seconds of a batch of which little is fixed cost."""
        return min(self._limits.most_seconds, WORTH * self._cost.fixed)

    def _tokens_within(self, seconds: float) -> int:
        return self._cost.tokens_within(seconds, self._limits.max_tokens)

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


def _quantum(clients: Collection[ClientQueue], room: _Room) -> int:
    """Tokens for the turn of each: an even share of the room, so that all get into the batch.

    Where that is little, what the first of them lack for their next sequences, on average: turns
    in which nothing is taken only cost time.
    """
    lacking = [client.shortfall(room.whole) for client in itertools.islice(clients, SAMPLE)]
    return max(1, room.tokens // len(clients), math.ceil(sum(lacking) / len(lacking)))


class _Room:
    """What still fits into the batch that is being formed."""

    __slots__ = ("sequences", "tokens", "whole")

    def __init__(self, tokens: int, sequences: int) -> None:
        self.whole = self.tokens = tokens
        self.sequences = sequences

    @property
    def is_full(self) -> bool:
        return self.tokens <= 0 or self.sequences <= 0

    def take(self, part: Batch) -> None:
        self.tokens -= part.sequences.num_tokens
        self.sequences -= len(part.sequences)


_Groups = Iterable[tuple[int, int]]
"""(first, last + 1) of neighbouring requests of one client and priority."""


def _grouped(arrivals: Arrivals) -> tuple[Arrivals, _Groups]:
    """The same requests, those of one client and priority side by side, in order of arrival."""
    if len(arrivals.counts) == 1 or not len(_changes(arrivals)):
        return arrivals, ((0, len(arrivals.counts)),)
    order = np.lexsort((arrivals.priorities, arrivals.clients))
    ends = np.cumsum(arrivals.counts)
    counts = arrivals.counts[order]
    bounds = np.cumsum(counts)
    sequences = np.repeat((ends - arrivals.counts)[order] - (bounds - counts), counts)
    sequences += np.arange(bounds[-1])
    grouped = Arrivals(
        arrivals.tickets[order],
        counts,
        arrivals.clients[order],
        arrivals.priorities[order],
        arrivals.deadlines[order],
        arrivals.sequences.take(sequences),
        arrivals.arrived,
    )
    edges = [0, *_changes(grouped).tolist(), len(counts)]
    return grouped, itertools.pairwise(edges)


def _bounds_of(arrivals: Arrivals) -> NDArray[np.int64]:
    """Of the requests, (R + 1,), in sequences."""
    counts = arrivals.counts
    if len(counts) == 1:
        return np.array((0, len(arrivals.sequences)), np.int64)
    bounds = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=bounds[1:])
    return bounds


def _changes(arrivals: Arrivals) -> NDArray[np.intp]:
    """The requests that are of another client or priority than the one before."""
    clients, priorities = arrivals.clients, arrivals.priorities
    differs = (clients[1:] != clients[:-1]) | (priorities[1:] != priorities[:-1])
    return np.flatnonzero(differs) + 1
