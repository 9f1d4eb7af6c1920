"""GET /metrics: the numbers of all processes, for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from packhorse import __version__
from packhorse.metrics import exposition
from packhorse.server.service import Service


async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    service: Service = request.app.state.service
    service.observations.flush()
    engine = service.engines.info or {}
    info = {
        "version": __version__,
        "model": service.name,
        "device": str(engine.get("device", "")),
        "dtype": str(engine.get("dtype", "")),
        "tokenizer": service.tokenizer.backend,
    }
    return Response(
        exposition(service.board, info), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
