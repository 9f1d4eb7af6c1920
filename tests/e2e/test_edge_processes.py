"""Keys, CORS, ids and proxies on real processes: what is said, and what is never said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import Service, service, until

KEY, OTHER = "first-planted-key", "second-planted-key"
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with service(
        environment={"API_KEY": OTHER},
        api_key=f"{KEY},{OTHER}",
        cors_allow_origin="*",
        trusted_proxies="127.0.0.0/8",
        access_log="true",
        json_output="true",
        gzip="true",
    ) as made:
        yield made


def predict(server: Service, inputs: object, **headers: str) -> httpx.Response:
    headers = {"origin": PAGE, "authorization": f"Bearer {KEY}"} | headers
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + "/predict", json={"inputs": inputs}, headers=named, timeout=20)


def test_the_hot_route_passes_the_edge(server: Service) -> None:
    good = predict(server, "a", x_request_id="own-id")
    assert good.status_code == 200
    assert good.headers["x-request-id"] == "own-id"
    assert good.headers["access-control-allow-origin"] == "*"
    for answer, status in (
        (predict(server, "a", authorization=f"Bearer {KEY}x"), 401),
        (predict(server, []), 400),
        (server.get("/nowhere", headers={"x-api-key": OTHER}), 404),
        (httpx.options(server.url + "/predict"), 401),
    ):
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "*"
        assert len(answer.headers["x-request-id"]) == 21
    asked = httpx.options(
        server.url + "/predict",
        headers={"origin": PAGE, "access-control-request-method": "POST"},
    )
    assert asked.status_code == 204
    assert asked.content == b""


def test_an_answer_of_many_rows_is_compressed(server: Service) -> None:
    large = predict(server, [["good"]] * 2000, accept_encoding="gzip")
    assert large.headers["content-encoding"] == "gzip"
    assert int(large.headers["content-length"]) < len(large.content) / 5
    assert len(large.json()) == 2000
    small = predict(server, "good", accept_encoding="gzip")
    plain = predict(server, [["good"]] * 2000, accept_encoding="identity")
    assert "content-encoding" not in small.headers
    assert "content-encoding" not in plain.headers
    assert plain.json() == large.json()


def test_keys_and_texts_are_nowhere_to_be_seen(server: Service) -> None:
    predict(server, "a planted text", x_forwarded_for="1.2.3.4")
    server.get("/nowhere?q=a%20planted%20text", headers={"x-api-key": KEY})
    assert server.process is not None
    told = [server.log, server.get("/info", headers={"x-api-key": KEY}).text]
    for process in (server.process.pid, *server.children()):
        told.append(Path(f"/proc/{process}/cmdline").read_text())
    for process in server.children():
        told.append(Path(f"/proc/{process}/environ").read_text(errors="replace"))
    assert len(told) >= 7
    for text in told:
        assert "planted" not in text


def test_the_access_log_is_json_with_ids(server: Service) -> None:
    predict(server, "a", x_request_id="find-me", x_forwarded_for="9.9.9.9, 1.2.3.4")
    server.get("/health", headers={"x-forwarded-for": "1.2.3.4", "x-request-id": "find-me-too"})
    until(lambda: "find-me-too" in server.log)  # it is written after the answer
    lines = {
        line["request_id"]: line
        for line in map(json.loads, server.log.splitlines())
        if line.get("logger") == "packhorse.access"
    }
    found = lines["find-me"]
    assert (found["method"], found["route"], found["status"]) == ("POST", "predict", 200)
    assert found["client"].startswith("key:")
    assert found["duration_ms"] > 0
    assert lines["find-me-too"]["client"] == "addr:1.2.3.4"


def test_a_server_with_an_unusable_file_of_keys_does_not_start(tmp_path: Path) -> None:
    made = Service(api_key_file=tmp_path / "missing")
    try:
        made.start()
        assert made.wait() == 1
        assert "--api-key-file" in made.log
    finally:
        made.close()
