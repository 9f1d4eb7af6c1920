"""Writing answers as ASGI messages, without a framework in between."""

from __future__ import annotations

import math

from packhorse.errors import (
    NotNowError,
    ServedError,
    TooManyConnectionsError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
)
from packhorse.server.api_keys import CHALLENGE
from packhorse.server.body import Headers as Headers
from packhorse.server.body import Send
from packhorse.server.inflating import ACCEPTED
from packhorse.server.schemas import error_body

JSON = (b"content-type", b"application/json")


def lines_of(headers: Headers) -> bytes:
    """The headers as they are written, each with its line end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


async def send_answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """An answer; ``headers`` without the length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServedError) -> None:
    """The one way in which errors are answered."""
    await send_answer(send, error.status, error_body(error), [JSON, *error_headers(error)])


def error_headers(error: ServedError) -> Headers:
    """What its status asks for: Retry-After, in whole seconds, how to say who one is, or which
    compressions are read."""
    headers: Headers = []
    if isinstance(error, NotNowError):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    if isinstance(error, TooManyConnectionsError):
        headers.append((b"connection", b"close"))
    if isinstance(error, UnauthorizedError):
        headers.append(CHALLENGE)
    if isinstance(error, UnsupportedMediaTypeError):
        headers.append((b"accept-encoding", ACCEPTED))  # RFC 9110, section 12.5.3
    return headers
