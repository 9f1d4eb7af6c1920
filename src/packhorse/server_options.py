"""The settings of the HTTP side, apart from who may ask: a part of the table of config.py."""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.option import (
    AUTO,
    boolean,
    http_url,
    option,
    positive,
    positive_or_auto,
    positive_or_none,
    tcp_port,
    whole,
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The HTTP side."""

    hostname: str = option("127.0.0.1", "Address to listen on.", tei=True, also=("--host",))
    port: int = option(
        8000, "Port to listen on; 0 takes a free one.", tcp_port, tei=True, also=("-p",)
    )
    front_ends: int | str = option(
        AUTO,
        "HTTP processes. auto: half of the cores with a GPU, a quarter without, 1 to 8.",
        positive_or_auto,
    )
    tokenization_workers: int = option(
        1, "Threads that tokenise in each HTTP process.", positive, tei=True
    )
    max_concurrent_requests: int = option(
        16384,
        "Most inputs waiting or running at once; more are refused with 429.",
        positive,
        tei=True,
    )
    max_client_batch_size: int = option(
        16384, "Most inputs in one request; more are refused with 422.", positive, tei=True
    )
    default_timeout_ms: int | None = option(
        None,
        "Time a request may take without its own header x-timeout-ms, in ms; then it gets 504. "
        "none: as long as it takes.",
        positive_or_none,
    )
    dedup: bool = option(
        True, "Compute equal texts of one client once while they are in flight.", boolean
    )
    response_cache_mb: int = option(
        0, "Memory in which answers are kept for equal texts, in MB; 0 keeps none.", whole
    )
    auto_truncate: bool = option(
        True, "Cut inputs that are too long unless a request says otherwise.", boolean, tei=True
    )
    payload_limit: int = option(
        16_000_000,
        "Largest request body in bytes; a larger one is refused with 413.",
        positive,
        tei=True,
    )
    answer_limit: int = option(
        64 << 20,
        "Largest answer in bytes, with vectors as float32 (as JSON five times that); a request for "
        "more is refused with 422. So much may be on its way from each HTTP process.",
        positive,
    )
    log_level: str = option(
        "info", "How much is logged.", choices=("debug", "info", "warning", "error")
    )
    json_output: bool = option(False, "Log a JSON object a line, for machines.", boolean, tei=True)
    otlp_endpoint: str | None = option(
        None,
        "Collector that gets OpenTelemetry traces, by OTLP over HTTP: http://localhost:4318.",
        http_url,
        tei=True,
    )
    otlp_service_name: str = option("packhorse", "Name of the service in traces.", tei=True)
    access_log: bool = option(
        False, "Log a line for each request: route, status, time, client; never a text.", boolean
    )
