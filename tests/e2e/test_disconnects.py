"""Clients that hang up at any stage are forgotten, and the others do not notice."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.e2e.service import Service, service, until
from tests.e2e.test_equal_texts import hang_up_later
from tests.e2e.test_scheduling import ask, in_flight

pytestmark = pytest.mark.long

LAUNCHED = "packhorse_batch_sequences_sum"
GAUGES = ("inputs_in_flight", "tokens_in_flight", "queued_sequences", "queued_tokens")


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    # The slower tokenizer, so that there is time to hang up.
    with service(fake_device=True, front_ends=2, dedup="off", without="fast-tokenizer") as made:
        yield made


def nothing_is_left(server: Service) -> bool:
    lines = server.get("/metrics").text.splitlines()
    return all(f"packhorse_{name} 0.0" in lines for name in GAUGES)


@pytest.mark.case(79)
def test_during_tokenising(server: Service) -> None:
    """The best of a few times: a busy machine may show what is in flight when it is done."""
    server.control()
    until(lambda: nothing_is_left(server))
    assert any(was_never_sent(server) for _ in range(4))


def was_never_sent(server: Service) -> bool:
    """Whether a list whose client hung up while it was tokenised got no further."""
    launched = server.metric(LAUNCHED)
    texts = [["every word of this is tokenised " * 80]] * 1500  # 4 MB, in a thread
    with hang_up_later(server, json.dumps({"inputs": texts}).encode()):
        until(lambda: in_flight(server, 1500) or server.metric(LAUNCHED) > launched)
    until(lambda: nothing_is_left(server))
    assert ask(server, "word").status_code == 200
    time.sleep(0.5)
    return server.metric(LAUNCHED) - launched <= 1  # the word's


@pytest.mark.case(79)
def test_in_the_queue_and_during_the_forward_pass(server: Service) -> None:
    server.control(seconds=3.5)
    launched = server.metric(LAUNCHED)
    with ExitStack() as clients:
        clients.enter_context(hang_up_later(server, b'{"inputs":"runs"}'))
        until(lambda: server.metric(LAUNCHED) > launched)
        for _ in range(3):
            clients.enter_context(hang_up_later(server, b'{"inputs":[["waits"],["too"]]}'))
        until(lambda: server.metric("packhorse_queued_sequences") == 6)
    until(lambda: nothing_is_left(server))
    server.control()
    assert ask(server, "word").status_code == 200
    assert server.metric(LAUNCHED) - launched == 2  # what ran, and the word


@pytest.mark.case(79, 83)
def test_a_storm_of_clients_that_give_up_leaves_the_server_as_it_was(server: Service) -> None:
    server.control(seconds=0.004)
    end = time.monotonic() + 1.0

    def impatient(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end:
            client = hang_up_later(server, b'{"inputs":[["a"],["text"]]}')
            time.sleep(chance.random() * 0.005)
            client.close()

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(impatient, range(8)))
        until(lambda: nothing_is_left(server))  # and all who had hung up were taken
        answers = list(clients.map(lambda _: ask(server, "word"), range(100)))
    assert {answer.status_code for answer in answers} == {200}, answers[-1].body
    assert "Traceback" not in server.log
    assert "ERROR" not in server.log
