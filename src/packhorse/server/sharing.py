"""Equal texts of one client are computed once: while one is in flight, others wait for its row.

    leader     a request whose row is computed
    follower   a request with an equal sequence; it gets the leader's row when that arrives

Sequences are equal if their ids and segments are, and their marks, which is all
that the model sees. Only those of one client (an API key, else an address) share: nobody
waits in another's queue, or learns from the time of an answer what others
ask. A leader that nobody waits for any more goes on while it has followers.

Answers may also be kept, within a bound of memory, for those who ask the same
again. With API keys each key has answers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as PySequence
from functools import partial

import numpy as np

from packhorse.metrics import CACHE_HITS, CACHE_MISSES, DEDUPLICATED
from packhorse.request import Sequences
from packhorse.server.pending import Key, Pending
from packhorse.server.response_cache import ResponseCache


class Sharing:
    """For one front end, whose process serves one generation of a model.

    dedup  whether what is in flight is shared
    cache  where answers are kept; None: nowhere
    """

    def __init__(
        self, slot: memoryview[float], dedup: bool = True, cache: ResponseCache | None = None
    ) -> None:
        self._slot = slot
        self._dedup = dedup
        self._cache = cache
        self._leaders: dict[tuple[int, Key], tuple[Pending, int]] = {}

    def reduce(
        self, requests: PySequence[Pending], sequences: Sequences
    ) -> tuple[list[Pending], Sequences]:
        """The requests and sequences that must be computed; the others have been seen to."""
        keys = _keys_of(sequences)
        kept: list[int] = []
        leading: list[Pending] = []
        first = 0
        for pending in requests:
            rows = self._rows_to_compute(pending, keys[first : first + pending.count])
            kept += [first + row for row in rows]
            first += pending.count
            if rows:
                leading.append(pending)
        if len(kept) < len(keys):
            sequences = sequences.take(np.array(kept, np.intp))
            _note_sent(leading, sequences)
        return leading, sequences

    def _rows_to_compute(self, pending: Pending, keys: list[Key]) -> list[int]:
        rows: list[int] = []
        pending.cache = self._cache
        pending.keys = keys
        for row, key in enumerate(keys):
            if self._cache is not None and self._is_cached(pending, row, key):
                continue
            if self._dedup and self._follows(pending, row, key):
                continue
            rows.append(row)
        if len(rows) < len(keys):
            pending.rows = rows
            pending.unanswered = len(rows)
        if self._dedup and rows:
            pending.future.add_done_callback(partial(self._forget, pending))
        return rows

    def _is_cached(self, pending: Pending, row: int, key: Key) -> bool:
        assert self._cache is not None
        block = self._cache.get((pending.terms.owner, key))
        if block is None:
            self._slot[CACHE_MISSES.first] += 1.0
            return False
        self._slot[CACHE_HITS.first] += 1.0
        pending.take(block, row, 0, 1)
        return True

    def _follows(self, pending: Pending, row: int, key: Key) -> bool:
        """Whether another request's row will do; if not, this one leads from now on."""
        owned = (pending.terms.client, key)
        found = self._leaders.get(owned)
        if found is not None:
            leader, place = found
            if leader.awaits(place) and leader.terms.priority >= pending.terms.priority:
                leader.lead(place, pending, row)
                self._slot[DEDUPLICATED.first] += 1.0
                return True
        self._leaders[owned] = (pending, row)
        return False

    def _forget(self, pending: Pending, _: asyncio.Future[None]) -> None:
        """A leader is over: nobody can follow it any more."""
        client = pending.terms.client
        for row in range(pending.count) if pending.rows is None else pending.rows:
            owned = (client, pending.keys[row])
            found = self._leaders.get(owned)
            if found is not None and found[0] is pending:
                del self._leaders[owned]


def _keys_of(sequences: Sequences) -> list[Key]:
    """What tells sequences apart, one key each."""
    ids = sequences.input_ids.tobytes()
    bounds = (sequences.cu_seqlens * sequences.input_ids.itemsize).tolist()
    segments = (
        [-1] * len(sequences)
        if sequences.segment_starts is None
        else np.where(
            sequences.segment_starts < sequences.lengths, sequences.segment_starts, -1
        ).tolist()
    )
    token_level = (
        [False] * len(sequences)
        if sequences.token_level is None
        else sequences.token_level.tolist()
    )
    marks = [0] * len(sequences) if sequences.marks is None else sequences.marks.tolist()
    return [
        (ids[start:stop], *rest)
        for start, stop, *rest in zip(
            bounds, bounds[1:], segments, token_level, marks, strict=False
        )
    ]


def _note_sent(leading: list[Pending], sequences: Sequences) -> None:
    """How many tokens of each request go to the engine."""
    ends = np.cumsum([pending.num_sent for pending in leading])
    bounds = [0, *sequences.cu_seqlens[ends].tolist()] if leading else []
    for pending, start, stop in zip(leading, bounds, bounds[1:], strict=False):
        pending.sent_tokens = stop - start
