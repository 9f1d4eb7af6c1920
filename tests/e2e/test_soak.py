"""Clients that come and go for a while must leave nothing behind: no slots, no memory."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.tools.bench.serve.bodies import read_texts
from packhorse.tools.bench.serve.command import measure
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.summary import summary
from packhorse.tools.bench.serve.target import target_of
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
@pytest.mark.case(83)
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
        until(lambda: server.metric("packhorse_connections") <= 1)  # that which asks for the number
        assert server.children() == processes
        assert asked[0] > 100
        for warm, last in zip(memory[0], memory[-1], strict=True):
            # In a slice the first lap is too short to reach what later ones do.
            assert last < warm * 1.05 + (2_000_000 if long_seconds > 30 else 8_000_000)


@pytest.mark.long
def test_many_clients_with_lists_of_all_sizes(
    long_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    """The demo model on a CPU, 64 clients: no error, and memory that does not grow."""
    memory: list[list[int]] = []
    # Small batches, or their largest would be met by chance, late, and with it the most memory.
    with service(real=True, device="cpu", max_batch_tokens=1024) as server:
        processes = server.children()
        for _ in range(3):
            load = plan_of(server.url, long_seconds / 3)
            report = measure(load)
            assert report["errors"] == {}
            assert report["totals"]["by_status"] == {"200": report["totals"]["sent"]}
            assert report["latency_ms"]["p99"] < 1000 * load.timeout
            record_property("p99_ms", report["latency_ms"]["p99"])
            print(summary(report))
            memory.append([resident(process) for process in processes])
        assert server.children() == processes
    for warm, last in zip(memory[0], memory[-1], strict=True):
        # In a slice the first lap is too short to meet all sizes of batches.
        assert last < warm * 1.05 + (8_000_000 if long_seconds > 30 else 40_000_000)


def plan_of(url: str, seconds: float) -> Plan:
    """Single reviews mostly, some lists of up to a hundred."""
    return Plan(
        target=target_of(url),
        route="/predict",
        headers=(),
        texts=read_texts(None),
        bodies=(),
        batches=(1, 1, 1, 2, 1, 1, 8, 1, 1, 1, 32, 1, 1, 100),
        distinct=5000,
        connections=64,
        rate=None,
        processes=1,
        warm_up=0.0,
        duration=seconds,
        timeout=30.0,
    )
