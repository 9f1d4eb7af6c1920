"""Equal texts in flight and answers that are kept, over a real server and engine."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.service import Service, service, until
from tests.e2e.test_scheduling import ask, in_flight

pytestmark = pytest.mark.long

COMPUTED = "packhorse_batch_sequences_sum"
SHARED = "packhorse_deduplicated_sequences_total"


def hang_up_later(server: Service, body: bytes) -> socket.socket:
    """A client that has asked and waits; closing the socket hangs up."""
    sock = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    sock.sendall(head + body)
    return sock


def test_equal_texts_in_flight_are_computed_once_though_the_first_to_ask_hangs_up() -> None:
    with service(fake_device=True) as server:
        server.control(seconds=3.5)
        before = server.metric(COMPUTED)
        with ThreadPoolExecutor(6) as clients:
            first = clients.submit(ask, server, "something else")  # keeps the device busy
            until(lambda: in_flight(server, 1))
            with hang_up_later(server, b'{"inputs":"the same text"}'):
                until(lambda: in_flight(server, 2))
                asked = [clients.submit(ask, server, "the same text") for _ in range(4)]
                until(lambda: in_flight(server, 6))
            until(lambda: not in_flight(server, 6))
            server.control()
            answers = [one.result() for one in (first, *asked)]
        assert [answer.status_code for answer in answers] == [200] * 5
        assert all(answer.body == answers[1].body for answer in answers[2:])
        assert server.metric(COMPUTED) - before == 2
        assert server.metric(SHARED) == 4
        assert server.metric("packhorse_inputs_in_flight") == 0


@pytest.mark.parametrize(
    "off",
    [{"dedup": "off"}, {"without": "dedup"}],
)
def test_sharing_can_be_switched_off(off: dict[str, str]) -> None:
    with service(fake_device=True, **off) as server:
        before = server.metric(COMPUTED)
        assert len(ask(server, [["the same"]] * 3).body) == 3
        assert server.metric(COMPUTED) - before == 3
        assert server.metric(SHARED) == 0


def test_answers_are_kept_where_asked_for() -> None:
    with service(fake_device=True, response_cache_mb=1) as server:
        first = ask(server, [["one"], ["two"]])
        before = server.metric(COMPUTED)
        again = ask(server, [["two"], ["three"], ["one"]])
        assert [again.body[2], again.body[0]] == first.body
        assert server.metric(COMPUTED) - before == 1
        assert server.metric("packhorse_cache_hits_total") == 2
        assert server.metric("packhorse_cache_misses_total") == 3
