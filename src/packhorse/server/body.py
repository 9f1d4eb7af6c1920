"""Reading a request's body: within the limit, plain or inflated, and only what is declared JSON.

A missing content type is taken for JSON, as some clients send none. Another
one is refused rather than guessed at: browsers send text/plain and forms to
any address without asking, so a web page could put a local server to work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from packhorse.errors import PayloadTooLargeError, UnsupportedMediaTypeError
from packhorse.server.inflating import inflated

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class ClientGoneError(Exception):
    """The client hung up: nobody reads an answer."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, as it was before it was compressed.

    Raises PayloadTooLargeError as soon as it is known, UnsupportedMediaTypeError,
    MalformedRequestError for a broken compression, or ClientGoneError.
    """
    headers: dict[bytes, bytes] = scope["packhorse.headers"]
    declared = headers.get(b"content-length")
    if declared is not None and int(declared) > limit:
        raise _too_large(limit)
    content_type = headers.get(b"content-type")
    if content_type is not None and content_type != b"application/json":
        _check_content_type(content_type)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    body: bytes = message["body"]
    if message["more_body"]:
        body = await _rest(body, receive, limit)
    if len(body) > limit:
        raise _too_large(limit)
    encoding = encoding_of(headers)
    if encoding is None:
        return body
    plain = await inflated(body, encoding, limit)
    if plain is None:
        raise _too_large(limit)
    return plain


def encoding_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """How a body is compressed; None for a plain one."""
    encoding = headers.get(b"content-encoding")
    return encoding if encoding and encoding.strip().lower() != b"identity" else None


async def _rest(start: bytes, receive: Receive, limit: int) -> bytes:
    pieces = [start]
    size = len(start)
    more = True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        pieces.append(message["body"])
        size += len(message["body"])
        more = message["more_body"]
    return b"".join(pieces)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the body is larger than {limit} bytes (--payload-limit): send fewer inputs at once"
    )


def _check_content_type(value: bytes) -> None:
    """Raise UnsupportedMediaTypeError unless it means JSON in UTF-8."""
    kind, *parameters = value.decode("latin-1").lower().replace(" ", "").split(";")
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise UnsupportedMediaTypeError(
            "the content type is not application/json: set the header Content-Type"
        )
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name == "charset" and charset.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaTypeError("JSON is read as UTF-8 only")
