"""POST /rerank of text-embeddings-inference, /v1/rerank and /v2/rerank of Cohere and Jina."""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec
import numpy as np

from packhorse.errors import EmptyRequestError, ValidationError
from packhorse.postprocess import sigmoid
from packhorse.request import Float32Array
from packhorse.server.model_route import Asking, ModelRoute, characters_of, encode_json
from packhorse.server.routes.openai import OpenAIRoute
from packhorse.server.schemas import Usage
from packhorse.tasks import Task


class RerankRequest(msgspec.Struct):
    """``POST /rerank``.

    raw_scores   the model's logits; else what its settings put after them, mostly the sigmoid
    return_text  whether the texts are in the answer
    """

    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"
    raw_scores: bool = False
    return_text: bool = False


class Document(msgspec.Struct):
    """A document with its text, as Cohere's first version may send it."""

    text: str


class DocumentsRequest(msgspec.Struct):
    """``POST /v1/rerank`` and ``/v2/rerank``.

    top_n             how many documents of the answer; null or 0 for all
    return_documents  whether their texts are in the answer
    model             accepted and not read: there is one model
    """

    query: str
    documents: list[str | Document]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False


class Rank(msgspec.Struct, omit_defaults=True):
    """Where a text stood in the request, its score, and itself if that was asked for."""

    index: int
    score: float
    text: str | None = None


class RankedDocument(msgspec.Struct, omit_defaults=True):
    """The same in Cohere's and Jina's words."""

    index: int
    relevance_score: float
    document: Document | None = None


class ApiVersion(msgspec.Struct):
    """Cohere's."""

    version: str


class BilledUnits(msgspec.Struct):
    """Cohere's: a request is one."""

    search_units: int


class TokenCounts(msgspec.Struct):
    """Cohere's."""

    input_tokens: int
    output_tokens: int


class RerankMeta(msgspec.Struct):
    """Cohere's usage."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: TokenCounts


class RankedDocuments(msgspec.Struct):
    """The answer of ``/v1/rerank`` and ``/v2/rerank``."""

    id: str
    object: str
    model: str
    results: list[RankedDocument]
    usage: Usage
    meta: RerankMeta


class RerankingRoute(ModelRoute):
    """A route for models that score pairs."""

    tasks = (Task.RERANK,)

    async def scores(
        self,
        asking: Asking,
        query: str,
        texts: list[str],
        *,
        raw: bool = False,
        truncate: bool | None = None,
        direction: str = "right",
    ) -> Float32Array:
        """A score for each text, in float32."""
        if not texts:
            raise EmptyRequestError("there is nothing to rank: send at least one text")
        pairs = [(query, text) for text in texts]
        return await self.pair_scores(
            asking, pairs, raw=raw, truncate=truncate, direction=direction
        )

    async def pair_scores(
        self,
        asking: Asking,
        pairs: list[tuple[str, str]],
        *,
        raw: bool = False,
        truncate: bool | None = None,
        direction: str = "right",
    ) -> Float32Array:
        """A score for each pair, in float32."""
        answer = await self.compute(
            asking, pairs, characters_of(pairs), truncate=truncate, direction=direction
        )
        logits = answer.values[:, 0]
        plain = raw or self.checkpoint.rerank_activation == "identity"
        return logits if plain else sigmoid(logits)


class Rerank(RerankingRoute):
    """``POST /rerank``."""

    name = "rerank"
    answers = list[Rank]
    _decoder = msgspec.json.Decoder(RerankRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The texts' places and scores, best first."""
        request = self.read(self._decoder, asking)
        scores = await self.scores(
            asking,
            request.query,
            request.texts,
            raw=request.raw_scores,
            truncate=request.truncate,
            direction=request.truncation_direction,
        )
        ranked = []
        for index in np.argsort(-scores, kind="stable").tolist():
            text = request.texts[index] if request.return_text else None
            ranked.append(Rank(index, float(scores[index]), text))
        return encode_json(ranked)


class RerankDocuments(OpenAIRoute, RerankingRoute):
    """``POST /v1/rerank`` and ``/v2/rerank``."""

    name = "rerank_documents"
    answers = RankedDocuments
    _decoder = msgspec.json.Decoder(DocumentsRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The documents' places and scores, best first, with Cohere's and Jina's usage."""
        request = self.read(self._decoder, asking)
        if request.top_n is not None and request.top_n < 0:
            raise ValidationError(f"`top_n` is {request.top_n}; send a number of at least 1")
        texts = [one if isinstance(one, str) else one.text for one in request.documents]
        scores = await self.scores(asking, request.query, texts)
        assert asking.pending is not None
        tokens = asking.pending.tokens
        results: list[RankedDocument] = []
        for index in np.argsort(-scores, kind="stable").tolist()[: request.top_n or None]:
            document = Document(texts[index]) if request.return_documents else None
            results.append(RankedDocument(index, float(scores[index]), document))
        return encode_json(
            RankedDocuments(
                id=f"rerank-{uuid.uuid4().hex}",
                object="rerank",
                model=self.service.name,
                results=results,
                usage=Usage.of(tokens),
                meta=RerankMeta(ApiVersion("2"), BilledUnits(1), TokenCounts(tokens, 0)),
            )
        )
