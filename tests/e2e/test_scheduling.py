"""Clients take turns, urgent requests overtake, deadlines end: over a real server and engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from email.message import Message
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest

from tests.e2e.service import Service, service, until

pytestmark = pytest.mark.long

SECONDS_A_TOKEN = 0.002  # of the fake device, where time counts; "word" is a sequence of 3 tokens


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    # Lists of one word many times, each of which is to be computed.
    with service(fake_device=True, max_batch_tokens=64, max_batch_time=1000, dedup="off") as made:
        yield made


class Answer(NamedTuple):
    status_code: int
    headers: Message
    body: Any
    came: float  # time.monotonic()


def ask(
    server: Service, inputs: Any, address: str = "127.0.0.1", headers: dict[str, str] | None = None
) -> Answer:
    """What a client at this address gets; quicker than httpx, whose clients take long to make."""
    port = int(server.url.rpartition(":")[2])
    with closing(HTTPConnection("127.0.0.1", port, 30, source_address=(address, 0))) as connection:
        connection.request("POST", "/predict", json.dumps({"inputs": inputs}), headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, json.load(answer), time.monotonic())


def urgency(name: str) -> dict[str, str]:
    return {"x-priority": name}


def within(milliseconds: int) -> dict[str, str]:
    return {"x-timeout-ms": str(milliseconds)}


def in_flight(server: Service, inputs: int) -> bool:
    return server.metric("packhorse_inputs_in_flight") >= inputs


def launched(server: Service) -> float:
    """Sequences so far: how far the device has come, which no busy machine distorts."""
    return server.metric("packhorse_batch_sequences_sum")


@contextmanager
def slow(server: Service, **device: float) -> Iterator[None]:
    """A device that leaves time to ask for more, and in the end hurries with what is left."""
    server.control(**device)
    try:
        yield
    finally:
        server.control(seconds_a_token=SECONDS_A_TOKEN / 10)


def test_a_client_with_one_text_does_not_wait_for_anothers_list(server: Service) -> None:
    before = launched(server)
    with ThreadPoolExecutor(1) as clients:
        with slow(server, seconds=0.4):  # 8 s of work
            long = clients.submit(ask, server, [["word"]] * 400, "127.0.0.2")
            until(lambda: in_flight(server, 400))
            single = ask(server, "word", "127.0.0.3")
            # Those before it, a batch that it is part of, and what began since it was answered.
            assert launched(server) - before < 300
        assert single.status_code == 200
        assert long.result().status_code == 200
    assert len(long.result().body) == 400


def test_urgent_requests_overtake_those_of_the_same_client(server: Service) -> None:
    before = launched(server)
    with ThreadPoolExecutor(3) as clients:
        with slow(server, seconds=0.4):
            long = clients.submit(ask, server, [["word"]] * 21 * 19)
            until(lambda: in_flight(server, 21 * 19))
            low = clients.submit(ask, server, "word", headers=urgency("low"))
            until(lambda: in_flight(server, 21 * 19 + 1))
            normal = clients.submit(ask, server, [["word"]] * 21, headers=urgency("normal"))
            until(lambda: in_flight(server, 21 * 20 + 1))
            high = ask(server, "word", headers=urgency("high"))
            assert launched(server) - before < 21 * 15  # while the list still ran
        server.control(seconds=0.1)  # so much is between two batches
        answers = [one.result() for one in (long, normal, low)]
    assert [answer.status_code for answer in (high, *answers)] == [200] * 4
    assert max(answers[0].came, answers[1].came) < answers[2].came + 0.05


def test_a_request_ends_at_its_deadline_while_it_waits(server: Service) -> None:
    with ThreadPoolExecutor(1) as clients:
        with slow(server, seconds_a_token=SECONDS_A_TOKEN):
            long = clients.submit(ask, server, [["word"]] * 600)  # 3.6 s
            until(lambda: in_flight(server, 600))
            # Another client has nothing before it, so it is let in; but it has more than a batch.
            begun = time.monotonic()
            late = ask(server, [["word"]] * 600, "127.0.0.2", within(300))
        assert long.result().status_code == 200
    assert late.status_code == 504
    assert late.body["error_type"] == "Overloaded"
    assert "deadline" in late.body["error"]
    assert 0.25 < late.came - begun < 3  # the other list takes 3.6 s, and its own as long
    until(lambda: server.metric("packhorse_queued_sequences") == 0)
    assert server.metric("packhorse_inputs_in_flight") == 0


def test_a_request_ends_at_its_deadline_while_it_is_computed(server: Service) -> None:
    with slow(server, seconds=2.0):
        begun = time.monotonic()
        late = ask(server, "word", headers=within(200))
    assert late.status_code == 504
    assert late.came - begun < 1.8  # before the batch has ended
    assert ask(server, "word").status_code == 200


def test_who_would_wait_past_the_deadline_is_told_at_once_when_to_come_back(
    server: Service,
) -> None:
    server.control(seconds_a_token=SECONDS_A_TOKEN)
    for count in (5, 10, 20) * 4:  # the engine learns how fast its device is
        ask(server, [["word"]] * count)
    with ThreadPoolExecutor(1) as clients:
        with slow(server, seconds_a_token=SECONDS_A_TOKEN):
            long = clients.submit(ask, server, [["word"]] * 1000)  # 6 s
            until(lambda: in_flight(server, 1000))
            before = launched(server)
            refused = ask(server, "word", headers=within(1000))
            assert refused.status_code == 429
            assert launched(server) - before < 500  # it did not wait for them
            assert 2 <= int(refused.headers["retry-after"]) <= 9
        assert ask(server, "word", headers=within(20_000)).status_code == 200
        assert long.result().status_code == 200


@pytest.mark.parametrize("name", ["x-priority", "x-timeout-ms"])
def test_headers_that_mean_nothing_are_refused(server: Service, name: str) -> None:
    refused = ask(server, "word", headers={name: "soon"})
    assert refused.status_code == 422
    assert name in refused.body["error"]


def test_the_server_has_a_deadline_for_those_who_name_none() -> None:
    with service(fake_device=True, default_timeout_ms=200) as server:
        server.control(seconds=2.0)
        begun = time.monotonic()
        late = ask(server, "word")
        assert late.status_code == 504
        assert late.came - begun < 1.8  # before the batch has ended
        assert ask(server, "word", headers=within(20_000)).status_code == 200
