"""HTTP as clients see it: real sockets, two front ends, an engine that says what it was asked."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.service import Service, service, until

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with service(front_ends=2, max_client_batch_size=20_000, payload_limit=2_000_000) as made:
        yield made


def connect(server: Service) -> socket.socket:
    return socket.create_connection((HOST, int(server.url.rpartition(":")[2])), timeout=20)


def ask(server: Service, request: bytes) -> bytes:
    """Everything the server sends for these bytes until it closes."""
    with connect(server) as sock:
        sock.sendall(request)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /predict HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


def lengths_of(answer: Any) -> list[float]:
    """What the fake engine says of each input: its number of tokens. For raw scores."""
    return [next(one["score"] for one in row if one["label"] == "NEGATIVE") for row in answer]


def test_the_shapes_of_tei(server: Service) -> None:
    single = server.predict("a good film").json()
    assert [set(row) for row in single] == [{"score", "label"}] * 2
    assert single[0]["score"] >= single[1]["score"]
    assert {row["label"] for row in single} == {"NEGATIVE", "POSITIVE"}
    pair = server.predict(["a good", "film"], raw_scores=True).json()
    assert lengths_of([pair]) == [6]
    batch = server.predict([["a"], ["b"], ["c", "d"]], raw_scores=True).json()
    assert lengths_of(batch) == [3, 3, 5]


@pytest.mark.case(85)
def test_lists_are_answered_in_order_whatever_their_length(server: Service) -> None:
    for count in (33, 129, 10_000):
        inputs = [["good " * (1 + index % 7)] for index in range(count)]
        answer = server.predict(inputs, raw_scores=True).json()
        assert lengths_of(answer) == [3 + index % 7 for index in range(count)]


@pytest.mark.case(85)
def test_a_list_over_the_limit_is_refused(server: Service) -> None:
    answer = server.predict([["a"]] * 20_001)
    assert answer.status_code == 422
    assert "20001 inputs" in answer.json()["error"]
    assert "20000" in answer.json()["error"]


@pytest.mark.case(11)
def test_a_body_over_the_limit(server: Service) -> None:
    answer = server.predict("a" * 2_000_001)
    assert answer.status_code == 413
    assert "2000000 bytes" in answer.json()["error"]

    def pieces() -> Iterator[bytes]:  # chunked: nobody says how long it will be
        yield b'{"inputs": "'
        for _ in range(40):
            yield b"a" * 100_000
        yield b'"}'

    answer = httpx.post(server.url + "/predict", content=pieces(), timeout=20)
    assert answer.status_code == 413
    assert server.predict("a").status_code == 200


@pytest.mark.case(11)
def test_a_text_of_megabytes_is_cut(server: Service) -> None:
    answer = server.predict("good film " * 150_000, raw_scores=True)
    assert lengths_of([answer.json()]) == [512]
    assert answer.headers["x-truncated"] == "1"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"{bad"), 400),
        (post(b""), 400),
        (post(b"[" * 100_000), 422),
        (post(b'{"inputs":"a"}', b"content-type: text/plain"), 415),
        (post(b'{"inputs":"a"}', b"content-encoding: br"), 415),
        (post(b'{"inputs":"a"}', b"content-encoding: gzip"), 400),
        (post(gzip.compress(b'{"inputs":"a"}'), b"content-encoding: gzip"), 200),
        (post(gzip.compress(b" " * 20_000_000), b"content-encoding: gzip"), 413),
        (post(b'{"inputs":"a"}'), 200),
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /%ff%00 HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", 400),
    ],
)
@pytest.mark.case(109)
def test_whatever_arrives_the_answer_is_json(
    server: Service, request_bytes: bytes, status: int
) -> None:
    request_bytes = request_bytes.replace(b"host: x", b"host: x\r\nconnection: close")
    head, _, body = ask(server, request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head
    parsed = json.loads(body)
    if status != 200:
        assert set(parsed) == {"error", "error_type"}


@pytest.mark.case(115)
def test_head_is_get_without_a_body(server: Service) -> None:
    for path in ("/health", "/ready", "/metrics", "/", "/info", "/nowhere"):
        request = f" {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        head = ask(server, b"HEAD" + request)
        get = ask(server, b"GET" + request)
        assert head.partition(b"\r\n\r\n")[2] == b""
        assert head.splitlines()[0] == get.splitlines()[0]


def test_requests_on_one_connection(server: Service) -> None:
    """Keep-alive and pipelining: answers come in order."""
    bodies = [json.dumps({"inputs": "good " * n, "raw_scores": True}).encode() for n in (1, 2, 3)]
    requests = [post(body) for body in bodies]
    requests[-1] = post(bodies[-1], b"connection: close")
    answer = ask(server, b"".join(requests))
    answers = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [lengths_of([json.loads(body)]) for body in answers] == [[3], [4], [5]]


def test_expect_continue(server: Service) -> None:
    with connect(server) as sock:
        body = b'{"inputs":"a"}'
        head, _, _ = post(body, b"expect: 100-continue", b"connection: close").partition(b"{")
        sock.sendall(head)
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")
        sock.sendall(body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


def settled(server: Service, name: str) -> float:
    """The sample when it has been the same for half a second: it is added up every quarter."""
    value, since = server.metric(name), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.1)
        if (now := server.metric(name)) != value:
            value, since = now, time.monotonic()
    return value


def test_metrics_count_every_request_whichever_front_end_answered(server: Service) -> None:
    name = 'packhorse_requests_total{route="predict",status="200"}'
    sequences, before = settled(server, "packhorse_sequences_total"), server.metric(name)

    def client(number: int) -> None:
        with httpx.Client(base_url=server.url) as session:
            for _ in range(20):
                answer = session.post("/predict", json={"inputs": [["a"], ["b"]]}, timeout=20)
                assert answer.status_code == 200

    with ThreadPoolExecutor(10) as clients:
        list(clients.map(client, range(10)))
    assert server.metric(name) == before + 200
    until(lambda: server.metric("packhorse_sequences_total") == sequences + 400)
    assert server.metric("packhorse_inputs_in_flight") == 0
    assert server.metric("packhorse_tokens_in_flight") == 0
    assert server.metric('packhorse_ready_processes{child="front_end"}') == 2


def difference_of_connections(server: Service) -> int:
    """Of two front ends, when 64 connections have come at once and were answered."""
    with ExitStack() as closing:
        opened = [closing.enter_context(connect(server)) for _ in range(64)]
        for sock in opened:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        for sock in opened:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        one, other = (
            len(list(Path(f"/proc/{process}/fd").iterdir()))
            for process in server.children("front end")
        )
    return abs(one - other)


def test_connections_are_shared_evenly(server: Service) -> None:
    """The best of a few times: a front end that gets no core meanwhile takes none of them."""
    found = []
    for _ in range(5):
        found.append(difference_of_connections(server))
        if found[-1] <= 12:  # file descriptors: other ones are open as well
            return
    pytest.fail(f"differences of {found} connections")


@pytest.mark.case(99)
def test_unknown_paths_make_no_new_series(server: Service) -> None:
    before = len(server.get("/metrics").text.splitlines())
    with httpx.Client(base_url=server.url) as session:
        for number in range(300):
            assert session.get(f"/scan/{number}").status_code == 404
    assert len(server.get("/metrics").text.splitlines()) == before


@pytest.mark.case(79)
def test_a_client_that_hangs_up_is_cancelled(server: Service) -> None:
    server.control(hang=True)
    with connect(server) as sock:
        sock.sendall(post(b'{"inputs":[["a"],["b"],["c"]]}'))
        until(lambda: server.metric("packhorse_inputs_in_flight") == 3)
    until(lambda: server.metric("packhorse_inputs_in_flight") == 0)
    server.control()
    hung_up = 'packhorse_requests_total{route="predict",status="499"}'
    until(lambda: server.metric(hung_up) == 1)
    assert server.predict("b").status_code == 200


def test_inputs_without_a_number_are_counted_one_by_one(server: Service) -> None:
    server.control(nan_length=3)
    before = server.metric("packhorse_non_finite_sequences_total")
    assert server.predict([["a"], ["good film"], ["b"]]).status_code == 500
    assert server.metric("packhorse_non_finite_sequences_total") == before + 2
    server.control()


def test_some_texts_are_tokenised_twice_to_compare(server: Service) -> None:
    assert server.get("/info").json()["tokenizer_reason"].startswith("it gives the ids")
    before = server.metric("packhorse_shadow_checked_texts_total")
    server.predict([["good film"]] * 5000)
    until(lambda: server.metric("packhorse_shadow_checked_texts_total") >= before + 5)
    assert server.metric("packhorse_shadow_differences_total") == 0


@pytest.mark.long
@pytest.mark.case(91)
def test_health_answers_while_tokenizers_reads_a_text_that_cannot_be_cut() -> None:
    with service(tokenizer="tokenizers") as server, ThreadPoolExecutor(1) as clients:
        slowest = 0.0
        begun = time.monotonic()
        busy = clients.submit(server.predict, "a" * 1_000_000, raw_scores=True)
        with httpx.Client(base_url=server.url) as session:
            while not busy.done():
                started = time.monotonic()
                assert session.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - started)
                time.sleep(0.01)
        assert lengths_of([busy.result().json()]) == [3]  # one word, which is unknown
        took = time.monotonic() - begun
    assert took > 0.5  # else it shows nothing
    assert slowest < 0.5 * took


@pytest.mark.case(91)
def test_health_answers_while_large_requests_are_worked_on(server: Service) -> None:
    took = []
    texts = [["good film " * 400] for _ in range(400)]  # 1.6 MB
    begun = time.monotonic()
    with ThreadPoolExecutor(3) as clients, httpx.Client(base_url=server.url) as session:
        busy = [clients.submit(server.predict, texts) for _ in range(6)]
        while not all(one.done() for one in busy):
            started = time.monotonic()
            assert session.get("/health").status_code == 200
            took.append(time.monotonic() - started)
            time.sleep(0.01)
        assert all(one.result().status_code == 200 for one in busy)
    each = (time.monotonic() - begun) / len(busy)
    # A loop that is blocked keeps nearly every one waiting, for as long as a request takes it.
    assert np.percentile(took, 90) < max(0.25, each / 2), (took, each)
