"""A text that crashes the engine costs two restarts and is refused; everyone else is served."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.service import Service, service, until
from tests.e2e.test_scheduling import Answer, ask

pytestmark = pytest.mark.long

KILLER = "one two three four five"  # 7 tokens
RESTARTS = 'packhorse_restarts_total{child="engine"}'


def persevering(server: Service, inputs: str, tries: list[int]) -> Answer:
    """What a client gets that heeds 503 and asks again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            answer = ask(server, inputs)
        except OSError:
            raise AssertionError("a connection was reset") from None
        tries.append(answer.status_code)
        if answer.status_code != 503:
            return answer
        time.sleep(0.2)
    raise AssertionError("nothing but 503")


def while_asking(server: Service, action: Callable[[], None]) -> list[Answer]:
    """What innocent clients get while something happens."""
    ended = False

    def innocent(number: int) -> list[Answer]:
        got = []
        while not ended:
            got.append(persevering(server, f"word {number}", []))
        return got

    with ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(innocent, number) for number in range(3)]
        try:
            action()
        finally:
            ended = True
        return [answer for one in asked for answer in one.result()]


def test_a_text_that_crashes_the_engine_is_refused_and_everyone_else_is_served() -> None:
    with service(fake_device=True, front_ends=1) as server:
        server.control(seconds=0.02, crash_length=7)
        tries: list[int] = []
        refused: list[Answer] = []
        answers = while_asking(server, lambda: refused.append(persevering(server, KILLER, tries)))
        assert tries == [*[503] * (len(tries) - 1), 422]
        assert "crashed twice" in refused[0].body["error"]
        assert refused[0].body["error_type"] == "Backend"
        assert {answer.status_code for answer in answers} == {200}
        assert server.metric(RESTARTS) == 2
        mixed = ask(server, [["word"], [KILLER]])
        assert mixed.status_code == 422
        assert "inputs[1]" in mixed.body["error"]
        assert ask(server, "word").status_code == 200
        assert server.metric(RESTARTS) == 2


def test_a_kill_from_outside_makes_nothing_a_suspect() -> None:
    with service(fake_device=True) as server:
        for death in (1, 2):
            server.control(seconds=3.0)
            with ThreadPoolExecutor(1) as clients:
                asked = clients.submit(ask, server, "an innocent text")
                until(lambda: server.metric("packhorse_inputs_in_flight") == 1)
                os.kill(server.child("engine 0"), signal.SIGKILL)
                server.control()
                assert asked.result().status_code == 503
            until(lambda death=death: server.metric(RESTARTS) == death)
            until(lambda: ask(server, "word").status_code == 200)
        assert ask(server, "an innocent text").status_code == 200
        assert "run alone" not in server.log
