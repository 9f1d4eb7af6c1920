"""GET /openapi.json: what every route reads and answers, from the classes that read and answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse import __version__
from packhorse.server.model_route import ModelRoute, encode_json
from packhorse.server.routes.examples import EXAMPLES
from packhorse.server.routes.health import LIVE_PATHS, READY_PATHS
from packhorse.server.routes.info import Info
from packhorse.server.routes.openai import ModelList, OpenAIErrorBody, OpenAIRoute
from packhorse.server.routes.stats import Stats
from packhorse.server.routes.table import OWN_PATHS, PATHS, PIPELINES
from packhorse.server.schemas import ErrorBody
from packhorse.server.service import Service
from packhorse.tasks import Task

_PLACE = "#/components/schemas/{name}"

JSON, TEXT, HTML = "application/json", "text/plain", "text/html"


@dataclass(frozen=True, slots=True)
class Shown:
    """A route that only shows something.

    answers  media types and the class of what they hold; of none the body is empty
    fails    the statuses of its errors
    """

    summary: str
    answers: dict[str, Any]
    fails: tuple[str, ...] = ("401", "4XX", "5XX")


SHOWN = {
    **dict.fromkeys(
        READY_PATHS,
        Shown("Whether requests can be answered: 200 or 503.", {}),
    ),
    **dict.fromkeys(LIVE_PATHS, Shown("Whether the process lives.", {})),
    "/info": Shown("Model, limits and settings.", {JSON: Info}),
    "/metrics": Shown("Numbers for Prometheus.", {TEXT: str}),
    "/stats": Shown(
        "A few of the numbers as JSON, since the start, for the live page.", {JSON: Stats}
    ),
    **dict.fromkeys(
        ("/v1/models", "/models"), Shown("The model that is loaded.", {JSON: ModelList})
    ),
    "/openapi.json": Shown("This document.", {JSON: dict[str, Any]}),
    "/docs": Shown("This document in Swagger UI, if that is installed.", {HTML: str}),
    "/": Shown("The live page for browsers, for others the routes.", {TEXT: str, HTML: str}),
}


async def openapi(request: Request) -> Response:
    """The OpenAPI 3.1 document."""
    service: Service = request.app.state.service
    return Response(encode_json(document(service.checkpoint.task)), media_type=JSON)


@cache
def document(task: Task = Task.CLASSIFY) -> dict[str, Any]:
    """The document as JSON values. ``POST /`` is the route of the model's ``task``."""
    routes = dict(PATHS)
    own = OWN_PATHS.get(task, "/predict")
    routes |= {"/": routes[own], "/invocations": routes[own]}
    pipeline = PIPELINES.get(task)
    all_routes = [*routes.values(), *([] if pipeline is None else [pipeline])]
    kinds = list(
        dict.fromkeys(
            [
                *(kind for route in all_routes for kind in (body_of(route), error_of(route))),
                *(route.answers for route in all_routes),
                *(kind for shown in SHOWN.values() for kind in shown.answers.values()),
                ErrorBody,
            ]
        )
    )
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_PLACE)
    references = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, route in routes.items():
        example = EXAMPLES.get(path) or EXAMPLES[own]
        other = pipeline if path in ("/", "/invocations") else None
        paths[path] = {"post": _asking(route, other, references, example)}
    for path, shown in SHOWN.items():
        paths.setdefault(path, {})["get"] = _showing(shown, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Packhorse", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{}, {"bearer": []}, {"key": []}],  # where the server has keys
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def body_of(kind: type[ModelRoute]) -> Any:
    """The class that a route's body is read into."""
    decoder: msgspec.json.Decoder[Any] = vars(kind)["_decoder"]
    return decoder.type


def error_of(kind: type[ModelRoute]) -> type:
    """The class of a route's errors."""
    return OpenAIErrorBody if issubclass(kind, OpenAIRoute) else ErrorBody


def summary_of(kind: type[ModelRoute]) -> str:
    """What a route answers."""
    return (kind.answer.__doc__ or "").strip().partition("\n")[0]


def _asking(
    route: type[ModelRoute],
    other: type[ModelRoute] | None,
    references: dict[Any, Any],
    example: dict[str, Any],
) -> dict[str, Any]:
    """``other`` is a second route that bodies of another shape go to."""
    read, answers = references[body_of(route)], references[route.answers]
    if other is not None:
        read = {"anyOf": [read, references[body_of(other)]]}
        answers = {"anyOf": [answers, references[other.answers]]}
    body = {"schema": read, "example": example}
    plain, error = references[ErrorBody], references[error_of(route)]
    # What is refused before the route is looked at has one shape everywhere.
    fails = {"401": plain, "403": plain, "4XX": error, "5XX": error}
    if error is not plain:
        fails["503"] = {"anyOf": [error, plain]}
    return {
        "summary": summary_of(route),
        "requestBody": {"required": True, "content": {JSON: body}},
        "responses": {
            "200": _response("The answer.", {JSON: answers}),
            **{status: _response(_MEANS[status], {JSON: kind}) for status, kind in fails.items()},
        },
    }


def _showing(shown: Shown, references: dict[Any, Any]) -> dict[str, Any]:
    answers = {media: references[kind] for media, kind in shown.answers.items()}
    failed = {JSON: references[ErrorBody]}
    return {
        "summary": shown.summary,
        "responses": {
            "200": _response("The answer.", answers),
            **{status: _response(_MEANS[status], failed) for status in shown.fails},
        },
    }


_MEANS = {
    "401": "There is no valid key.",
    "403": "Another site's page asked, which is not allowed.",
    "503": "Not now: see the header Retry-After.",
    "4XX": "The request is at fault, or not now.",
    "5XX": "The server is at fault, or not ready.",
}


def _response(description: str, content: dict[str, Any]) -> dict[str, Any]:
    shown = {media: {"schema": schema} for media, schema in content.items()}
    return {"description": description} | ({"content": shown} if shown else {})
