"""A connection of the load generator, without a network."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from packhorse.tools.bench.serve.bodies import Request
from packhorse.tools.bench.serve.connection import Connection
from packhorse.tools.bench.serve.tally import COLUMNS, Tally

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-compute-tokens: 7\r\nx-total-time: 0.5\r\n"
    b"X-Queue-Time: 0.1\r\nx-tokenization-time: 0.2\r\nx-inference-time: 0.3\r\n\r\n[]"
)


class Transport(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def test_what_checking_an_answer_takes_is_not_the_servers_time() -> None:
    def slow(body: bytes, texts: int) -> None:
        assert body == b"[]"
        time.sleep(0.05)

    tally, free = Tally(), []
    connection = Connection(free.append, free.append, tally, slow)
    connection.connection_made(Transport())
    connection.send(Request(b"", 1), time.perf_counter())
    for place in range(0, len(ANSWER), 40):  # in pieces, as they may come
        connection.data_received(ANSWER[place : place + 40])
    (row,) = tally.table()
    values = dict(zip(COLUMNS, row.tolist(), strict=True))
    assert values["ended"] - values["intended"] < 0.04
    assert (values["tokens"], values["total"], values["queue"]) == (7, 0.5, 0.1)
    assert (values["tokenization"], values["inference"]) == (0.2, 0.3)
    assert values["status"] == pytest.approx(200)
    assert free == [connection, connection]
