"""Vectors as JSON: a large answer is written in a thread, so that the event loop keeps turning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from packhorse.request import Float32Array
from packhorse.vectors import SparseVector

AT_ONCE = 1 << 16
"""Numbers that are written in the event loop: about 10 ms. A row's JSON is made under Python's
lock, which other threads get between two rows."""

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
    return [msgspec.Raw(_encode(row.tolist())) for row in rows]
