"""POST /v1/embeddings and GET /v1/models, in the shapes of OpenAI, errors included."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
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
from packhorse.request import Float32Array
from packhorse.server.matrices import rows_as_json
from packhorse.server.model_route import Asking, Body, ModelRoute, encode_json
from packhorse.server.pooling_parameters import PoolingParameters
from packhorse.server.routes.embed import EmbeddingRoute
from packhorse.server.schemas import TextsOrIds, Usage, texts_or_ids
from packhorse.server.service import Service
from packhorse.vectors import checked_dimensions, finished

STARTED = int(time.time())


class EmbeddingsRequest(PoolingParameters, kw_only=True):
    """``POST /v1/embeddings``. What is OpenAI's, and of what other servers read besides, all that
    changes a vector; see ``PoolingParameters``, too.

    input            a text, a list of texts, a list of token ids, or a list of such lists
    encoding_format  float, or base64 of little-endian float32
    embed_dtype, endianness  vLLM's: of base64, and only what that is
    dimensions       the first so many numbers of each; null for all
    prompt_name      which of the model's prompts goes before each text
    normalize        whether vectors have length 1; false leaves them as the model's folder makes
                     them, as does vLLM's use_activation
    stride           read long texts in windows that share so many tokens; null: cut them
    """

    input: TextsOrIds
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    stride: int | None = None


class EmbeddingObject(msgspec.Struct):
    """A vector as numbers, or as base64 of little-endian float32."""

    object: str
    embedding: list[float] | str
    index: int


class EmbeddingList(msgspec.Struct):
    """The answer of ``/v1/embeddings``."""

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: Usage


class ModelObject(msgspec.Struct):
    """A model that is loaded."""

    id: str
    object: str
    created: int
    owned_by: str
    task: str
    max_model_len: int


class ModelList(msgspec.Struct):
    """The answer of ``/v1/models``."""

    object: str
    data: list[ModelObject]


class OpenAIErrorObject(msgspec.Struct):
    """What is wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorBody(msgspec.Struct):
    """An answer of the routes in OpenAI's shapes that is not a success."""

    error: OpenAIErrorObject


class OpenAIRoute(ModelRoute):
    """A route whose errors have OpenAI's shape."""

    def read(self, decoder: msgspec.json.Decoder[Body], asking: Asking) -> Body:
        """The body as its class; the priority that it may name holds from here on."""
        request = super().read(decoder, asking)
        if isinstance(request, PoolingParameters):
            asking.terms = request.terms(asking.terms)
        return request

    def error(self, error: ServedError) -> tuple[int, bytes]:
        """What is wrong with a request is 400 there."""
        status = error.status
        if isinstance(error, RequestError) and status == 422:
            status = 400
        return status, encode_json(OpenAIErrorBody(openai_error(error, status)))


class Embeddings(OpenAIRoute, EmbeddingRoute):
    """``POST /v1/embeddings``."""

    name = "openai_embeddings"
    answers = EmbeddingList
    _decoder = msgspec.json.Decoder(EmbeddingsRequest)

    async def answer(self, asking: Asking) -> bytes:
        """A vector for each input, and how many tokens the model saw."""
        request = self.read(self._decoder, asking)
        if request.dimensions is not None:
            checked_dimensions(request.dimensions, self.checkpoint.width)
        inputs = texts_or_ids(request.input, "input")
        answer = await self.vectors(
            asking,
            inputs,
            prompt_name=request.prompt_name,
            truncate=request.cuts,
            direction=request.direction,
            stride=request.stride,
            most=request.most_tokens(self.service.tokenizer),
        )
        raw = request.normalize is False or request.is_raw
        vectors = finished(
            answer.values,
            normalize=not raw or self.sentence.normalizes,
            dimensions=request.dimensions,
        )
        shown = await as_json(list(vectors), request.encoding_format)
        assert asking.pending is not None
        data = [EmbeddingObject("embedding", vector, i) for i, vector in enumerate(shown)]
        usage = Usage.of(asking.pending.tokens)
        return encode_json(EmbeddingList("list", data, self.service.name, usage))


async def as_json(arrays: Sequence[Float32Array], encoding: str | None) -> list[Any]:
    """What stands for each array in the answer: its numbers, or base64 of their bytes."""
    if encoding == "base64":
        return [base64.b64encode(array.astype("<f4").tobytes()).decode() for array in arrays]
    return list(await rows_as_json(arrays))


async def models(request: Request) -> Response:
    """``GET /v1/models``: the one that is loaded."""
    service: Service = request.app.state.service
    model = ModelObject(
        id=service.name,
        object="model",
        created=STARTED,
        owned_by="packhorse",
        task=service.checkpoint.task.value,
        max_model_len=service.tokenizer.max_length,
    )
    return Response(encode_json(ModelList("list", [model])), media_type="application/json")


def openai_error(error: ServedError, status: int) -> OpenAIErrorObject:
    """OpenAI's error object."""
    kind = "server_error"
    if isinstance(error, UnauthorizedError):
        kind = "authentication_error"
    elif isinstance(error, NotNowError):
        kind = "rate_limit_error" if status == 429 else "server_error"
    elif isinstance(error, RequestError):
        kind = "invalid_request_error"
    code = "unsupported_task" if isinstance(error, TaskError) else None
    return OpenAIErrorObject(str(error), kind, None, code)
