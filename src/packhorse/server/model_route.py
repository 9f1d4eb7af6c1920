"""What the routes that ask the model share: body, admission, dispatch, counting, errors.

A route says what it reads and what it writes. All that is between is here, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np

from packhorse import metrics
from packhorse.errors import (
    InternalError,
    ServedError,
    TaskError,
    UnavailableError,
    ValidationError,
)
from packhorse.logs import describe
from packhorse.request import Answer, BoolArray, Sequences, TextOrPair
from packhorse.server.answers import answer_in, non_finite_in
from packhorse.server.body import ClientGoneError, Receive, Scope, Send, read_body
from packhorse.server.connection import Exchange, exchange_of
from packhorse.server.edge import id_of
from packhorse.server.pending import Pending
from packhorse.server.responses import JSON, Headers, error_headers, lines_of, send_answer
from packhorse.server.schemas import decoded, error_body
from packhorse.server.service import Service
from packhorse.server.terms import Terms, terms_of
from packhorse.tasks import DOES, Task
from packhorse.tokenizing.tokenizer import Direction
from packhorse.tokenizing.windows import Windows

logger = logging.getLogger(__name__)

DIRECTIONS: dict[str, Direction] = {
    "right": "right",
    "Right": "right",
    "left": "left",
    "Left": "left",
}

encode_json = msgspec.json.Encoder().encode

Body = TypeVar("Body")


@dataclass(slots=True)
class Asking:
    """One request on its way through a route.

    pending  what went to the engine; None where nothing did
    """

    body: bytes
    exchange: Exchange | None
    terms: Terms
    started: float
    pending: Pending | None = None


class ModelRoute:
    """A route that needs the model; its subclasses read and write.

    name    of the route in the metrics
    tasks   what the model must do
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]] = tuple(Task)

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self.service = service
        self.checkpoint = service.checkpoint
        self.auto_truncate = server.auto_truncate
        self._limit = server.payload_limit
        self._most = server.max_client_batch_size
        self._default_timeout = server.default_timeout_ms
        self._words = {s: metrics.REQUESTS.word(self.name, s) for s in metrics.STATUSES}
        self._compute_type = b"cpu" if service.config.model.device == "cpu" else b"gpu"

    async def answer(self, asking: Asking) -> bytes:
        """The JSON of the answer. Raises a ServedError or ClientGoneError."""
        raise NotImplementedError

    def error(self, error: ServedError) -> tuple[int, bytes]:
        """Status and JSON of an error, in text-embeddings-inference's shape if nothing else."""
        return error.status, error_body(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = time.monotonic()
        try:
            self._check_task()
            body = await read_body(scope, receive, self._limit)
            exchange = exchange_of(scope)
            asking = Asking(
                body, exchange, terms_of(scope, started, self._default_timeout), started
            )
            answer = await self.answer(asking)
            self._count(200)
            headers = self._headers(asking)
            if exchange is None:
                await send_answer(send, 200, answer, headers)
            else:
                await exchange.answer(lines_of(headers), answer)
        except ServedError as error:
            await self._refuse(send, error)
        except ClientGoneError:
            self._count(499)
        except Exception as error:
            logger.error("/%s failed: %s", self.name, describe(error), extra=id_of(scope))
            message = "internal error; the server's log says more"
            await self._refuse(send, InternalError(message))

    async def compute(
        self,
        asking: Asking,
        inputs: Sequence[Any],
        characters: int,
        *,
        truncate: bool | None = None,
        direction: str = "right",
        encode: Callable[[], Sequences] | None = None,
    ) -> Answer:
        """What the model gives for these inputs.

        ``encode`` tokenises them, where the tokenizer's own way is not what is wanted.
        Raises the errors of admission, of the tokenizer and of the engine.
        """
        self.check_room(len(inputs))
        service = self.service
        pending = Pending(
            list(inputs),
            characters,
            self.auto_truncate if truncate is None else truncate,
            DIRECTIONS[direction],
            service.admission.reserve(len(inputs), characters, asking.terms),
            asyncio.get_running_loop().create_future(),
            asking.terms,
        )
        pending.encode = encode
        asking.pending = pending
        if asking.exchange is not None:
            asking.exchange.wait_for(pending)
        try:
            service.dispatcher.submit(pending)
            await pending.future
        finally:
            if asking.exchange is not None:
                asking.exchange.wait_for(None)
            service.admission.release(pending)
        answer = self._answer_in(pending)
        service.observations.add(
            time.monotonic() - asking.started,
            pending.tokenization,
            pending.queue_wait,
            pending.inference,
            pending.count,
            pending.tokens,
            pending.truncated,
        )
        return answer

    def _answer_in(self, pending: Pending) -> Answer:
        try:
            return answer_in(pending)
        except ServedError:
            self.service.slot[metrics.NON_FINITE.first] += non_finite_in(pending)
            raise

    def read(self, decoder: msgspec.json.Decoder[Body], asking: Asking) -> Body:
        """The body as its class. Raises MalformedRequestError or ValidationError."""
        return decoded(decoder, asking.body)

    def _check_task(self) -> None:
        task = self.checkpoint.task
        if task not in self.tasks:
            wanted = " or ".join(DOES[one] for one in self.tasks)
            raise TaskError(
                f"the loaded model {DOES[task]} (task {task.value}); this route needs one that "
                f"{wanted}"
            )

    def in_windows(self, windows: Windows, texts: Sequence[str]) -> Sequences:
        """The windows of the texts, which may be many. Raises as ``check_room`` does."""
        sequences = windows.encode(texts)
        self.check_room(len(sequences))
        return sequences

    def check_room(self, inputs: int) -> None:
        """Raise ValidationError for too many inputs, UnavailableError if there is no engine."""
        if inputs > self._most:
            raise ValidationError(
                f"{inputs} inputs in one request; at most {self._most} are allowed "
                "(--max-client-batch-size)"
            )
        fault = self.service.engines.fault
        if fault is not None:
            raise UnavailableError(fault)

    async def _refuse(self, send: Send, error: ServedError) -> None:
        status, body = self.error(error)
        self._count(status)
        await send_answer(send, status, body, [JSON, *error_headers(error)])

    def _count(self, status: int) -> None:
        word = self._words.get(str(status), self._words["other"])
        self.service.slot[word] += 1.0

    def _headers(self, asking: Asking) -> Headers:
        """Those of text-embeddings-inference, in fractions of a millisecond; and ours."""
        pending = asking.pending
        if pending is None:
            return [JSON]
        total = b"%.3f" % ((time.monotonic() - asking.started) * 1000)
        return [
            JSON,
            (b"x-compute-type", self._compute_type + b"+optimized"),
            (b"x-compute-time", total),
            (b"x-compute-characters", b"%d" % pending.characters),
            (b"x-compute-tokens", b"%d" % pending.tokens),
            (b"x-total-time", total),
            (b"x-tokenization-time", b"%.3f" % (pending.tokenization * 1000)),
            (b"x-queue-time", b"%.3f" % (pending.queue_wait * 1000)),
            (b"x-inference-time", b"%.3f" % (pending.inference * 1000)),
            (b"x-truncated", b"%d" % pending.truncated),
        ]


def characters_of(inputs: Sequence[TextOrPair]) -> int:
    """Characters of all texts."""
    return sum([len(one) if isinstance(one, str) else len(one[0]) + len(one[1]) for one in inputs])


def at_token_level(sequences: Sequences) -> Sequences:
    """The same, with a row asked for each token."""
    flags: BoolArray = np.ones(len(sequences), np.bool_)
    return replace(sequences, token_level=flags)
