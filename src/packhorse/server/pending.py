"""A request on its way: from its inputs, over token ids, to the rows of its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from packhorse.request import Completions, Sequences, TextOrPair
from packhorse.server.terms import ANYONE, Terms
from packhorse.tokenizing.tokenizer import Direction

Key = tuple[bytes, int, bool, int]
"""What tells one sequence from another: its ids, where its second segment starts or -1, whether a
row is asked for each of its tokens, and its mark."""


class Block:
    """One message of answers, shared by the requests that it answers.

    ``written`` holds what was made of its rows, so that it is made once for all of them.
    """

    __slots__ = ("completions", "failed", "written")

    def __init__(self, completions: Completions) -> None:
        self.completions = completions
        self.failed = np.count_nonzero(completions.codes) > 0
        self.written: dict[bool, list[bytes]] = {}


class Cache(Protocol):
    """Where answers are kept."""

    def put(self, key: tuple[int, Key], block: Block, row: int) -> None: ...


class Pending:
    """Await ``future``, then read the rest.

    characters    of all texts
    encode        tokenises the inputs in another way than the tokenizer's own; mostly None
    terms         who asks, how urgently and until when
    estimate      of its tokens, made when it was let in
    tokens        of all inputs: the estimate, then the real number
    truncated     inputs that were cut
    parts         (block, offset in the request, first row in the block, count), as they came
    departed      time.monotonic() when it was tokenised and left for the engine; 0 before
    tokenization  seconds; it was tokenised together with others, so it is theirs as well
    queue_wait    seconds from then until its first batch started
    inference     seconds of its batches, each counted once, however many parts it answered

    Where it shares work with others (see ``sharing``):

    keys          of all inputs
    rows          the inputs that go to the engine; None: all
    unanswered    how many of these the engine has not answered yet
    sent_tokens   of these
    followers     who waits for which of the inputs, and as which of its own
    following     whose inputs it waits for
    cache         where its rows are kept when they come, if anywhere

    answer_bytes  the room that its answer takes, see ``answer_room``; 0 for a small one
    """

    __slots__ = (
        *("answer_bytes", "cache", "characters", "count", "departed", "direction", "encode"),
        *("estimate", "followers"),
        *("following", "future", "inference", "inputs", "keys", "left", "on_abandon", "parts"),
        *("queue_wait", "rows", "sent_tokens", "terms", "ticket", "tokenization", "tokens"),
        *("truncate", "truncated", "unanswered"),
    )

    def __init__(
        self,
        inputs: list[TextOrPair],
        characters: int,
        truncate: bool,
        direction: Direction | None,
        tokens: int,
        future: asyncio.Future[None],
        terms: Terms = ANYONE,
    ) -> None:
        self.inputs = inputs
        self.characters = characters
        self.truncate = truncate
        self.direction = direction
        self.terms = terms
        self.future = future
        self.count = self.left = len(inputs)
        self.tokens = self.estimate = tokens
        self.truncated = 0
        self.ticket = 0
        self.parts: list[tuple[Block, int, int, int]] = []
        self.tokenization = self.queue_wait = self.inference = self.departed = 0.0
        self.on_abandon: Callable[[Pending], Any] | None = None
        self.encode: Callable[[], Sequences] | None = None
        self.keys: list[Key] = []
        self.rows: list[int] | None = None
        self.sent_tokens = tokens
        self.unanswered = self.count
        self.followers: dict[int, list[tuple[Pending, int]]] | None = None
        self.following: list[Pending] | None = None
        self.cache: Cache | None = None
        self.answer_bytes = 0

    @property
    def num_sent(self) -> int:
        """Sequences that go to the engine."""
        return self.count if self.rows is None else len(self.rows)

    @property
    def engine_deadline(self) -> float:
        """When the engine may drop it: not while it may have followers, who wait longer."""
        return math.inf if self.keys else self.terms.deadline

    def expect(self, sequences: int) -> None:
        """Its inputs became so many sequences: a text that is read in windows is several."""
        self.count = self.left = self.unanswered = sequences

    def deliver(self, block: Block, offset: int, first: int, count: int) -> None:
        """Rows from the engine: ``offset`` counts what was sent to it."""
        if self.rows is None:
            self.take(block, offset, first, count)
            if self.followers is not None or self.cache is not None:
                for row in range(count):
                    self._pass_on(block, offset + row, first + row)
            return
        for row, own in enumerate(self.rows[offset : offset + count], first):
            self.take(block, own, row, 1)
            self._pass_on(block, own, row)

    def take(self, block: Block, offset: int, first: int, count: int) -> None:
        """These rows of a block are the answers to its inputs from ``offset`` on."""
        if not self.parts or self.parts[-1][0] is not block:
            self.inference += block.completions.inference
        self.parts.append((block, offset, first, count))
        self.left -= count
        if not self.left and not self.future.done():
            self.future.set_result(None)

    def awaits(self, row: int) -> bool:
        """Whether somebody may follow: it has this row still to get, and its own client waits."""
        return not self.future.done() and all(
            not offset <= row < offset + count for _, offset, _, count in self.parts
        )

    def lead(self, row: int, follower: Pending, place: int) -> None:
        """Pass this row on to another, or the same, as its own input ``place``."""
        if self.followers is None:
            self.followers = {}
        self.followers.setdefault(row, []).append((follower, place))
        if follower is not self:
            if follower.following is None:
                follower.following = []
            follower.following.append(self)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return not self.future.done() or any(
            not follower.future.done()
            for waiting in (self.followers or {}).values()
            for follower, _ in waiting
        )

    def _pass_on(self, block: Block, own: int, row: int) -> None:
        if self.cache is not None:
            self.cache.put((self.terms.owner, self.keys[own]), block, row)
        if self.followers is not None:
            for follower, place in self.followers.pop(own, ()):
                follower.take(block, place, row, 1)

    def fail(self, error: Exception) -> None:
        """End the wait with this error, unless it has ended, and that of all who follow."""
        if not self.future.done():
            self.future.set_exception(error)
        followers, self.followers = self.followers or {}, None
        for waiting in followers.values():
            for follower, _ in waiting:
                if follower is not self:
                    follower.fail(error)

    def abandon(self, error: Exception) -> None:
        """End the wait: nobody need work on it any more, except for those who follow."""
        if self.future.done():
            return
        self.future.set_exception(error)
        for one in (self, *(self.following or ())):
            if one.on_abandon is not None and not one.is_wanted:
                one.on_abandon(one)
