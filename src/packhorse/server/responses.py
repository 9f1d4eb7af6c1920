"""Writing answers as ASGI messages, without a framework in between."""

from __future__ import annotations

import math

from packhorse.errors import NotNowError, ServedError
from packhorse.server.body import Send
from packhorse.server.schemas import error_body

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


async def send_answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """An answer; ``headers`` without the length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServedError) -> None:
    """The one way in which errors are answered."""
    await send_answer(send, error.status, error_body(error), [JSON, *error_headers(error)])


def error_headers(error: ServedError) -> Headers:
    """Retry-After, in whole seconds, where trying again makes sense."""
    if isinstance(error, NotNowError):
        return [(b"retry-after", b"%d" % max(1, math.ceil(error.retry_after)))]
    return []
