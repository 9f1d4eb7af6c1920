"""GET /openapi.json: what every route reads, from the same classes that read it."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse import __version__
from packhorse.server.model_route import ModelRoute, encode_json
from packhorse.server.routes.openai import OpenAIRoute
from packhorse.server.routes.table import PATHS
from packhorse.server.schemas import ErrorBody

_PLACE = "#/components/schemas/{name}"


class OpenAIErrorObject(msgspec.Struct):
    """What is wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(msgspec.Struct):
    """An answer of the routes in OpenAI's shapes that is not a success."""

    error: OpenAIErrorObject


async def openapi(request: Request) -> Response:
    """The OpenAPI 3.1 document."""
    return Response(encode_json(document()), media_type="application/json")


@cache
def document() -> dict[str, Any]:
    """The document as JSON values."""
    bodies = {
        path: (body_of(kind), error_of(kind), (kind.answer.__doc__ or "").strip())
        for path, kind in PATHS.items()
    }
    kinds = list(dict.fromkeys(one for body, error, _ in bodies.values() for one in (body, error)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_PLACE)
    references = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {
        path: {"post": _operation(references[body], references[error], summary)}
        for path, (body, error, summary) in bodies.items()
    }
    for path, summary in (
        ("/health", "Whether requests can be answered."),
        ("/info", "Model, limits and settings."),
        ("/metrics", "Numbers for Prometheus."),
        ("/stats", "A few of the numbers as JSON, since the start, for the live page."),
        ("/v1/models", "The model that is loaded."),
    ):
        paths[path] = {"get": {"summary": summary, "responses": _responses(references[ErrorBody])}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Packhorse", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def body_of(kind: type[ModelRoute]) -> Any:
    """The class that a route's body is read into."""
    decoder: msgspec.json.Decoder[Any] = vars(kind)["_decoder"]
    return decoder.type


def error_of(kind: type[ModelRoute]) -> type:
    """The class of a route's errors."""
    return OpenAIErrorBody if issubclass(kind, OpenAIRoute) else ErrorBody


def _operation(body: Any, error: Any, summary: str) -> dict[str, Any]:
    return {
        "summary": summary.partition("\n")[0],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(error),
    }


def _responses(error: Any) -> dict[str, Any]:
    failed = {"application/json": {"schema": error}}
    return {
        "200": {"description": "The answer."},
        "4XX": {"description": "The request is at fault, or not now.", "content": failed},
        "5XX": {"description": "The server is at fault, or not ready.", "content": failed},
    }
