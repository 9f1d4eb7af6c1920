"""The load generator: what it sends, how it counts, and that it cannot be fooled."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from packhorse.errors import ConfigError
from packhorse.tools.bench.serve import crew
from packhorse.tools.bench.serve.answers import (
    classify_fault,
    embed_fault,
    json_fault,
    openai_fault,
    predict_fault,
    rerank_fault,
)
from packhorse.tools.bench.serve.bodies import (
    check_plan,
    read_bodies,
    read_texts,
    requests_of,
)
from packhorse.tools.bench.serve.command import measure, without_secrets
from packhorse.tools.bench.serve.generator import Share
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.report import report_of
from packhorse.tools.bench.serve.summary import summary
from packhorse.tools.bench.serve.tally import COLUMNS, Fault
from packhorse.tools.bench.serve.target import Target, target_of

TEXTS = tuple(f"text {number}" for number in range(50))
GOOD = b'[{"score":0.9,"label":"P"},{"score":0.1,"label":"N"}]'
TIMINGS = b"x-compute-tokens: 7\r\nX-Queue-Time: 1.5\r\n"


def plan(**values: object) -> Plan:
    given: dict[str, object] = {
        "target": Target("127.0.0.1", 1),
        "route": "/predict",
        "headers": (),
        "texts": TEXTS,
        "bodies": (),
        "batches": (1,),
        "distinct": 50,
        "connections": 1,
        "rate": None,
        "processes": 1,
        "warm_up": 0.0,
        "duration": 1.0,
        "timeout": 5.0,
    }
    return Plan(**(given | values))  # type: ignore[arg-type]


def answer(body: bytes, status: bytes = b"200 OK", head: bytes = TIMINGS) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), head, body)


class Stub(asyncio.Protocol):
    """Answers each request with what a function gives for its number; b"" for no answer."""

    number = 0

    def __init__(self, give: Callable[[int], bytes]) -> None:
        self._give = give

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        Stub.number += 1
        self._transport.write(self._give(Stub.number))  # type: ignore[attr-defined]


@contextmanager
def stub(give: Callable[[int], bytes], unix_path: str = "") -> Iterator[Target]:
    """A server in a thread, on a free port or on a socket in the file system."""
    Stub.number = 0
    loop = asyncio.new_event_loop()
    if unix_path:
        creating = loop.create_unix_server(lambda: Stub(give), unix_path)
    else:
        creating = loop.create_server(lambda: Stub(give), "127.0.0.1", 0)  # type: ignore[assignment]
    server = loop.run_until_complete(creating)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port = 0 if unix_path else server.sockets[0].getsockname()[1]
        yield Target("127.0.0.1", port, unix_path)
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a:8000", Target("a", 8000)),
        ("http://a/", Target("a", 80)),
        ("https://[::1]", Target("::1", 443, is_tls=True)),
        ("unix:/run/x.sock", Target("localhost", 0, "/run/x.sock")),
    ],
)
def test_a_url_is_an_address(url: str, target: Target) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://a:b", "http://a/predict", "unix:", "ftp://a", ""]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        target_of(url)


def test_bodies_are_distinct_and_no_two_processes_send_the_same() -> None:
    both = [requests_of(plan(processes=2), process) for process in range(2)]
    bodies = [{request.data for request in requests} for requests in both]
    assert [len(each) for each in bodies] == [25, 25]
    assert not bodies[0] & bodies[1]


def test_batches_of_several_sizes_hold_each_text_as_often() -> None:
    requests = requests_of(plan(batches=(1, 4), distinct=20), 0)
    assert [request.texts for request in requests] == [1, 4] * 10
    sent = json.loads(requests[1].data.partition(b"\r\n\r\n")[2])["inputs"]
    assert len({text for (text,) in sent}) == 4
    every = b"".join(request.data for request in requests)
    assert all(b'"%b"' % text.encode() in every for text in TEXTS)


def test_a_request_is_whole() -> None:
    (request,) = requests_of(plan(distinct=1, headers=(("x-request-id", "a"),)), 0)
    head, _, body = request.data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /predict HTTP/1.1\r\nhost: 127.0.0.1:1\r\n")
    assert b"\r\ncontent-length: %d\r\n" % len(body) in head
    assert head.endswith(b"\r\nx-request-id: a")


def test_bodies_that_cannot_be_distinct_are_refused() -> None:
    with pytest.raises(ConfigError, match="only 50 distinct texts"):
        check_plan(plan(distinct=51))
    check_plan(plan(distinct=51, batches=(2,)))
    with pytest.raises(ConfigError, match="--body-file"):
        check_plan(plan(route="/other"))


def test_a_report_does_not_hold_keys() -> None:
    words = ["--api-key", "a", "--rate", "5", "--header", "x: b", "--hf-token=c", "--", "--api-key"]
    assert without_secrets([*words, "--d"]) == [
        *("--api-key", "***", "--rate", "5", "--header", "***", "--hf-token=***"),
        *("--", "--api-key", "***"),
    ]


def test_files_of_texts_and_bodies_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a\n\nb\na\n")
    assert read_texts(file) == ("a", "b")
    file.write_text('{"a": 1}\n\n{"b": 2}\n')
    assert read_bodies(file) == (b'{"a": 1}', b'{"b": 2}')
    file.write_text('{"a": 1}\n{"b": \n')
    with pytest.raises(ConfigError, match="line 2"):
        read_bodies(file)
    with pytest.raises(ConfigError, match="missing"):
        read_texts(tmp_path / "none")


@pytest.mark.parametrize(
    ("check", "body", "texts", "fault"),
    [
        (predict_fault, GOOD, 1, None),
        (predict_fault, b"[%b,%b]" % (GOOD, GOOD), 2, None),
        (predict_fault, b"[\n  %b\n]" % GOOD, 1, None),
        (predict_fault, b"[%b]" % GOOD, 2, "1 rows for 2 texts"),
        (predict_fault, GOOD.replace(b"0.9", b"null"), 1, "shape"),
        (predict_fault, GOOD.replace(b"0.9", b"NaN"), 1, "shape"),
        (predict_fault, b'[%b,[{"score":1,"label":"P"}]]' % GOOD, 2, "widths"),
        (predict_fault, b"[]", 1, "empty"),
        (predict_fault, GOOD[:-1], 1, "shape"),
        (classify_fault, b'{"data":[{"index":0,"label":"N","probs":[0.9,0.1]}]}', 1, None),
        (classify_fault, b'{"data":[%b]}' % GOOD, 1, None),
        (classify_fault, b'{"data":[%b]}' % GOOD, 2, "1 rows for 2 texts"),
        (classify_fault, b'{"data":[]}', 1, "0 rows"),
        (classify_fault, GOOD, 1, "shape"),
        (embed_fault, b"[[0.5,1],[1,2]]", 2, None),
        (embed_fault, b"[[0.5,1],[1]]", 2, "widths"),
        (embed_fault, b"[[0.5,null]]", 1, "shape"),
        (embed_fault, b"[]", 1, "0 rows"),
        (openai_fault, b'{"data":[{"index":0,"embedding":[1.0]}]}', 1, None),
        (openai_fault, b'{"data":[{"index":1,"embedding":[1.0]}]}', 1, "order"),
        (rerank_fault, b'[{"index":1,"score":0.9},{"index":0,"score":0.1}]', 2, None),
        (rerank_fault, b'[{"index":0,"score":0.1},{"index":1,"score":0.9}]', 2, "sorted"),
        (rerank_fault, b'[{"index":1,"score":0.9},{"index":1,"score":0.1}]', 2, "twice"),
        (json_fault, b"{}", 0, None),
        (json_fault, b"<html>", 0, "not JSON"),
    ],
)
def test_a_wrong_answer_is_told_from_a_right_one(
    check: Callable[[bytes, int], str | None], body: bytes, texts: int, fault: str | None
) -> None:
    found = check(body, texts)
    assert found is None if fault is None else fault in (found or "")


def share(rows: list[dict[str, float]], **values: object) -> Share:
    table = np.array([[row.get(column, np.nan) for column in COLUMNS] for row in rows])
    given: dict[str, object] = {
        "table": table,
        "wrong": [],
        "cpu": 0.2,
        "beats": np.zeros(5),
        "late": np.zeros(5),
        "backlog": 0,
        "reconnects": 0,
        "distinct": 1,
    }
    return Share(**(given | values))  # type: ignore[arg-type]


def row(intended: float, seconds: float, status: int = 200, **values: float) -> dict[str, float]:
    ended = intended + seconds
    return {"intended": intended, "ended": ended, "status": status, "fault": 0, "texts": 2} | values


def test_a_report_counts_what_was_measured_and_what_was_sent_at_all() -> None:
    rows = [
        row(0.5, 0.6, tokens=5),  # of the warm-up, answered while measuring
        row(1.0, 0.1, tokens=10, queue=3),
        row(1.1, 0.3, tokens=20, queue=5),
        row(1.2, 0.001, status=429),
        row(1.3, 1.0, status=0, fault=Fault.TIMEOUT),
        row(1.9, 0.2, tokens=40, queue=7),  # answered after measuring
        row(1.4, 0.1, fault=Fault.WRONG_ANSWER),
    ]
    report = report_of(plan(warm_up=1.0), [share(rows[:3]), share(rows[3:])], 1.0, 0.2)
    assert report["sent"] == 6
    assert report["by_status"] == {"200": 4, "429": 1}
    assert report["errors"] == {"no answer in time": 1, "wrong answer": 1}
    assert report["answered_2xx"] == 3
    assert report["requests_per_second"] == 3
    assert report["tokens_per_second"] == 35
    assert report["goodput_per_second"] == 1
    assert report["latency_ms"]["p50"] == pytest.approx(200)
    assert report["latency_ms"]["max"] == pytest.approx(300)
    assert report["server_ms"]["queue"]["mean"] == 5
    assert report["server_ms"]["inference"] is None
    assert report["totals"] == {
        "sent": 7,
        "by_status": {"200": 5, "429": 1},
        "errors": {"no answer in time": 1, "wrong answer": 1},
        "texts": 8,
        "tokens": 75,
    }
    assert "1 × wrong answer" in summary(report)
    json.dumps(report)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cpu": 0.95}, "95% of a core"),
        ({"beats": np.full(5, 0.02)}, "20 ms late"),
        ({"late": np.full(5, 0.03)}, "30 ms behind schedule"),
    ],
)
def test_a_generator_that_is_too_slow_says_so(values: dict[str, object], reason: str) -> None:
    rows = [row(1.0, 0.1)]
    assert not report_of(plan(), [share(rows)], 1.0, None)["generator"]["is_bottleneck"]
    report = report_of(plan(), [share(rows), share(rows, **values)], 1.0, None)
    assert report["generator"]["is_bottleneck"]
    assert reason in summary(report)


def test_what_becomes_of_requests_is_counted_by_kind() -> None:
    def give(number: int) -> bytes:
        kinds = (answer(GOOD), answer(b"{}", b"429 No"), answer(b"[]"), b"what?\r\n\r\n")
        return kinds[number % 4]

    with stub(give) as target:
        report = measure(plan(target=target, connections=3, duration=1.0))
        totals = report["totals"]
        assert totals["sent"] == Stub.number
    each = totals["sent"] // 4
    assert each > 10
    for count in (
        totals["by_status"]["429"],
        totals["errors"]["wrong answer"],
        totals["errors"]["answer is not HTTP"],
    ):
        assert abs(count - each) <= 1
    assert report["wrong_answers"] == ["an empty row"] * 5
    assert totals["tokens"] == 7 * (totals["by_status"]["200"] - totals["errors"]["wrong answer"])
    assert report["server_ms"]["queue"]["p99"] == 1.5


def test_a_socket_in_the_file_system_is_a_target(tmp_path: Path) -> None:
    with stub(lambda number: answer(GOOD), str(tmp_path / "s")) as target:
        report = measure(plan(target=target, duration=0.2))
    assert report["answered_2xx"] == report["sent"] > 0


def test_silence_and_hanging_up_are_errors() -> None:
    hang_up = answer(GOOD, head=b"connection: close\r\n")
    with stub(lambda number: b"" if number % 2 else hang_up) as target:
        report = measure(plan(target=target, connections=2, duration=0.5, timeout=0.1))
        assert report["totals"]["sent"] == Stub.number
    assert set(report["errors"]) == {"no answer in time"}
    assert report["answered_2xx"] > 0
    assert report["generator"]["reconnects"] >= report["sent"] - 2


def test_nobody_there_is_an_error_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="cannot connect"):
        measure(plan())


def test_a_server_that_stalls_does_not_slow_down_an_open_loop() -> None:
    """The closed loop asks once during the stall, and calls it one bad request of many."""

    def give(number: int) -> bytes:
        if number == 30:
            time.sleep(0.5)
        return answer(GOOD)

    with stub(give) as target:
        report = measure(plan(target=target, connections=50, rate=200.0))
    assert report["sent"] == report["answered_2xx"]
    assert abs(report["sent"] - 200) < 75  # five standard deviations of a Poisson process
    assert report["latency_ms"]["p90"] > 200
    with stub(give) as target:
        report = measure(plan(target=target, connections=1))
    assert report["latency_ms"]["p90"] < 200
    assert report["latency_ms"]["max"] > 450


def test_requests_of_an_open_loop_wait_for_a_connection_and_it_counts() -> None:
    def give(number: int) -> bytes:
        time.sleep(0.02)
        return answer(GOOD)

    with stub(give) as target:
        report = measure(plan(target=target, connections=1, rate=100.0, duration=0.6))
        assert report["totals"]["sent"] == Stub.number
    assert report["generator"]["most_waiting_for_a_connection"] > 10
    assert report["latency_ms"]["max"] > 200
    assert "waited for a free connection" in summary(report)


def test_a_load_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plan that is larger than the buffer of a pipe: nobody reads it."""
    monkeypatch.setattr(crew, "serve_parent", dies)
    texts = tuple(f"text {number} {'x' * 100}" for number in range(20_000))
    with pytest.raises(crew.GeneratorError, match="a load process ended"):
        measure(plan(texts=texts))


def dies(process: int, pipe: object) -> None:
    os._exit(1)
