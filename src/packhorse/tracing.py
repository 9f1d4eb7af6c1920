"""Traces of requests for OpenTelemetry, sent by OTLP over HTTP; nothing of it is imported when off.

A span for the request, and below it one for each stage: tokenization, queue,
inference. They are made when the request is over, from times that are
measured anyway, so the way of a request is the same with traces and without.
A trace that a client began (W3C ``traceparent``) is continued, and whether it
is recorded is for the client's flag to say, else for ``OTEL_TRACES_SAMPLER``.
Spans say how many tokens there were, and never which.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packhorse import __version__
from packhorse.errors import ConfigError

EXPORT_SECONDS = 5.0
"""How long an attempt to send may take, retries included."""

CLOSE_SECONDS = 3.0
"""How long the end of a process waits for what is not sent yet."""

_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class Stages:
    """What became of a request's inputs; times in seconds.

    departed      time.monotonic() when they were tokenised and left for the engine
    tokenization  until then, queue_wait from then until the first batch, inference of all batches
    """

    departed: float
    tokenization: float
    queue_wait: float
    inference: float
    sequences: int
    tokens: int
    truncated: int
    batches: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is over: ``began`` and ``ended`` are of time.monotonic().

    path   None for one that is none of ours: it may hold what a user typed
    """

    method: str
    path: str | None
    status: int
    request_id: str
    began: float
    ended: float
    stages: Stages | None


class Tracing:
    """Records requests of one process.

    Raises ConfigError where the libraries are not installed.
    """

    def __init__(self, endpoint: str, service_name: str, process: str, model: str) -> None:
        check_installed()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {
                "service.name": service_name,
                "service.version": __version__,
                "service.instance.id": process,
                "packhorse.model": model,
            }
        )
        exporter = OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=EXPORT_SECONDS)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("packhorse", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, request: Finished, headers: Mapping[bytes, bytes]) -> None:
        """Make the spans of a request; sending them is another thread's work."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        wall = time.time_ns() - time.monotonic_ns()
        attributes: dict[str, Any] = {
            "http.request.method": request.method,
            "http.response.status_code": request.status,
            "packhorse.request_id": request.request_id,
        }
        if request.path is not None:
            attributes["http.route"] = request.path
        stages = request.stages
        if stages is not None:
            attributes["packhorse.sequences"] = stages.sequences
            attributes["packhorse.tokens"] = stages.tokens
            attributes["packhorse.truncated"] = stages.truncated
        span = self._tracer.start_span(
            request.method if request.path is None else f"{request.method} {request.path}",
            context=self._propagator.extract(_carried(headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=wall + _nanoseconds(request.began),
        )
        if stages is not None and span.is_recording():
            context = set_span_in_context(span)
            for name, start, seconds, details in _spans_of(stages):
                self._tracer.start_span(
                    name, context, attributes=details, start_time=wall + _nanoseconds(start)
                ).end(wall + _nanoseconds(start + seconds))
        if request.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(wall + _nanoseconds(request.ended))

    def close(self) -> None:
        """Send what is left, for a moment: a collector that is gone must not hold up the end."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)


def check_installed() -> None:
    """Raise ConfigError unless the extra `otlp` is installed."""
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError("--otlp-endpoint needs more packages: pip install 'packhorse[otlp]'")


def traces_url(endpoint: str) -> str:
    """Where traces are sent: collectors take them at /v1/traces."""
    bare = endpoint.rstrip("/")
    return bare if bare.endswith(_PATH) else bare + _PATH


def _spans_of(stages: Stages) -> list[tuple[str, float, float, dict[str, int]]]:
    """Name, start, seconds and attributes of each."""
    departed, began = stages.departed, stages.departed + stages.queue_wait
    tokens = {"packhorse.tokens": stages.tokens}
    batches = {"packhorse.batches": stages.batches}
    return [
        ("tokenization", departed - stages.tokenization, stages.tokenization, tokens),
        ("queue", departed, stages.queue_wait, {}),
        ("inference", began, stages.inference, tokens | batches),
    ]


def _carried(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name: headers[name.encode()].decode("latin-1")
        for name in ("traceparent", "tracestate")
        if name.encode() in headers
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
