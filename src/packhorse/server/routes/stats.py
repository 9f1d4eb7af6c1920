"""GET /stats: the numbers of all processes as one small JSON object, for the live page."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse import __version__, metrics
from packhorse.channel.board import Board
from packhorse.errors import UnavailableError
from packhorse.server.service import Service


class StatsModel(msgspec.Struct):
    """What is served; ``fault`` says why requests cannot be answered now, and is null if they can.

    ``device``, ``dtype`` and the bounds of a batch are null before an engine is ready.
    """

    name: str
    task: str
    version: str
    device: str | None
    dtype: str | None
    tokenizer: str
    max_input_length: int
    max_batch_tokens: int | None
    max_batch_requests: int | None
    fault: str | None


class Latency(msgspec.Struct):
    """Requests by their time: ``counts`` has one number more, for those above the last bound."""

    bounds_seconds: list[float]
    counts: list[float]


class Stats(msgspec.Struct):
    """The numbers of all processes.

    time          of a clock that only goes on, in seconds
    counters      since the start
    memory_bytes  of engines (``process``: resident) and of their GPU; 0 where there is none
    """

    time: float
    model: StatsModel
    counters: dict[str, float]
    gauges: dict[str, float]
    latency: Latency
    memory_bytes: dict[str, float]


async def stats(request: Request) -> Response:
    """What grows is counted since the start; who asks twice has rates and quantiles between."""
    service: Service = request.app.state.service
    service.observations.flush()
    return Response(
        msgspec.json.encode(
            Stats(
                time=time.monotonic(),
                model=_model(service),
                counters=_counters(service.board),
                gauges=_gauges(service.board),
                latency=Latency(list(metrics.SECONDS), metrics.TOTAL_TIME.counts(service.board)),
                memory_bytes=_memory(service.board),
            )
        ),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def _model(service: Service) -> StatsModel:
    engine = service.engines.info or {}
    try:
        service.check_ready()
        fault = None
    except UnavailableError as error:
        fault = str(error)
    return StatsModel(
        name=service.name,
        task=service.checkpoint.task,
        version=__version__,
        device=engine.get("device"),
        dtype=engine.get("dtype"),
        tokenizer=service.tokenizer.backend,
        max_input_length=service.tokenizer.max_length,
        max_batch_tokens=engine.get("max_batch_tokens"),
        max_batch_requests=engine.get("max_batch_requests"),
        fault=fault,
    )


def _counters(board: Board) -> dict[str, float]:
    """Since the start, over all processes."""
    sequences, tokens = metrics.BATCH_SEQUENCES, metrics.BATCH_TOKENS
    return {
        "requests": metrics.TOTAL_TIME.count(board),
        "sequences": board.total(metrics.SEQUENCES.first),
        "tokens": board.total(metrics.TOKENS.first),
        "batches": sequences.count(board),
        "batch_sequences": sequences.sum(board),
        "batch_tokens": tokens.sum(board),
        "padding_tokens": board.total(metrics.PADDING_TOKENS.first),
        "refusals": metrics.REFUSALS.total(board),
        "failures": sum(
            board.total(metrics.REQUESTS.word(route, "500")) for route in metrics.ROUTES
        ),
    }


def _gauges(board: Board) -> dict[str, float]:
    return {
        "connections": board.total(metrics.CONNECTIONS.first),
        "inputs_in_flight": board.total(metrics.INPUTS_IN_FLIGHT.first),
        "queued_sequences": board.total(metrics.QUEUED_SEQUENCES.first),
        "queued_tokens": board.total(metrics.QUEUED_TOKENS.first),
    }


def _memory(board: Board) -> dict[str, float]:
    kinds = metrics.DEVICE_MEMORY.labels["kind"]
    return {kind: board.total(metrics.DEVICE_MEMORY.word(kind)) for kind in kinds}
