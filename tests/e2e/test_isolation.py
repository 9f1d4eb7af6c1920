"""Requests that fail are alone in that: those of the same batch get what they get by themselves."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.e2e.service import Service, service

pytestmark = pytest.mark.long


def post(server: Service, body: bytes) -> tuple[int, Any]:
    port = int(server.url.rpartition(":")[2])
    with closing(HTTPConnection("127.0.0.1", port, 30)) as connection:
        connection.request("POST", "/predict", body)
        answer = connection.getresponse()
        return answer.status, json.load(answer)


@pytest.mark.case(81)
def test_three_bad_requests_among_many_good_ones_fail_alone() -> None:
    too_long = json.dumps({"inputs": "word " * 600, "truncate": False}).encode()
    bad = {
        b'{"inputs":"a lone surrogate \\ud800"}': 400,
        too_long: 422,
        b'{"inputs":["one","two","three"]}': 422,
    }
    good = [
        json.dumps({"inputs": "word " * (1 + number), "raw_scores": True}).encode()
        for number in range(31)
    ]
    with service(fake_device=True, front_ends=1) as server:
        expected = [post(server, body) for body in good]
        assert {status for status, _ in expected} == {200}
        server.control(seconds=0.1)  # what comes meanwhile is the next batch
        bodies = [*good[:15], *bad, *good[15:]]
        with ThreadPoolExecutor(len(bodies)) as clients:
            answers = list(clients.map(lambda body: post(server, body), bodies))
    assert [status for status, _ in answers[15:18]] == list(bad.values())
    assert answers[:15] + answers[18:] == expected


@pytest.mark.case(95)
def test_a_cpu_is_ready_soon_however_large_batches_may_be() -> None:
    begun = time.monotonic()
    with service(real=True, device="cpu", max_batch_tokens=1_000_000) as server:
        assert time.monotonic() - begun < 60
        assert server.predict("a good film").status_code == 200
