"""GET /: the live page for browsers, and for others a list of what can be asked for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from packhorse import __version__
from packhorse.server.page import DOCUMENT, POLICY
from packhorse.server.service import Service

_PAGE = """\
Packhorse {version} serves {model}.

POST /predict       {{"inputs": "a text"}}: labels with scores
                    a pair: {{"inputs": ["a", "b"]}}, a batch: {{"inputs": [["a"], ["b", "c"]]}}
POST /embed         vectors; /embed_all: of every token; /embed_sparse; /similarity: cosines
POST /rerank        texts by how well they answer a query (/v1/rerank, /v2/rerank: Cohere's shape)
POST /v1/embeddings as OpenAI; GET /v1/models
POST /classify      as vLLM; /pooling; /score: pairs of texts
POST /v1/token_classify, /v1/zero_shot, /v1/fill_mask, /tokenize, /decode
                    a route that the model's task ({task}) does not fit answers with 424
GET  /health        200 when it can be used (also /ping, /ready, /health/ready), else 503
GET  /health/live   200 while the process lives
GET  /info          model, limits, settings
GET  /metrics       for Prometheus; /stats: a few of the numbers as JSON
GET  /openapi.json  what every route reads and answers; /docs: the same in Swagger UI
GET  /              in a browser: try the model, and watch the numbers
"""


_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
    "vary": "accept",
}


async def root(request: Request) -> Response:
    """The page where HTML is named in ``Accept``, as all browsers do; else text."""
    if _takes_html(request.headers.get("accept", "")):
        return Response(DOCUMENT, media_type="text/html", headers=_HEADERS)
    service: Service = request.app.state.service
    return PlainTextResponse(
        _PAGE.format(version=__version__, model=service.name, task=service.checkpoint.task.value),
        headers={"vary": "accept"},
    )


def _takes_html(accept: str) -> bool:
    """Whether ``text/html`` is among its media ranges, and not with a quality of 0."""
    for media_range in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        if kind == "text/html":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", ".")
