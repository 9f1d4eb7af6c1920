"""The access log: a line for each request, and nothing in it that a text could be in.

The route's name stands for the path, as a path that is none of ours, and any
query string, may hold whatever a user typed.
"""

from __future__ import annotations

import logging

from packhorse.server.body import Scope

logger = logging.getLogger("packhorse.access")
logger.setLevel(logging.INFO)  # who asked for it gets it, whatever --log-level says

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Others are called other: what a client makes up is not written down."""


def log_access(scope: Scope, route: str, status: int, seconds: float) -> None:
    """Log one request that is over; ``route`` is its name in the metrics."""
    method = scope["method"] if scope["method"] in METHODS else "other"
    milliseconds = round(seconds * 1000, 3)
    logger.info(
        "%s %s %d %.3f ms %s",
        *(method, route, status, milliseconds, scope["packhorse.client"]),
        extra={
            "request_id": scope["packhorse.request_id"].decode(),
            "fields": {
                "method": method,
                "route": route,
                "status": status,
                "duration_ms": milliseconds,
                "client": scope["packhorse.client"],
            },
        },
    )
