"""SIGTERM and SIGHUP under load: nothing that was received before the signal fails."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

import pytest

from tests.e2e.service import Service, service, until

pytestmark = pytest.mark.long


class Asked(NamedTuple):
    sent: float  # time.monotonic()
    written: float  # when all of it had left this process; inf where that failed
    status: int  # 0: the connection was refused or reset
    closes: bool
    ended: float  # when there was an answer, or none any more
    first: float  # the first logit: tokens, plus what tells one model from another


class Client(threading.Thread):
    """Asks on one connection, and on a new one when the server closes it."""

    def __init__(self, server: Service) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.ending = threading.Event()
        self._port = int(server.url.rpartition(":")[2])
        self.start()

    def run(self) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, 30)) as connection:
            while not self.ending.is_set():
                self.asked.append(self._ask(connection))
                if not self.asked[-1].status:
                    time.sleep(0.01)

    def _ask(self, connection: HTTPConnection) -> Asked:
        sent, written = time.monotonic(), math.inf
        body = json.dumps({"inputs": "word", "raw_scores": True})
        try:
            connection.request("POST", "/predict", body)
            written = time.monotonic()
            answer = connection.getresponse()
            rows = json.load(answer)
        except (OSError, HTTPException):
            connection.close()
            return Asked(sent, written, 0, False, time.monotonic(), 0.0)
        first = (
            next((r["score"] for r in rows if r["label"] == "NEGATIVE"), 0.0)
            if answer.status == 200
            else 0.0
        )
        closes = answer.headers["connection"] == "close"
        return Asked(sent, written, answer.status, closes, time.monotonic(), first)


def finish(clients: list[Client]) -> list[Asked]:
    for client in clients:
        client.ending.set()
    for client in clients:
        client.join()
    return [asked for client in clients for asked in client.asked]


def test_at_sigterm_what_was_sent_before_is_answered_and_later_is_refused_politely() -> None:
    with service(fake_device=True, front_ends=2) as server:
        server.control(seconds=0.03)
        clients = [Client(server) for _ in range(6)]
        try:
            until(lambda: all(len(client.asked) > 5 for client in clients))
            signalled = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        finally:
            asked = finish(clients)
        before = [one for one in asked if one.written < signalled]
        later = [one for one in asked if one.written >= signalled]
        assert {one.status for one in before} == {200}
        assert {one.status for one in later} <= {200, 503, 0}
        refused = [one for one in later if one.status == 503]
        assert all(one.closes for one in refused)
        # On its way when the signal came, as far as the server can know.
        assert {one.status for one in later if one.written < signalled + 0.1} == {200}
        assert "Traceback" not in server.log


def test_at_sighup_a_new_generation_takes_over_and_no_request_fails() -> None:
    with service(fake_device=True, front_ends=2) as server:
        old = server.children()
        server.control(seconds=0.005, shift=1000.0)
        clients = [Client(server) for _ in range(4)]
        try:
            until(lambda: all(len(client.asked) > 5 for client in clients))
            server.signal(signal.SIGHUP)
            until(lambda: server.metric('packhorse_reloads_total{outcome="success"}') == 1, 60)
            until(lambda: not set(old) & set(server.children()), 60)
            so_far = [len(client.asked) for client in clients]
            until(lambda: all(len(c.asked) > n + 3 for c, n in zip(clients, so_far, strict=True)))
        finally:
            asked = finish(clients)
        assert {one.status for one in asked} == {200}
        assert {one.first for one in asked} == {3.0, 1003.0}
        assert all(client.asked[-1].first == 1003.0 for client in clients)
        assert len(server.children()) == len(old)
        # What was observed last by those that ended is counted, too.
        until(lambda: server.metric("packhorse_request_duration_seconds_count") == len(asked))
        assert "Traceback" not in server.log


def test_a_reload_that_fails_keeps_the_old_model_and_says_why() -> None:
    with service(fake_device=True) as server:
        children = server.children()
        server.control(load_error="weight 'pooler' is missing")
        server.signal(signal.SIGHUP)
        until(lambda: server.metric('packhorse_reloads_total{outcome="failure"}') == 1, 60)
        until(lambda: server.children() == children)
        assert server.predict("word").status_code == 200
        assert "weight 'pooler' is missing" in server.log
        assert "the old model serves on" in server.log
        server.control()
        server.signal(signal.SIGHUP)
        until(lambda: server.metric('packhorse_reloads_total{outcome="success"}') == 1, 60)
        assert server.predict("word").status_code == 200
