"""Traces from real processes: a collector receives all of each, and no text."""

from __future__ import annotations

import httpx
import pytest

from tests.collector import collector
from tests.e2e.service import service, until

pytestmark = pytest.mark.long

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_collector_receives_whole_traces_without_texts() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs packhorse[otlp]")
    with (
        collector() as c,
        service(
            environment={"OTEL_BSP_SCHEDULE_DELAY": "100"},
            front_ends=2,
            otlp_endpoint=c.url,
            otlp_service_name="reviews",
        ) as server,
    ):
        tokens = {}
        for number in range(6):
            answer = httpx.post(
                server.url + "/predict?q=planted",
                json={"inputs": [["planted text"]] * (1 + number)},
                headers={
                    "x-request-id": f"id-{number}",
                    "traceparent": f"00-{TRACE}-{number + 1:016x}-01",
                },
                timeout=20,
            )
            tokens[f"id-{number}"] = int(answer.headers["x-compute-tokens"])
        assert server.predict([], timeout=20).status_code == 400
        server.get("/planted")
        assert server.stop() == 0  # what was not sent yet is sent at the end
        until(lambda: len(c.spans) >= 6 * 4 + 2)
    assert b"planted" not in c.raw
    assert len(c.spans) == 6 * 4 + 2
    requests = [span for span in c.spans if span["name"] == "POST /predict"]
    done = [span for span in requests if span["http.response.status_code"] == 200]
    assert {span["packhorse.request_id"]: span["packhorse.tokens"] for span in done} == tokens
    assert {span["trace"] for span in done} == {TRACE}
    assert {int(span["parent"], 16) for span in done} == set(range(1, 7))
    for request in done:
        below = [span for span in c.spans if span["parent"] == request["span"]]
        assert {span["name"] for span in below} == {"tokenization", "queue", "inference"}
        for span in below:
            assert request["start"] <= span["start"] <= span["end"] <= request["end"]
    assert {span["resource"]["service.name"] for span in c.spans} == {"reviews"}
    assert {span["name"] for span in c.spans if span not in requests} >= {"GET", "queue"}
