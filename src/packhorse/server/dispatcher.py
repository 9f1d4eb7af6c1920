"""From texts to an engine: what is asked in one turn of the event loop goes together.

Tokenising one text costs mostly what a call costs, so the inputs of all small
requests of a turn are tokenised in one call, and leave as one message. Large
requests are tokenised in a thread: the loop must stay free for the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

from packhorse.errors import DeadlineExceededError, InternalError, ServedError
from packhorse.logs import describe
from packhorse.request import Sequences
from packhorse.server.admission import Admission
from packhorse.server.answer_room import SMALL, AnswerRoom
from packhorse.server.engine_client import EngineClient
from packhorse.server.pending import Pending
from packhorse.server.sharing import Sharing
from packhorse.tokenizing.tokenizer import Tokenizer

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 20_000
"""Requests of more are tokenised in a thread, which costs two switches, some 0.1 ms."""

TURN_CHARACTERS = 100_000
"""Small requests of more than that in one turn are divided over several."""


class Dispatcher:
    """Tokenises and sends."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        threads: ThreadPoolExecutor,
        engines: EngineClient,
        admission: Admission,
        room: AnswerRoom,
        sharing: Sharing | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        # Of its own, as it may have a long list to write: others are tokenised meanwhile.
        self._aside = ThreadPoolExecutor(1, "packhorse-aside")
        self._engines = engines
        self._admission = admission
        self._room = room
        self._sharing = sharing
        self._loop = asyncio.get_running_loop()
        self._turn: list[Pending] = []

    def release(self, pending: Pending) -> None:
        """The request is answered, failed or cancelled: others may have its place."""
        self._admission.release(pending)
        self._room.leave(pending)

    def submit(self, pending: Pending) -> None:
        """Send it on its way; its future tells of the end, which its deadline may be."""
        if pending.terms.deadline < math.inf:
            self._limit(pending)
        if pending.characters > INLINE_CHARACTERS:
            begun = time.monotonic()
            self._in_thread(
                pending,
                lambda: self._encoded([pending]),
                lambda sequences: self._depart([pending], sequences, time.monotonic() - begun),
                self._threads,
            )
            return
        if not self._turn:
            self._loop.call_soon(self._send_turn)
        self._turn.append(pending)

    def work(self, pending: Pending, work: Callable[[], bytes]) -> list[bytes]:
        """Have a thread do what needs no engine; its result is in the list at the end."""
        if pending.terms.deadline < math.inf:
            self._limit(pending)
        results: list[bytes] = []

        def take(result: bytes) -> None:
            results.append(result)
            pending.future.set_result(None)

        self._in_thread(pending, work, take, self._aside)
        return results

    def _limit(self, pending: Pending) -> None:
        """End the wait at the deadline, wherever the request is by then."""
        left = pending.terms.deadline - time.monotonic()
        if left <= 0:
            _expire(pending)
            return
        timer = self._loop.call_later(left, _expire, pending)
        pending.future.add_done_callback(lambda _: timer.cancel())

    def _in_thread(
        self,
        pending: Pending,
        work: Callable[[], Result],
        take: Callable[[Result], None],
        threads: ThreadPoolExecutor,
    ) -> None:
        """Work for a request in a thread; ``take`` the result if somebody still waits for it."""

        def end(done: asyncio.Future[Result]) -> None:
            if done.cancelled():
                return  # its client was gone before it began
            error = done.exception()
            if error is not None:
                pending.fail(_served(error))
            elif not pending.future.done():
                take(done.result())

        worked = self._loop.run_in_executor(threads, work)
        worked.add_done_callback(end)
        pending.future.add_done_callback(lambda _: worked.cancel())

    def _send_turn(self) -> None:
        waiting, self._turn = self._turn, []
        now = _first_characters(waiting, TURN_CHARACTERS)
        if len(now) < len(waiting):
            self._turn = waiting[len(now) :]
            self._loop.call_soon(self._send_turn)
        for alike in _by_options(now):
            self._send(alike)

    def _send(self, requests: list[Pending]) -> None:
        """Send requests that have the same options."""
        begun = time.monotonic()
        try:
            sequences = self._encoded(requests)
        except Exception as error:
            if len(requests) == 1:
                requests[0].fail(_served(error))
                return
            for pending in requests:  # only those at fault must fail
                self._send([pending])
        else:
            self._depart(requests, sequences, time.monotonic() - begun)

    def _encoded(self, requests: list[Pending]) -> Sequences:
        """The inputs of all, in order.

        Raises what the tokenizer raises, and ValidationError for too large an answer.
        """
        options, inputs = requests[0], requests[0].inputs
        if len(requests) > 1:
            inputs = [one for pending in requests for one in pending.inputs]
        if options.encode is not None:
            sequences = options.encode()
        else:
            sequences = self._tokenizer.encode(
                inputs, truncate=options.truncate, direction=options.direction
            )
        self._room.sizes.check(sequences)  # should several be too large together, they go apart
        return sequences

    def _depart(self, requests: list[Pending], sequences: Sequences, seconds: float) -> None:
        """Send what was tokenised. Whatever fails on the way, nobody is left to wait for ever."""
        try:
            self._note(requests, sequences, seconds)
            if self._sharing is not None:
                requests, sequences = self._sharing.reduce(requests, sequences)
        except Exception as error:
            _fail(requests, error)
            return
        if not requests:
            return
        if self._room.sizes.of_all(sequences) <= SMALL:
            self._go(requests, sequences)
        else:
            self._room.enter(requests, sequences, partial(self._go, requests, sequences))

    def _note(self, requests: list[Pending], sequences: Sequences, seconds: float) -> None:
        """What of all is each request's own, and what admission reserved against what it is."""
        if requests[0].encode is not None:  # it is alone, see ``_by_options``
            requests[0].expect(len(sequences))
        truncated = int(np.count_nonzero(sequences.truncated))
        token_ends, cuts = [sequences.num_tokens], [truncated]
        if len(requests) > 1:
            ends = np.cumsum([pending.count for pending in requests])
            token_ends = sequences.cu_seqlens[ends].tolist()
            cuts = [0] * len(requests)
            if truncated:
                cuts = np.cumsum(sequences.truncated)[ends - 1].tolist()
        token = cut = characters = estimate = 0
        now = time.monotonic()
        for pending, token_end, cut_end in zip(requests, token_ends, cuts, strict=True):
            estimate += pending.tokens
            characters += pending.characters
            pending.tokens, token = token_end - token, token_end
            pending.sent_tokens = pending.tokens
            pending.truncated, cut = cut_end - cut, cut_end
            pending.tokenization = seconds
            pending.departed = now
        self._admission.settle(estimate, token, 0 if truncated else characters)

    def _go(self, requests: list[Pending], sequences: Sequences) -> None:
        try:
            self._engines.best().send(requests, sequences)
        except Exception as error:
            _fail(requests, error)


def _first_characters(waiting: list[Pending], limit: int) -> list[Pending]:
    """The first requests, of at most ``limit`` characters together, but at least one."""
    characters = 0
    for index, pending in enumerate(waiting):
        characters += pending.characters
        if characters > limit and index:
            return waiting[:index]
    return waiting


def _by_options(requests: list[Pending]) -> list[list[Pending]]:
    """Requests that the tokenizer can take in one call, without those that have ended."""
    groups: dict[tuple[bool, str | None, int], list[Pending]] = {}
    for pending in requests:
        if not pending.future.done():
            alone = 0 if pending.encode is None else id(pending)
            groups.setdefault((pending.truncate, pending.direction, alone), []).append(pending)
    return list(groups.values())


def _expire(pending: Pending) -> None:
    pending.abandon(DeadlineExceededError("the deadline passed before the answer was there"))


def _fail(requests: list[Pending], error: Exception) -> None:
    logger.error("sending to the engine failed: %s", describe(error))
    for pending in requests:
        pending.fail(InternalError("internal error; the server's log says more"))


def _served(error: BaseException) -> ServedError:
    """What the client is told."""
    if isinstance(error, ServedError):
        return error
    logger.error("tokenising failed: %s", describe(error))
    return InternalError("tokenising failed; the server's log says more")
