"""gzip for large answers, where it is switched on and the client takes it."""

from __future__ import annotations

import asyncio
import gzip

GZIP_BYTES = 1000
"""Smaller answers are not worth it: they fit one packet as they are."""

GZIP_LEVEL = 1
"""Scores are digits: higher levels save little of them and cost several times as much."""

_INLINE_BYTES = 20_000
"""Larger ones are compressed in a thread, so that the loop stays free (some 0.2 ms here)."""


async def compressed(body: bytes) -> bytes:
    """The same, gzipped."""
    if len(body) <= _INLINE_BYTES:
        return gzip.compress(body, GZIP_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)
