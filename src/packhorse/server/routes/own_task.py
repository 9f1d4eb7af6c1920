"""POST / and /invocations: the model's own task, in one of two families of shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import ASGIApp

from packhorse.errors import ServedError
from packhorse.server.body import Message, Receive, Scope, Send, encoding_of
from packhorse.server.edge import HEADERS
from packhorse.server.inflating import inflated

_WORD = b'"parameters"'


class _Looked(msgspec.Struct):
    """What of a body is looked at."""

    parameters: Any = None


_decoder = msgspec.json.Decoder(_Looked)


class OwnTask:
    """Sends a body with an object ``parameters`` to one route, all others to the other.

    own       the route in text-embeddings-inference's shapes
    pipeline  the one in those of Transformers' pipelines, which the hub's clients speak
    limit     bytes of a body that are looked at; ``own`` refuses larger ones
    """

    def __init__(self, own: ASGIApp, pipeline: ASGIApp, limit: int) -> None:
        self._own = own
        self._pipeline = pipeline
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, and hand it on unread."""
        declared = scope[HEADERS].get(b"content-length")
        if declared is not None and int(declared) > self._limit:
            await self._own(scope, receive, send)
            return
        messages, size = [await receive()], 0
        while messages[-1].get("more_body", False) and size <= self._limit:
            size += len(messages[-1]["body"])
            messages.append(await receive())
        body = b"".join([message.get("body", b"") for message in messages])
        encoding = encoding_of(scope[HEADERS])
        if encoding is not None and size <= self._limit:
            body = await self._looked_into(body, encoding)
        route = self._pipeline if _has_parameters(body) else self._own
        await route(scope, _again(messages, receive), send)

    async def _looked_into(self, body: bytes, encoding: bytes) -> bytes:
        """A compressed body, inflated; of one that cannot be nothing: the route says why."""
        try:
            return await inflated(body, encoding, self._limit) or b""
        except ServedError:
            return b""


def _has_parameters(body: bytes) -> bool:
    if _WORD not in body:
        return False
    try:
        return isinstance(_decoder.decode(body).parameters, dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # the route says what is wrong with it


def _again(messages: list[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def again() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return again
