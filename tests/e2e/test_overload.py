"""More than the device can do: goodput stays, the rest is told when to come back, nothing grows."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from tests.e2e.service import Service, service, until
from tests.e2e.test_scheduling import ask
from tests.e2e.test_soak import resident

TOKENS = 10
TEXT = " ".join(["word"] * (TOKENS - 2))
SECONDS_A_TEXT = 0.05
DEADLINE_MS = 2000


@dataclass(frozen=True)
class Outcome:
    status: int
    seconds: float
    has_retry_after: bool


async def one(port: int, number: int) -> Outcome:
    """One request on a connection of its own; the body differs from all others."""
    body = json.dumps({"inputs": TEXT, "number": number}).encode()
    head = (
        b"POST /predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"x-timeout-ms: %d\r\ncontent-length: %d\r\n\r\n" % (DEADLINE_MS, len(body))
    )
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + body)
    answer = await reader.read()
    writer.close()
    head = answer.partition(b"\r\n\r\n")[0].lower()
    return Outcome(
        int(answer.split(b" ", 2)[1]), time.monotonic() - begun, b"\r\nretry-after: " in head
    )


async def open_loop(port: int, rate: float, seconds: float) -> list[Outcome]:
    """Requests at times of their own, however the server fares."""
    chance = np.random.default_rng(7)
    asked = []
    end = time.monotonic() + seconds
    due = time.monotonic()
    while due < end:
        due += chance.exponential(1 / rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.append(asyncio.create_task(one(port, len(asked))))
    return await asyncio.gather(*asked)


@pytest.mark.long
def test_at_ten_times_the_capacity_goodput_stays_and_the_rest_is_refused(
    long_seconds: float,
) -> None:
    with service(fake_device=True, dedup="off") as server:
        server.control(seconds_a_token=SECONDS_A_TEXT / TOKENS)
        port = int(server.url.rpartition(":")[2])
        for count in (1, 2, 3) * 4:  # it learns how fast its device is
            ask(server, [[TEXT]] * count)
        before = [resident(process) for process in server.children()]
        outcomes = asyncio.run(open_loop(port, 10 / SECONDS_A_TEXT, long_seconds))
        statuses = Counter(outcome.status for outcome in outcomes)
        capacity = long_seconds / SECONDS_A_TEXT
        assert set(statuses) <= {200, 429, 504}, statuses
        assert statuses[200] >= 0.9 * capacity, statuses
        assert statuses[504] <= 0.02 * len(outcomes), statuses  # predictions err a little
        assert all(one.has_retry_after for one in outcomes if one.status == 429)
        took = [outcome.seconds for outcome in outcomes if outcome.status == 200]
        assert np.percentile(took, 99) <= DEADLINE_MS / 1000 + 0.1
        time.sleep(2)
        begun = time.monotonic()
        assert ask(server, TEXT).status_code == 200
        assert time.monotonic() - begun < 0.5
        after = [resident(process) for process in server.children()]
        assert all(now < was * 1.2 + 20_000_000 for was, now in zip(before, after, strict=True))


def latencies(server: Service, seconds: float) -> list[float]:
    """Of single texts, one after the other, of one client."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        assert ask(server, TEXT, "127.0.0.2").status_code == 200
        took.append(time.monotonic() - begun)
    return took


@pytest.mark.long
@pytest.mark.case(85)
def test_one_clients_list_of_ten_thousand_hardly_delays_anothers_single_texts(
    long_seconds: float,
) -> None:
    batch_seconds = 0.05  # --max-batch-time of a CPU
    with service(fake_device=True, front_ends=2, dedup="off") as server:
        server.control(seconds=0.01, seconds_a_token=0.00005)
        alone = latencies(server, long_seconds / 3)
        ended = threading.Event()
        lists: list[int] = []

        def greedy() -> None:
            while not ended.is_set():
                answer = ask(server, [["word"]] * 10_000, "127.0.0.3")
                lists.append(answer.status_code if len(answer.body) == 10_000 else 0)

        client = threading.Thread(target=greedy)
        client.start()
        try:
            until(lambda: server.metric("packhorse_inputs_in_flight") >= 10_000)
            beside = latencies(server, long_seconds / 2)
        finally:
            ended.set()
            client.join()
        assert set(lists) == {200}
        # A slice runs beside other tests, and its percentile is of a few hundred answers.
        times = 3 if long_seconds > 30 else 12
        assert np.percentile(beside, 99) <= times * np.percentile(alone, 99) + batch_seconds
