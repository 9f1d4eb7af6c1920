"""Vectors as JSON, small and large."""

from __future__ import annotations

import asyncio
import json

import msgspec
import numpy as np

from packhorse.server.matrices import AT_ONCE, rows_as_json
from packhorse.server.process import _every


def test_rows_keep_their_numbers_and_shapes() -> None:
    rows = [np.float32([0.1, -2.5]), np.float32([[1, 2], [3, 4]]), np.empty((0, 3), np.float32)]
    written = msgspec.json.encode(asyncio.run(rows_as_json(rows)))
    assert [np.float32(row).tolist() for row in json.loads(written)] == [
        row.tolist() for row in rows
    ]


def test_the_loop_turns_while_a_large_answer_is_written() -> None:
    async def turns() -> int:
        rows = np.random.default_rng(0).random((3000, 768), np.float32)
        assert rows.size > 10 * AT_ONCE
        writing, count = asyncio.create_task(rows_as_json(list(rows))), 0
        while not writing.done():
            await asyncio.sleep(0.001)
            count += 1
        assert len(await writing) == len(rows)
        return count

    assert asyncio.run(turns()) > 10  # written in the loop it would be one


def test_what_is_done_again_and_again_survives_a_fault() -> None:
    calls = []

    def action() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ValueError("once")

    async def run() -> None:
        repeating = asyncio.create_task(_every(0.001, action))
        while len(calls) < 3:
            await asyncio.sleep(0.001)
        repeating.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
