"""The application: which path is answered by which route.

Hot routes are plain ASGI callables, found in a dictionary. All others are
Starlette's, whose routing alone costs more than a hot route's own work.
"""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from packhorse.errors import InternalError, ServedError
from packhorse.logs import describe
from packhorse.metrics import REQUESTS, STATUSES
from packhorse.server.body import Message, Receive, Scope, Send
from packhorse.server.compression import GZIP_BYTES, GZIP_LEVEL
from packhorse.server.edge import Edge, id_of
from packhorse.server.responses import error_headers
from packhorse.server.routes.docs import FILES, docs, docs_file
from packhorse.server.routes.health import LIVE_PATHS, READY_PATHS, live, ready
from packhorse.server.routes.info import info
from packhorse.server.routes.metrics import metrics
from packhorse.server.routes.openai import models
from packhorse.server.routes.openapi import openapi
from packhorse.server.routes.own_task import OwnTask
from packhorse.server.routes.root import root
from packhorse.server.routes.stats import stats
from packhorse.server.routes.table import OWN_PATHS, PATHS, PIPELINES, model_routes
from packhorse.server.schemas import error_body, error_text
from packhorse.server.service import Service

logger = logging.getLogger(__name__)

INVOCATIONS = "invocations"
"""What POST / is called: other than GET /, it needs a key where there are keys."""

NAMES = {
    "/": "root",
    **dict.fromkeys((*READY_PATHS, *LIVE_PATHS), "health"),
    "/info": "info",
    "/metrics": "metrics",
    "/stats": "stats",
    "/v1/models": "models",
    "/models": "models",
    "/invocations": INVOCATIONS,
    "/openapi.json": "openapi",
    "/docs": "docs",
    **{f"/docs/{name}": "docs" for name in (*FILES, "start.js")},
} | {path: kind.name for path, kind in PATHS.items()}
"""What the metrics call a path. All those that clients make up are called unmatched."""


class App:
    """An ASGI application for one front end."""

    def __init__(self, service: Service) -> None:
        self._slot = service.slot
        self._edge = Edge(service.config, service.slot, service.tracing)
        self._hot: dict[str, ASGIApp] = {**model_routes(service)}
        # What text-embeddings-inference does at its root: the model's own task.
        own = OWN_PATHS.get(service.checkpoint.task, "/predict")
        pipeline = PIPELINES.get(service.checkpoint.task)
        if pipeline is not None:
            limit = service.config.server.payload_limit
            self._hot["/"] = OwnTask(self._hot[own], pipeline(service), limit)
        else:
            self._hot["/"] = self._hot[own]
        self._hot["/invocations"] = self._hot["/"]
        cold = Starlette(
            routes=[
                # Another method than POST: Starlette says which are allowed.
                *[
                    Route(path, route, methods=["POST"])
                    for path, route in self._hot.items()
                    if path != "/"
                ],
                *[Route(path, models) for path in ("/v1/models", "/models")],
                *[Route(path, ready) for path in READY_PATHS],
                *[Route(path, live) for path in LIVE_PATHS],
                Route("/info", info),
                Route("/openapi.json", openapi),
                Route("/docs", docs),
                Route("/docs/{name}", docs_file),
                Route("/metrics", metrics),
                Route("/stats", stats),
                Route("/", root, methods=["GET"]),
            ],
            exception_handlers={
                HTTPException: _http_error,
                ServedError: _served_error,
                Exception: _bug,
            },
        )
        cold.router.redirect_slashes = False
        cold.state.service = service
        self._cold: ASGIApp = cold
        if service.config.network.gzip:
            self._cold = GZipMiddleware(cold, minimum_size=GZIP_BYTES, compresslevel=GZIP_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] = _plain(scope["path"])
        route = NAMES.get(path, "unmatched")
        if path == "/" and scope["method"] == "POST":
            route = INVOCATIONS
        entry = self._edge.enter(scope, route)
        sending = entry.sending(send)
        try:
            if entry.ends_here:
                await entry.answer(self._counting(route, sending))
            elif path in self._hot and scope["method"] == "POST":
                await self._hot[path](scope, receive, sending)
            else:
                await self._cold(scope, receive, self._counting(route, sending))
        finally:
            self._edge.leave(scope, route, entry)

    def _counting(self, route: str, send: Send) -> Send:
        """``send`` that counts the answer's status."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = str(message["status"])
                word = REQUESTS.word(route, status if status in STATUSES else "other")
                self._slot[word] += 1.0
            await send(message)

        return counting


def _plain(path: str) -> str:
    """The path of the route that is meant: clients double slashes, and add one at the end."""
    if path in NAMES:
        return path
    shorter = "/" + "/".join(filter(None, path.split("/")))
    return shorter if shorter in NAMES else path


def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    what = {
        404: "there is no such route; GET / lists those that are there",
        405: "the route does not have this method; see the header Allow",
    }.get(error.status_code, error.detail)
    return Response(
        error_text(what, "Validation"),
        error.status_code,
        headers=error.headers,
        media_type="application/json",
    )


def _served_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServedError)
    response = Response(error_body(error), error.status, media_type="application/json")
    response.raw_headers += error_headers(error)
    return response


def _bug(request: Request, error: Exception) -> Response:
    route = NAMES.get(request.url.path, "unmatched")
    logger.error("%s failed: %s", route, describe(error), extra=id_of(request.scope))
    return _served_error(request, InternalError("internal error; the server's log says more"))
