"""Clients that come and go for a while must leave nothing behind: no slots, no memory."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.service import Service, service, until

BODY = b'{"inputs":[["a good film"],["b"]]}'
REQUEST = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


def resident(process: int) -> int:
    """Bytes of memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


def client(server: Service, end: float, seed: int, asked: list[int]) -> None:
    """Half of the time hang up at some point of a request or its answer."""
    chance = random.Random(seed)
    port = int(server.url.rpartition(":")[2])
    while time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            for _ in range(chance.randrange(1, 8)):
                asked[0] += 1
                if chance.random() < 0.5:
                    sock.sendall(REQUEST[: chance.randrange(len(REQUEST) + 1)])
                    time.sleep(chance.random() * 0.01)
                    break
                sock.sendall(REQUEST)
                sock.recv(65536)


@pytest.mark.long
def test_clients_that_hang_up_leave_nothing(long_seconds: float) -> None:
    with service(front_ends=2) as server:
        server.control(seconds=0.003)
        processes = server.children()
        asked = [0]
        memory: list[list[int]] = []
        for lap in range(3):
            end = time.monotonic() + long_seconds / 3
            clients = [
                threading.Thread(target=client, args=(server, end, lap * 100 + number, asked))
                for number in range(8)
            ]
            for one in clients:
                one.start()
            for one in clients:
                one.join()
            memory.append([resident(process) for process in processes])
        until(lambda: server.metric("packhorse_inputs_in_flight") == 0)
        until(lambda: server.metric("packhorse_queued_sequences") == 0)
        assert server.metric("packhorse_tokens_in_flight") == 0
        assert server.metric("packhorse_connections") <= 1  # that which asks for this number
        assert server.children() == processes
        assert asked[0] > 100
        for warm, last in zip(memory[0], memory[-1], strict=True):
            assert last < warm * 1.05 + 2_000_000
