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

_JSON_LINE = lines_of([JSON])

_HEAD = _JSON_LINE + b"".join(
    line + b"\r\n"
    for line in (
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

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for the answer any more: its client is gone, or its time is up."""
        return self.pending is not None and self.pending.future.done()


class ModelRoute:
    """A route that needs the model; its subclasses read and write.

    name     of the route in the metrics
    tasks    what the model must do
    answers  the type of the answer, for the OpenAPI document
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[Task, ...]] = tuple(Task)
    answers: ClassVar[Any]

    def __init__(self, service: Service) -> None:
        server = service.config.server
        self.service = service
        self.checkpoint = service.checkpoint
        self.auto_truncate = server.auto_truncate
        self.answer_limit = server.answer_limit
        self._admission = service.admission
        self._dispatcher = service.dispatcher
        self._payload_limit = server.payload_limit
        self._most_inputs = server.max_client_batch_size
        self._default_timeout = server.default_timeout_ms
        self._words = {s: metrics.REQUESTS.word(self.name, s) for s in metrics.STATUSES}
        self._compute_type = b"cpu" if service.config.model.device == "cpu" else b"gpu"
        self._wrong_task = _wrong_task(self.checkpoint.task, self.tasks)

    async def answer(self, asking: Asking) -> bytes:
        """The JSON of the answer. Raises a ServedError or ClientGoneError."""
        raise NotImplementedError

    def error(self, error: ServedError) -> tuple[int, bytes]:
        """Status and JSON of an error, in text-embeddings-inference's shape if nothing else."""
        return error.status, error_body(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, exchange = time.monotonic(), None
        try:
            if self._wrong_task is not None:
                raise TaskError(self._wrong_task)
            body = await read_body(scope, receive, self._payload_limit)
            exchange = exchange_of(scope)
            terms = terms_of(scope, started, self._default_timeout)
            asking = Asking(body, exchange, terms, started)
            try:
                answer = await self.answer(asking)
            except ServedError:
                self._count_non_finite(asking.pending)
                raise
            finally:
                if asking.pending is not None:
                    self._dispatcher.release(asking.pending)
                    if exchange is not None:
                        exchange.wait_for(None)
            head = self._head(asking)
            self._count("200")
            if exchange is None:
                await send_answer(send, 200, answer, headers_of(head))
            else:
                await exchange.answer(head, answer)
        except ServedError as error:
            await self._refuse(send, error, exchange)
        except ClientGoneError:
            self._count("499")
        except Exception as error:
            logger.error("/%s failed: %s", self.name, describe(error), extra=id_of(scope))
            await self._refuse(send, InternalError("internal error; the server's log says more"))

    async def compute(
        self,
        asking: Asking,
        inputs: Sequence[Any],
        characters: int,
        *,
        truncate: bool | None = None,
        direction: str | None = None,
        encode: Callable[[], Sequences] | None = None,
        input_of: Callable[[], Sequence[int]] | None = None,
    ) -> Answer:
        """What the model gives for these inputs; once in a request.

        ``encode`` tokenises them, where the tokenizer's own way is not what is wanted; if it
        makes several sequences of one, ``input_of`` says afterwards of which input each is.
        Raises the errors of admission, of the tokenizer and of the engine.
        """
        pending = self.submit(asking, list(inputs), characters, truncate, direction, encode)
        await pending.future
        return answer_in(pending, None if input_of is None else input_of())

    def submit(
        self,
        asking: Asking,
        inputs: list[Any],
        characters: int,
        truncate: bool | None,
        direction: str | None,
        encode: Callable[[], Sequences] | None = None,
    ) -> Pending:
        """The same before the answer is there: await its future, which raises the other errors."""
        self.check_room(len(inputs))
        estimate = self._admission.reserve(len(inputs), characters, asking.terms)
        pending = self._pending(asking, inputs, characters, estimate)
        pending.truncate = self.auto_truncate if truncate is None else truncate
        pending.direction = None if direction is None else DIRECTIONS[direction]
        pending.encode = encode
        self._dispatcher.submit(pending)
        return pending

    async def worked(
        self, asking: Asking, inputs: list[Any], characters: int, work: Callable[[], bytes]
    ) -> bytes:
        """What a thread makes of these inputs, where no engine is needed.

        Admission is that of what is computed, and raises the same errors.
        """
        self.check_room(len(inputs))
        self._admission.reserve_thread(len(inputs))
        pending = self._pending(asking, inputs, characters, 0)
        results = self._dispatcher.work(pending, work)
        await pending.future
        return results[0]

    def read(self, decoder: msgspec.json.Decoder[Body], asking: Asking) -> Body:
        """The body as its class. Raises MalformedRequestError or ValidationError."""
        return decoded(decoder, asking.body)

    def in_windows(self, windows: Windows, texts: Sequence[str]) -> Sequences:
        """The windows of the texts, which may be many. Raises as ``check_room`` does."""
        sequences = windows.encode(texts)
        self.check_room(len(sequences))
        return sequences

    def check_room(self, inputs: int) -> None:
        """Raise ValidationError for too many inputs, UnavailableError if there is no engine."""
        if inputs > self._most_inputs:
            raise ValidationError(
                f"{inputs} inputs in one request; at most {self._most_inputs} are allowed "
                "(--max-client-batch-size)"
            )
        fault = self.service.engines.fault
        if fault is not None:
            raise UnavailableError(fault)

    def _pending(
        self, asking: Asking, inputs: list[Any], characters: int, estimate: int
    ) -> Pending:
        """The request that was let in, which ends when its client hangs up.

        See ``__call__`` for where it is released.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = Pending(inputs, characters, True, None, estimate, future, asking.terms)
        asking.pending = pending
        if asking.exchange is not None:
            asking.exchange.wait_for(pending)
        return pending

    def _count_non_finite(self, pending: Pending | None) -> None:
        if pending is not None:
            self.service.slot[metrics.NON_FINITE.first] += non_finite_in(pending)

    async def _refuse(
        self, send: Send, error: ServedError, exchange: Exchange | None = None
    ) -> None:
        """Answer with the error; by the exchange, once the body is read, as most are overload's."""
        status, body = self.error(error)
        self._count(str(status))
        headers = [JSON, *error_headers(error)]
        if exchange is None:
            await send_answer(send, status, body, headers)
        else:
            await exchange.answer(lines_of(headers), body, status)

    def _count(self, status: str) -> None:
        self.service.slot[self._words.get(status, self._words["other"])] += 1.0

    def _head(self, asking: Asking) -> bytes:
        """The header lines: text-embeddings-inference's, in fractions of a millisecond; and ours.

        The request is observed here, where its time is known.
        """
        pending = asking.pending
        if pending is None or not pending.departed:  # no engine was asked
            return _JSON_LINE
        total = time.monotonic() - asking.started
        self.service.observations.add(
            total,
            pending.tokenization,
            pending.queue_wait,
            pending.inference,
            pending.count,
            pending.tokens,
            pending.truncated,
        )
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


def headers_of(head: bytes) -> Headers:
    """Header lines as ASGI wants them."""
    lines = head.split(b"\r\n")[:-1]
    return [(name, value) for name, value in (line.split(b": ", 1) for line in lines)]


def _wrong_task(task: Task, tasks: tuple[Task, ...]) -> str | None:
    """What to tell who asks a model for what it does not do; None if it does."""
    if task in tasks:
        return None
    wanted = " or ".join(DOES[one] for one in tasks)
    return f"the loaded model {DOES[task]} (task {task.value}); this route needs one that {wanted}"


def characters_of(inputs: Sequence[TextOrPair]) -> int:
    """Characters of all texts."""
    return sum([len(one) if isinstance(one, str) else len(one[0]) + len(one[1]) for one in inputs])


def at_token_level(sequences: Sequences) -> Sequences:
    """The same, with a row asked for each token."""
    flags: BoolArray = np.ones(len(sequences), np.bool_)
    return replace(sequences, token_level=flags)
