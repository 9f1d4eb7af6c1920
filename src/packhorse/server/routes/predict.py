"""POST /predict: texts and pairs to labels with scores, as text-embeddings-inference does it.

This is the hot path: it runs for every request, so it is a plain ASGI
callable, and what can be prepared is prepared once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence as PySequence
from functools import partial

import numpy as np

from packhorse import metrics
from packhorse.errors import (
    InternalError,
    NonFiniteOutputError,
    ServedError,
    UnavailableError,
    ValidationError,
)
from packhorse.logs import describe
from packhorse.request import Sequences, TextOrPair
from packhorse.server.body import ClientGoneError, Receive, Scope, Send, read_body
from packhorse.server.connection import connection_of
from packhorse.server.engine_client import Pending
from packhorse.server.responses import Headers, send_error, send_json
from packhorse.server.schemas import decode_predict, inputs_of
from packhorse.server.scores import ScoreWriter
from packhorse.server.service import Service
from packhorse.tokenizer import Direction

logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 20_000
"""Requests of at most so many characters are tokenised in the event loop, others in a thread.

A thread costs two switches, some 0.1 ms; the loop is held up for as long as the tokenizer takes.
"""

_DIRECTIONS: dict[str, Direction] = {
    **{"right": "right", "Right": "right"},
    **{"left": "left", "Left": "left"},
}


class Predict:
    """The route."""

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self._service = service
        self._admission = service.admission
        self._engines = service.engines
        self._payload_limit = server.payload_limit
        self._most_inputs = server.max_client_batch_size
        self._auto_truncate = server.auto_truncate
        self._writer = ScoreWriter(service.checkpoint.labels, service.checkpoint.problem_type)
        self._slot = service.slot
        self._words = {s: metrics.REQUESTS.word("predict", s) for s in metrics.STATUSES}
        kind = b"cpu" if service.config.model.device == "cpu" else b"gpu"
        self._compute_type = (b"x-compute-type", kind + b"+optimized")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        try:
            body = await read_body(scope, receive, self._payload_limit)
            answer, headers = await self._answer(body, scope, started)
            self._count("200")
            await send_json(send, 200, answer, headers)
        except ServedError as error:
            self._count(str(error.status))
            await send_error(send, error)
        except ClientGoneError:
            self._count("499")
        except Exception as error:
            logger.error("/predict failed: %s", describe(error))
            self._count("500")
            await send_error(send, InternalError("internal error; the server's log says more"))

    def _count(self, status: str) -> None:
        self._slot[self._words[status]] += 1.0

    async def _answer(self, body: bytes, scope: Scope, started: float) -> tuple[bytes, Headers]:
        """The body and the headers of the answer.

        Raises a ServedError or ClientGoneError.
        """
        request = decode_predict(body)
        inputs, is_batch = inputs_of(request)
        if len(inputs) > self._most_inputs:
            raise ValidationError(
                f"{len(inputs)} inputs in one request; at most {self._most_inputs} are allowed "
                "(--max-client-batch-size)"
            )
        fault = self._engines.fault
        if fault is not None:
            raise UnavailableError(fault)
        characters = characters_of(inputs)
        tokens = self._admission.reserve(len(inputs), characters)
        try:
            begun = time.monotonic()
            truncate = self._auto_truncate if request.truncate is None else request.truncate
            direction = _DIRECTIONS[request.truncation_direction]
            if characters <= INLINE_CHARACTERS:
                sequences = self._service.tokenizer.encode(
                    inputs, truncate=truncate, direction=direction
                )
            else:
                sequences = await self._tokenized_in_thread(inputs, truncate, direction)
            tokenization = time.monotonic() - begun
            truncated = int(np.count_nonzero(sequences.truncated))
            self._admission.settle(
                tokens, sequences.num_tokens, 0 if truncated else characters
            )
            tokens = sequences.num_tokens
            pending = self._engines.submit(sequences)
            await _answered(pending, scope)
        finally:
            self._admission.release(len(inputs), tokens)
        rows = self._rows(pending, request.raw_scores)
        total = time.monotonic() - started
        self._observe(pending, truncated, tokenization, total)
        headers = [
            self._compute_type,
            (b"x-compute-time", b"%.3f" % (total * 1000)),
            (b"x-compute-characters", b"%d" % characters),
            (b"x-compute-tokens", b"%d" % tokens),
            (b"x-total-time", b"%.3f" % (total * 1000)),
            (b"x-tokenization-time", b"%.3f" % (tokenization * 1000)),
            (b"x-queue-time", b"%.3f" % (pending.queue_wait * 1000)),
            (b"x-inference-time", b"%.3f" % (pending.inference * 1000)),
            (b"x-truncated", b"%d" % truncated),
        ]
        return b"[" + b",".join(rows) + b"]" if is_batch else rows[0], headers

    async def _tokenized_in_thread(
        self, inputs: PySequence[TextOrPair], truncate: bool, direction: Direction
    ) -> Sequences:
        """Not in the loop, where a large request would hold up all others."""
        return await asyncio.get_running_loop().run_in_executor(
            self._service.tokenizer_threads,
            partial(
                self._service.tokenizer.encode, inputs, truncate=truncate, direction=direction
            ),
        )

    def _rows(self, pending: Pending, raw_scores: bool) -> list[bytes]:
        try:
            return self._writer.rows(pending, raw_scores)
        except NonFiniteOutputError:
            self._slot[metrics.NON_FINITE.first] += 1.0
            raise

    def _observe(
        self, pending: Pending, truncated: int, tokenization: float, total: float
    ) -> None:
        slot = self._slot
        slot[metrics.SEQUENCES.first] += pending.count
        slot[metrics.TOKENS.first] += pending.tokens
        slot[metrics.TRUNCATED.first] += truncated
        metrics.TOTAL_TIME.observe(slot, total)
        metrics.TOKENIZATION_TIME.observe(slot, tokenization)
        metrics.QUEUE_TIME.observe(slot, pending.queue_wait)
        metrics.INFERENCE_TIME.observe(slot, pending.inference)


def characters_of(inputs: PySequence[TextOrPair]) -> int:
    """Characters of all texts."""
    return sum(
        [len(one) if isinstance(one, str) else len(one[0]) + len(one[1]) for one in inputs]
    )


async def _answered(pending: Pending, scope: Scope) -> None:
    """Wait for the answer, or until the client hangs up.

    Raises ClientGoneError or what the engine's side ended it with.
    """
    connection = connection_of(scope)
    if connection is None:
        await pending.future
        return
    connection.pending = pending
    try:
        await pending.future
    finally:
        connection.pending = None
