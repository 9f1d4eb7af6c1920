"""Spans of requests, without a server: what is in them, and what is not loaded when off."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from packhorse import tracing
from packhorse.errors import ConfigError
from packhorse.tracing import Finished, Stages, Tracing, traces_url
from tests.collector import collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def finished(status: int = 200, stages: Stages | None = None) -> Finished:
    now = time.monotonic()
    return Finished("POST", "/predict", status, "id-1", now - 0.020, now, stages)


def needs_opentelemetry() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs packhorse[otlp]")


def test_a_trace_that_a_client_began_is_continued() -> None:
    needs_opentelemetry()
    with collector() as c:
        made = Tracing(c.url, "reviews", "front end 0", "a-model")
        for flag in ("01", "00"):
            parent = f"00-{TRACE}-{SPAN}-{flag}".encode()
            made.record(finished(), {b"traceparent": parent})
        made.record(finished(503), {b"traceparent": b"nonsense"})
        made.close()
    followed, own = c.spans  # that with flag 00 is not recorded: its client says so
    assert (followed["trace"], followed["parent"]) == (TRACE, SPAN)
    assert followed["is_error"] is False
    assert followed["packhorse.request_id"] == "id-1"
    assert followed["resource"]["service.name"] == "reviews"
    assert followed["resource"]["packhorse.model"] == "a-model"
    assert own["trace"] != TRACE
    assert own["parent"] == ""
    assert own["is_error"] is True


def test_stages_follow_each_other_within_the_request() -> None:
    needs_opentelemetry()
    with collector() as c:
        made = Tracing(c.url + "/v1/traces", "packhorse", "front end 0", "a-model")
        stages = Stages(time.monotonic() - 0.015, 0.002, 0.004, 0.003, 2, 17, 1, 1)
        made.record(finished(stages=stages), {})
        made.close()
    by_name = {span["name"]: span for span in c.spans}
    request = by_name.pop("POST /predict")
    assert list(by_name) == ["tokenization", "queue", "inference"]
    assert all(span["parent"] == request["span"] for span in by_name.values())
    in_order = [by_name[name] for name in ("tokenization", "queue", "inference")]
    ends = [request["start"], *(span["end"] for span in in_order)]
    for before, span in zip(ends, in_order, strict=False):
        assert before <= span["start"] + 1000  # ns: times are rounded
    assert ends[-1] <= request["end"]
    lengths = [(span["end"] - span["start"]) / 1e9 for span in in_order]
    assert lengths == pytest.approx([0.002, 0.004, 0.003], abs=1e-5)
    assert request["packhorse.tokens"] == by_name["inference"]["packhorse.tokens"] == 17
    assert request["packhorse.truncated"] == 1


@pytest.mark.timeout(30)
def test_a_collector_that_is_gone_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs_opentelemetry()
    made = Tracing("http://127.0.0.1:9", "packhorse", "front end 0", "a-model")
    shut_down, answered = made._provider.shutdown, threading.Event()  # which never comes
    monkeypatch.setattr(made._provider, "shutdown", answered.wait)
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.05)
    made.close()
    answered.set()
    shut_down()


def test_without_the_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'packhorse\[otlp\]'"):
        tracing.check_installed()


def test_nothing_is_imported_when_it_is_off() -> None:
    code = "import sys, packhorse.server.process, packhorse.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names = {name.split(".")[0] for name in done.stdout.split()}
    assert not names & {"opentelemetry", "google", "requests"}


def test_where_traces_are_sent() -> None:
    for given in ("http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"):
        assert traces_url(given) == "http://c:4318/v1/traces"
