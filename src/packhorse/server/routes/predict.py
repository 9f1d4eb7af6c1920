"""POST /predict: texts and pairs to labels with scores, as text-embeddings-inference does it.

This is the hot path: it runs for every request, so it is a plain ASGI
callable, and what can be prepared is prepared once.
"""

from __future__ import annotations

import asyncio
import logging
import time

from packhorse import metrics
from packhorse.errors import (
    InternalError,
    ServedError,
    UnavailableError,
    ValidationError,
)
from packhorse.logs import describe
from packhorse.request import Sequences, TextOrPair
from packhorse.server.answers import answer_in, non_finite_in
from packhorse.server.body import ClientGoneError, Receive, Scope, Send, read_body
from packhorse.server.connection import Exchange, exchange_of
from packhorse.server.edge import id_of
from packhorse.server.model_route import DIRECTIONS, characters_of
from packhorse.server.pending import Pending
from packhorse.server.responses import Headers, send_answer, send_error
from packhorse.server.schemas import PredictRequest, decode_predict, inputs_of
from packhorse.server.scores import ScoreWriter
from packhorse.server.service import Service
from packhorse.server.terms import Terms, terms_of
from packhorse.tokenizing.windows import Windows

logger = logging.getLogger(__name__)

_HEAD = b"".join(
    line + b"\r\n"
    for line in (
        b"content-type: application/json",
        b"x-compute-type: %b+optimized",
        b"x-compute-time: %.3f",
        b"x-compute-characters: %d",
        b"x-compute-tokens: %d",
        b"x-total-time: %.3f",
        b"x-tokenization-time: %.3f",
        b"x-queue-time: %.3f",
        b"x-inference-time: %.3f",
        b"x-truncated: %d",
    )
)


class Predict:
    """The route."""

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self._admission = service.admission
        self._tokenizer = service.tokenizer
        self._dispatcher = service.dispatcher
        self._observations = service.observations
        self._engines = service.engines
        self._payload_limit = server.payload_limit
        self._most_inputs = server.max_client_batch_size
        self._default_timeout = server.default_timeout_ms
        self._auto_truncate = server.auto_truncate
        self._writer = ScoreWriter(service.checkpoint.labels, service.checkpoint.problem_type)
        self._slot = service.slot
        self._words = {s: metrics.REQUESTS.word("predict", s) for s in metrics.STATUSES}
        self._compute_type = b"cpu" if service.config.model.device == "cpu" else b"gpu"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        try:
            body = await read_body(scope, receive, self._payload_limit)
            exchange = exchange_of(scope)
            terms = terms_of(scope, started, self._default_timeout)
            answer, head = await self._answer(body, exchange, terms, started)
            self._count("200")
            if exchange is None:
                await send_answer(send, 200, answer, _parsed(head))
            else:
                await exchange.answer(head, answer)
        except ServedError as error:
            self._count(str(error.status))
            await send_error(send, error)
        except ClientGoneError:
            self._count("499")
        except Exception as error:
            logger.error("/predict failed: %s", describe(error), extra=id_of(scope))
            self._count("500")
            await send_error(send, InternalError("internal error; the server's log says more"))

    def _count(self, status: str) -> None:
        self._slot[self._words[status]] += 1.0

    async def _answer(
        self, body: bytes, exchange: Exchange | None, terms: Terms, started: float
    ) -> tuple[bytes, bytes]:
        """The body of the answer, and its header lines.

        Raises a ServedError or ClientGoneError.
        """
        request = decode_predict(body)
        inputs, is_batch = self._checked_inputs(request)
        characters = characters_of(inputs)
        pending = Pending(
            inputs,
            characters,
            self._auto_truncate if request.truncate is None else request.truncate,
            DIRECTIONS[request.truncation_direction],
            self._admission.reserve(len(inputs), characters, terms),
            asyncio.get_running_loop().create_future(),
            terms,
        )
        windows = self._windows(request, pending)
        if exchange is not None:
            exchange.wait_for(pending)
        try:
            self._dispatcher.submit(pending)
            await pending.future
        finally:
            if exchange is not None:
                exchange.wait_for(None)
            self._admission.release(pending)
        rows = self._rows(pending, request.raw_scores, windows)
        total = time.monotonic() - started
        self._observations.add(
            total,
            pending.tokenization,
            pending.queue_wait,
            pending.inference,
            pending.count,
            pending.tokens,
            pending.truncated,
        )
        answer = b"[" + b",".join(rows) + b"]" if is_batch else rows[0]
        return answer, self._head(pending, total)

    def _checked_inputs(self, request: PredictRequest) -> tuple[list[TextOrPair], bool]:
        """The inputs, and whether they are a batch.

        Raises ValidationError or UnavailableError: what can be refused before any work is done.
        """
        inputs, is_batch = inputs_of(request)
        self._check_room(len(inputs))
        fault = self._engines.fault
        if fault is not None:
            raise UnavailableError(fault)
        return inputs, is_batch

    def _check_room(self, inputs: int) -> None:
        if inputs > self._most_inputs:
            raise ValidationError(
                f"{inputs} inputs in one request; at most {self._most_inputs} are allowed "
                "(--max-client-batch-size)"
            )

    def _windows(self, request: PredictRequest, pending: Pending) -> Windows | None:
        """Where long texts are read in windows: has ``pending`` tokenised so."""
        if request.stride is None:
            return None
        windows = Windows(self._tokenizer, request.stride)

        def encode() -> Sequences:
            sequences = windows.encode(pending.inputs)  # type: ignore[arg-type]
            self._check_room(len(sequences))
            return sequences

        pending.encode = encode
        return windows

    def _rows(self, pending: Pending, raw_scores: bool, windows: Windows | None) -> list[bytes]:
        try:
            if windows is None:
                return self._writer.rows(pending, raw_scores)
            scores = self._writer.scores(answer_in(pending).values, raw_scores)
            return self._writer.written(windows.per_text(scores))
        except ServedError:
            self._slot[metrics.NON_FINITE.first] += non_finite_in(pending)
            raise

    def _head(self, pending: Pending, total: float) -> bytes:
        """Headers of text-embeddings-inference, but in fractions of a millisecond; and ours."""
        return _HEAD % (
            self._compute_type,
            total * 1000,
            pending.characters,
            pending.tokens,
            total * 1000,
            pending.tokenization * 1000,
            pending.queue_wait * 1000,
            pending.inference * 1000,
            pending.truncated,
        )


def _parsed(head: bytes) -> Headers:
    """Header lines as ASGI wants them."""
    lines = head.split(b"\r\n")[:-1]
    return [(name, value) for name, value in (line.split(b": ", 1) for line in lines)]
