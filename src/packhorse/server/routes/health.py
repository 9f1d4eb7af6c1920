"""Whether the service lives, and whether requests should be sent to it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from packhorse.server.service import Service

READY_PATHS = ("/health", "/health/ready", "/ready", "/ping", "/v2/health/ready")
LIVE_PATHS = ("/health/live", "/v2/health/live")
"""Those under /v2 are where monitors of Triton and KServe look."""


async def ready(request: Request) -> Response:
    """200 and nothing when requests can be answered, else 503.

    Of this front end only: it says what it knows of its engines, by its own
    connections and by their vitals, so a stuck engine is noticed.
    """
    service: Service = request.app.state.service
    service.check_ready()
    return Response()


async def live(request: Request) -> Response:
    """200 as long as this process answers at all.

    Engines that fail are replaced; when that does not help, the whole server ends.
    """
    return Response()
