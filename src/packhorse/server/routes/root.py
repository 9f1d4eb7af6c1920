"""GET /: what can be asked for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from packhorse import __version__
from packhorse.server.service import Service

_PAGE = """\
Packhorse {version} serves {model}.

POST /predict       {{"inputs": "a text"}}: labels with scores
                    a pair: {{"inputs": ["a", "b"]}}, a batch: {{"inputs": [["a"], ["b", "c"]]}}
POST /embed         vectors; /embed_all: of every token; /similarity: cosines
POST /rerank        texts by how well they answer a query (/v1/rerank, /v2/rerank: Cohere's shape)
POST /v1/embeddings as OpenAI; GET /v1/models
POST /classify      as vLLM; /score: pairs of texts
POST /v1/token_classify, /v1/zero_shot, /tokenize, /decode
                    a route that the model's task ({task}) does not fit answers with 424
GET  /health        200 when it can be used (also /ping, /ready, /health/ready), else 503
GET  /health/live   200 while the process lives
GET  /info          model, limits, settings
GET  /metrics       for Prometheus
GET  /openapi.json  what every route reads
"""


async def root(request: Request) -> Response:
    """A page for people."""
    service: Service = request.app.state.service
    return PlainTextResponse(
        _PAGE.format(version=__version__, model=service.name, task=service.checkpoint.task.value)
    )
