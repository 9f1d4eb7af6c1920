"""A request on its way: from its inputs, over token ids, to the rows of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from packhorse.request import Completions, TextOrPair
from packhorse.server.terms import ANYONE, Terms
from packhorse.tokenizing.tokenizer import Direction


class Block:
    """One message of answers, shared by the requests that it answers.

    ``written`` holds what was made of its rows, so that it is made once for all of them.
    """

    __slots__ = ("completions", "failed", "written")

    def __init__(self, completions: Completions) -> None:
        self.completions = completions
        self.failed = bool(completions.codes.any())
        self.written: dict[bool, list[bytes]] = {}


class Pending:
    """Await ``future``, then read the rest.

    characters    of all texts
    terms         who asks, how urgently and until when
    estimate      of its tokens, made when it was let in
    tokens        of all inputs: the estimate, then the real number
    truncated     inputs that were cut
    parts         (block, offset in the request, first row in the block, count), as they came
    tokenization  seconds; it was tokenised together with others, so it is theirs as well
    queue_wait    seconds from then until its first batch started
    inference     seconds of its batches, added up
    """

    __slots__ = (
        *("characters", "count", "direction", "estimate", "future", "inference", "inputs", "left"),
        *("on_abandon", "parts", "queue_wait", "terms", "ticket", "tokenization", "tokens"),
        *("truncate", "truncated"),
    )

    def __init__(
        self,
        inputs: list[TextOrPair],
        characters: int,
        truncate: bool,
        direction: Direction,
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
        self.tokenization = self.queue_wait = self.inference = 0.0
        self.on_abandon: Callable[[Pending], Any] | None = None

    def fail(self, error: Exception) -> None:
        """End the wait with this error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def abandon(self, error: Exception) -> None:
        """The same, and nobody need work on it any more."""
        if not self.future.done():
            self.future.set_exception(error)
            if self.on_abandon is not None:
                self.on_abandon(self)
