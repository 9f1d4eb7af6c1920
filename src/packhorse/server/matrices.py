"""Vectors as JSON: a large answer is written in a thread, so that the event loop keeps turning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from packhorse.request import Float32Array

AT_ONCE = 1 << 16
"""Numbers that are written in the event loop: about 10 ms. A row's JSON is made under Python's
lock, which other threads get between two rows."""

_encode = msgspec.json.Encoder().encode


async def rows_as_json(rows: Sequence[Float32Array]) -> list[msgspec.Raw]:
    """The JSON of each array, of any shape, ready to stand in another value."""
    if sum(row.size for row in rows) <= AT_ONCE:
        return _written(rows)
    return await asyncio.to_thread(_written, rows)


def _written(rows: Sequence[Float32Array]) -> list[msgspec.Raw]:
    return [msgspec.Raw(_encode(row.tolist())) for row in rows]
