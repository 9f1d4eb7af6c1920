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
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from packhorse.errors import DeadlineExceededError, InternalError, ServedError
from packhorse.logs import describe
from packhorse.request import Sequences
from packhorse.server.admission import Admission
from packhorse.server.engine_client import EngineClient
from packhorse.server.pending import Pending
from packhorse.server.sharing import Sharing
from packhorse.tokenizing.tokenizer import Tokenizer

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
        sharing: Sharing | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        self._engines = engines
        self._admission = admission
        self._sharing = sharing
        self._loop = asyncio.get_running_loop()
        self._turn: list[Pending] = []

    def submit(self, pending: Pending) -> None:
        """Send it on its way; its future tells of the end, which its deadline may be."""
        if pending.terms.deadline < math.inf:
            self._limit(pending)
        if pending.characters > INLINE_CHARACTERS:
            self._submit_large(pending)
            return
        if not self._turn:
            self._loop.call_soon(self._send_turn)
        self._turn.append(pending)

    def _limit(self, pending: Pending) -> None:
        """End the wait at the deadline, wherever the request is by then."""
        left = pending.terms.deadline - time.monotonic()
        if left <= 0:
            _expire(pending)
            return
        timer = self._loop.call_later(left, _expire, pending)
        pending.future.add_done_callback(lambda _: timer.cancel())

    def _submit_large(self, pending: Pending) -> None:
        begun = time.monotonic()

        def take(done: asyncio.Future[Sequences]) -> None:
            if done.cancelled():
                return  # its client was gone before it began
            error = done.exception()
            if error is not None:
                pending.fail(_served(error))
            elif not pending.future.done():
                self._depart([pending], done.result(), time.monotonic() - begun)

        encoded = self._loop.run_in_executor(self._threads, self._encoded, [pending])
        encoded.add_done_callback(take)
        pending.future.add_done_callback(lambda _: encoded.cancel())

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
        """The inputs of all, in order. Raises what the tokenizer raises."""
        if requests[0].encode is not None:
            return requests[0].encode()
        inputs = requests[0].inputs
        if len(requests) > 1:
            inputs = [one for pending in requests for one in pending.inputs]
        options = requests[0]
        return self._tokenizer.encode(
            inputs, truncate=options.truncate, direction=options.direction
        )

    def _depart(self, requests: list[Pending], sequences: Sequences, seconds: float) -> None:
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
        if self._sharing is not None:
            requests, sequences = self._sharing.reduce(requests, sequences)
        if requests:
            self._engines.best().send(requests, sequences)


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
    groups: dict[tuple[bool, str, int], list[Pending]] = {}
    for pending in requests:
        if not pending.future.done():
            alone = 0 if pending.encode is None else id(pending)
            groups.setdefault((pending.truncate, pending.direction, alone), []).append(pending)
    return list(groups.values())


def _expire(pending: Pending) -> None:
    pending.abandon(DeadlineExceededError("the deadline passed before the answer was there"))


def _served(error: BaseException) -> ServedError:
    """What the client is told."""
    if isinstance(error, ServedError):
        return error
    logger.error("tokenising failed: %s", describe(error))
    return InternalError("tokenising failed; the server's log says more")
