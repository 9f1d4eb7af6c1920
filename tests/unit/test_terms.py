"""Who asks, how urgently and until when; and how long that is predicted to take."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from packhorse.channel.board import Board
from packhorse.errors import ValidationError
from packhorse.metrics import PREDICTED_RATE, TOKENS_IN_FLIGHT, WAITING_CLIENTS, words
from packhorse.server.backlog import MOST_SECONDS, Backlog
from packhorse.server.terms import Terms, terms_of


def terms(default: int | None = None, scope: dict[str, Any] | None = None, **headers: str) -> Terms:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return terms_of({"headers": raw, "client": ("10.0.0.1", 9)} | (scope or {}), 100.0, default)


def test_without_headers_a_request_is_normal_and_has_no_deadline() -> None:
    assert (terms().priority, terms().deadline) == (0, math.inf)


def test_headers_say_how_urgent_and_until_when() -> None:
    asked = [terms(x_priority=name).priority for name in ("high", "Normal", " low")]
    assert asked == [1, 0, -1]
    assert terms(x_timeout_ms="250").deadline == 100.25
    assert terms(2000).deadline == 102.0
    assert terms(2000, x_timeout_ms="5000").deadline == 105.0


@pytest.mark.parametrize(
    "headers",
    [{"x_priority": value} for value in ("", "urgent", "1")]
    + [
        {"x_timeout_ms": value}
        for value in ("", "0", "-1", "1.5", "1e3", "nan", "86400001", "9" * 5000, "٣", "5 5")
    ],
)
def test_a_header_that_means_nothing_is_an_error_that_names_it(headers: dict[str, str]) -> None:
    (name,) = headers
    with pytest.raises(ValidationError, match=name.replace("_", "-")) as caught:
        terms(**headers)
    assert len(str(caught.value)) < 250


def test_clients_are_told_apart_by_name_then_by_address() -> None:
    by_address = terms().client
    assert by_address == terms(scope={"client": ("10.0.0.1", 10)}).client
    others = [
        terms(scope={"client": ("10.0.0.2", 9)}).client,
        terms(scope={"client": None}).client,  # a unix socket
        terms(scope={"packhorse.client": "key 1"}).client,
        terms(scope={"packhorse.client": "key 2"}).client,
    ]
    assert len({by_address, *others}) == 5
    assert terms(scope={"client": None}).client == terms(scope={"client": None}).client


def test_a_client_has_the_same_word_in_every_process() -> None:
    code = (
        "from packhorse.server.terms import terms_of;"
        "print(terms_of({'headers': [], 'client': ('10.0.0.1', 9)}, 0.0, None).client)"
    )
    words = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert words == {b"%d\n" % terms().client}


def backlog(rate: float, in_flight: float, clients: int) -> Backlog:
    board = Board.create(2, words())
    board.slots[1][PREDICTED_RATE.first] = rate
    board.slots[1][WAITING_CLIENTS.first] = clients
    board.slots[0][TOKENS_IN_FLIGHT.first] = in_flight
    return Backlog(board)


def test_a_client_waits_for_its_own_requests_and_for_the_turns_of_others() -> None:
    made = backlog(rate=100.0, in_flight=1000.0, clients=2)
    made.add(Terms(client=1), 900)
    made.add(Terms(client=2), 100)
    assert made.wait(Terms(client=1)) == 10.0  # all that is in flight, and no more
    assert made.wait(Terms(client=2)) == 2.0  # its own 100, with a turn of the other for each
    assert made.wait(Terms(client=3)) == 0.0
    assert made.drain() == 10.0


def test_what_is_less_urgent_is_not_waited_for() -> None:
    made = backlog(rate=100.0, in_flight=1000.0, clients=1)
    made.add(Terms(client=1, priority=-1), 800)
    made.add(Terms(client=1, priority=0), 200)
    assert made.wait(Terms(client=1, priority=1)) == 0.0
    assert made.wait(Terms(client=1, priority=0)) == 2.0
    assert made.wait(Terms(client=1, priority=-1)) == 10.0


def test_what_is_over_is_forgotten() -> None:
    made = backlog(rate=100.0, in_flight=0.0, clients=1)
    for _ in range(2):
        made.add(Terms(client=1, priority=1), 5)
    made.remove(Terms(client=1, priority=1), 5)
    made.remove(Terms(client=1, priority=1), 5)
    assert made.wait(Terms(client=1)) == 0.0
    assert made._shares == {}


def test_predictions_are_bounded_and_nothing_is_predicted_before_anything_ran() -> None:
    unknown = backlog(rate=0.0, in_flight=1000.0, clients=1)
    unknown.add(Terms(client=1), 1000)
    assert (unknown.wait(Terms(client=1)), unknown.drain()) == (0.0, 1.0)
    assert backlog(rate=1.0, in_flight=1e9, clients=1).drain() == MOST_SECONDS
