"""Vectors as JSON: a large answer is written in a thread, so that the event loop keeps turning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from packhorse.request import Float32Array
from packhorse.vectors import SparseVector

AT_ONCE = 1 << 16
"""Numbers that are written in the event loop: about 10 ms."""

PIECE = 1 << 14
"""Numbers that a thread writes at once, under Python's lock: others get it between two pieces."""

_encode = msgspec.json.Encoder().encode


async def rows_as_json(rows: Sequence[Float32Array]) -> list[msgspec.Raw]:
    """The JSON of each array, of any shape, ready to stand in another value."""
    if sum(row.size for row in rows) <= AT_ONCE:
        return _written(rows)
    return await asyncio.to_thread(_written, rows)


async def sparse_as_json(vectors: Sequence[SparseVector]) -> list[msgspec.Raw]:
    """The JSON of each: a list of objects with index and value."""
    if sum(len(vector.values) for vector in vectors) <= AT_ONCE:
        return _written_sparse(vectors)
    return await asyncio.to_thread(_written_sparse, vectors)


def _written_sparse(vectors: Sequence[SparseVector]) -> list[msgspec.Raw]:
    return [
        msgspec.Raw(
            _encode(
                [
                    {"index": index, "value": value}
                    for index, value in zip(
                        vector.indices.tolist(), vector.values.tolist(), strict=True
                    )
                ]
            )
        )
        for vector in vectors
    ]


def _written(rows: Sequence[Float32Array]) -> list[msgspec.Raw]:
    return [msgspec.Raw(_json_of(row)) for row in rows]


def _json_of(array: Float32Array) -> bytes:
    """In pieces of its first dimension, if it is large."""
    if array.size <= PIECE:
        return _encode(array.tolist())
    step = max(1, PIECE * len(array) // array.size)
    pieces = [_encode(array[i : i + step].tolist())[1:-1] for i in range(0, len(array), step)]
    return b"[" + b",".join(pieces) + b"]"
