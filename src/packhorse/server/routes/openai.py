"""POST /v1/embeddings and GET /v1/models, in the shapes of OpenAI, errors included."""

from __future__ import annotations

import base64
import time
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse.errors import (
    NotNowError,
    RequestError,
    ServedError,
    TaskError,
    UnauthorizedError,
)
from packhorse.server.matrices import rows_as_json
from packhorse.server.model_route import Asking, ModelRoute, encode_json
from packhorse.server.routes.embed import EmbeddingRoute
from packhorse.server.schemas import TextsOrIds, texts_or_ids
from packhorse.server.service import Service
from packhorse.vectors import checked_dimensions, finished

STARTED = int(time.time())


class EmbeddingsRequest(msgspec.Struct):
    """``POST /v1/embeddings``.

    input            a text, a list of texts, a list of token ids, or a list of such lists
    model, user      accepted and not read: there is one model
    encoding_format  float, or base64 of little-endian float32
    dimensions       the first so many numbers of each; null for all
    stride           read long texts in windows that share so many tokens; null: cut them
    """

    input: TextsOrIds
    model: str | None = None
    user: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    stride: int | None = None


class OpenAIRoute(ModelRoute):
    """A route whose errors have OpenAI's shape."""

    def error(self, error: ServedError) -> tuple[int, bytes]:
        """What is wrong with a request is 400 there."""
        status = error.status
        if isinstance(error, RequestError) and status == 422:
            status = 400
        return status, encode_json({"error": openai_error(error, status)})


class Embeddings(OpenAIRoute, EmbeddingRoute):
    """``POST /v1/embeddings``."""

    name = "openai_embeddings"
    _decoder = msgspec.json.Decoder(EmbeddingsRequest)

    async def answer(self, asking: Asking) -> bytes:
        """A vector of length 1 for each input, and how many tokens the model saw."""
        request = self.read(self._decoder, asking)
        if request.dimensions is not None:
            checked_dimensions(request.dimensions, self.checkpoint.width)
        inputs = texts_or_ids(request.input, "input")
        answer = await self.vectors(asking, inputs, stride=request.stride)
        vectors = finished(answer.values, normalize=True, dimensions=request.dimensions)
        shown: list[Any] = (
            [base64.b64encode(row).decode() for row in vectors.astype("<f4")]
            if request.encoding_format == "base64"
            else await rows_as_json(list(vectors))
        )
        assert asking.pending is not None
        return encode_json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "embedding": vector, "index": index}
                    for index, vector in enumerate(shown)
                ],
                "model": self.service.name,
                "usage": usage_of(asking.pending.tokens),
            }
        )


async def models(request: Request) -> Response:
    """``GET /v1/models``: the one that is loaded."""
    service: Service = request.app.state.service
    model = {
        "id": service.name,
        "object": "model",
        "created": STARTED,
        "owned_by": "packhorse",
        "task": service.checkpoint.task.value,
        "max_model_len": service.tokenizer.max_length,
    }
    return Response(encode_json({"object": "list", "data": [model]}), media_type="application/json")


def usage_of(tokens: int) -> dict[str, int]:
    """What the model saw: after truncation, with special tokens."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def openai_error(error: ServedError, status: int) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "server_error"
    if isinstance(error, UnauthorizedError):
        kind = "authentication_error"
    elif isinstance(error, NotNowError):
        kind = "rate_limit_error" if status == 429 else "server_error"
    elif isinstance(error, RequestError):
        kind = "invalid_request_error"
    code = "unsupported_task" if isinstance(error, TaskError) else None
    return {"message": str(error), "type": kind, "param": None, "code": code}
