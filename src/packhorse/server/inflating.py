"""Bodies that come compressed, by gzip or deflate: never inflated beyond what a plain one may be.

Zeros of a thousand times its size fit into a body. So no more than the limit is ever made of
one, and large ones are inflated one after the other, in one thread: however many come at once,
they take the memory of one, until each is read and let in as a plain one is.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

from packhorse.errors import MalformedRequestError, UnsupportedMediaTypeError

ACCEPTED = b"gzip, deflate"
"""What a client is told that may send."""

_INLINE_BYTES = 20_000
"""Of an inflated body: it takes some 50 µs, less than the way to a thread and back."""

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

_thread = ThreadPoolExecutor(1, "packhorse-inflate")


async def inflated(body: bytes, encoding: bytes, most: int) -> bytes | None:
    """The plain body, or None where it has more than ``most`` bytes.

    encoding  of the header Content-Encoding: gzip, x-gzip, or deflate (RFC 9110, section 8.4.1)

    Raises UnsupportedMediaTypeError for another encoding, and MalformedRequestError for what is
    not what it claims to be, ends too soon, or is followed by something else.
    """
    name = encoding.strip().lower()
    if name not in (b"gzip", b"x-gzip", b"deflate"):
        raise UnsupportedMediaTypeError(
            f"bodies are not read compressed by {encoding[:40].decode('latin-1')!r}: send gzip or "
            "deflate, or plain JSON"
        )
    if len(body) <= _INLINE_BYTES:
        plain = _at_most(body, name, min(most, _INLINE_BYTES))
        if plain is not None or most <= _INLINE_BYTES:
            return plain
    return await asyncio.get_running_loop().run_in_executor(_thread, _at_most, body, name, most)


def _at_most(body: bytes, name: bytes, most: int) -> bytes | None:
    stream = zlib.decompressobj(_window_bits(body, name))
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise MalformedRequestError(
            f"the body is not compressed by {name.decode()}, as its header says: {error}"
        ) from None
    if len(plain) > most:
        return None
    if not stream.eof:
        raise MalformedRequestError(f"the body ends before its {name.decode()} data does")
    if stream.unused_data:  # a second gzip stream too: no client of HTTP sends one
        raise MalformedRequestError(f"the body goes on after its {name.decode()} data")
    return plain


def _window_bits(body: bytes, name: bytes) -> int:
    """How zlib shall read it. Some clients leave out the zlib header that deflate has to have."""
    if name != b"deflate":
        return _GZIP
    has_header = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _ZLIB if has_header else _RAW
