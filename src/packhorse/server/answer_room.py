"""How large answers are, known before they are computed, and how much of them may be on its way.

A row for each token makes an answer a thousand times as large as its text.
So a request for more than the limit is refused, and others wait until what is
on its way leaves room for theirs: a front end never has more to read and to
write at once, and an engine never has to keep more for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as PySequence
from dataclasses import dataclass

from packhorse.checkpoint import Checkpoint
from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.server.pending import Pending
from packhorse.tasks import Task

SMALL = 1 << 20
"""Bytes of a message's answer that wait for no room: the number of inputs in flight bounds them."""

SPARSE_PAIRS = 512
"""Weights that are not 0 of one text, about: how many there are is known to the model alone."""


@dataclass(frozen=True, slots=True)
class AnswerSizes:
    """Bytes of float32 that a model answers with.

    row        for a sequence that has one row
    token      for each token of one that has a row for every token
    per_token  whether all sequences have
    limit      of a request's answer
    """

    row: int
    token: int
    per_token: bool
    limit: int

    @classmethod
    def of_model(cls, checkpoint: Checkpoint, limit: int) -> AnswerSizes:
        """Those of a checkpoint."""
        if checkpoint.task is Task.TOKEN_CLASSIFY:
            return cls(0, 4 * checkpoint.width, True, limit)
        row = 4 * checkpoint.width
        if checkpoint.task is Task.EMBED_SPARSE:
            row = 8 * SPARSE_PAIRS
        return cls(row, 4 * checkpoint.architecture.hidden_size, False, limit)

    def of(self, count: int, tokens: int, whole: bool) -> int:
        """Of so many sequences and tokens; ``whole``: a row is asked for each token."""
        return tokens * self.token if whole or self.per_token else count * self.row

    def of_all(self, sequences: Sequences) -> int:
        """Of all of these."""
        whole = sequences.token_level is not None
        return self.of(len(sequences), sequences.num_tokens, whole)

    def check(self, sequences: Sequences) -> None:
        """Raise ValidationError if they are too large an answer for one request."""
        whole, size = sequences.token_level is not None, self.of_all(sequences)
        if size > self.limit:
            rows = sequences.num_tokens if whole or self.per_token else len(sequences)
            raise ValidationError(
                f"the answer to {len(sequences)} inputs has {rows} rows, {size} bytes of numbers; "
                f"at most {self.limit} are sent at once (--answer-limit): send fewer or shorter "
                "inputs in one request"
            )


@dataclass(frozen=True, slots=True)
class _Waiting:
    requests: PySequence[Pending]
    sizes: list[int]
    go: Callable[[], None]


class AnswerRoom:
    """That of one front end: ``taken`` bytes of ``sizes.limit``.

    First come, first served, however large; a single answer always finds room once none other
    is on its way.
    """

    def __init__(self, sizes: AnswerSizes) -> None:
        self.sizes = sizes
        self.taken = 0
        self._waiting: deque[_Waiting] = deque()

    def enter(
        self, requests: PySequence[Pending], sequences: Sequences, go: Callable[[], None]
    ) -> None:
        """``go`` when there is room for the answers to these sequences: at once, or later."""
        whole = sequences.token_level is not None
        each = [self.sizes.of(one.num_sent, one.sent_tokens, whole) for one in requests]
        self._waiting.append(_Waiting(requests, each, go))
        self._admit()

    def leave(self, pending: Pending) -> None:
        """Its answer is written, or there is none."""
        if pending.answer_bytes:
            self.taken -= pending.answer_bytes
            pending.answer_bytes = 0
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            wanted = any(pending.is_wanted for pending in first.requests)
            if wanted and self.taken and self.taken + sum(first.sizes) > self.sizes.limit:
                return
            self._waiting.popleft()
            if not wanted:
                continue
            for pending, size in zip(first.requests, first.sizes, strict=True):
                if not pending.future.done():  # else only others, who follow, wait for it
                    pending.answer_bytes = size
                    self.taken += size
            first.go()
