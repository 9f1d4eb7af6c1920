"""POST /rerank of text-embeddings-inference, /v1/rerank and /v2/rerank of Cohere and Jina."""

from __future__ import annotations

import uuid
from typing import ClassVar, Literal

import msgspec
import numpy as np

from packhorse.errors import EmptyRequestError, ValidationError
from packhorse.postprocess import sigmoid
from packhorse.request import Float32Array
from packhorse.server.model_route import Asking, ModelRoute, characters_of, encode_json
from packhorse.server.pooling_parameters import PoolingParameters
from packhorse.server.reading import ReadingOptions
from packhorse.server.routes.embed import EmbeddingRoute
from packhorse.server.routes.openai import OpenAIRoute
from packhorse.server.schemas import Usage
from packhorse.server.service import Service
from packhorse.tasks import Task
from packhorse.vectors import cosine, paired_cosine


class Document(msgspec.Struct):
    """A document with its text, as Cohere's first version may send it."""

    text: str


class RerankRequest(msgspec.Struct):
    """``POST /rerank``.

    texts        needed, unless there are ``documents``: then all is as in ``/v1/rerank``
    raw_scores   the model's logits; else what its settings put after them, mostly the sigmoid
    return_text  whether the texts are in the answer
    """

    query: str
    texts: list[str] | None = None
    documents: list[str | Document] | None = None
    truncate: bool | None = None
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None


class DocumentsRequest(PoolingParameters, kw_only=True):
    """``POST /v1/rerank`` and ``/v2/rerank``; see ``PoolingParameters``, too.

    top_n             how many documents of the answer; null or 0 for all
    return_documents  whether their texts are in the answer
    raw_scores        Infinity's word for the model's logits
    max_tokens_per_doc  Cohere's: of a longer document only so many tokens are read
    rank_fields       Cohere's: which fields of documents are read; text is all that can be
    """

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    raw_scores: bool | None = None
    max_tokens_per_doc: int | None = None
    rank_fields: list[Literal["text"]] | None = None


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

    tasks: ClassVar[tuple[Task, ...]] = (Task.RERANK,)

    async def scores(
        self,
        asking: Asking,
        query: str,
        texts: list[str],
        *,
        raw: bool | None = False,
        reading: ReadingOptions,
        most_of_second: int | None = None,
    ) -> Float32Array:
        """A score for each text, in float32."""
        if not texts:
            raise EmptyRequestError("there is nothing to rank: send at least one text")
        pairs = [(query, text) for text in texts]
        return await self.pair_scores(
            asking, pairs, raw=raw, reading=reading, most_of_second=most_of_second
        )

    async def pair_scores(
        self,
        asking: Asking,
        pairs: list[tuple[str, str]],
        *,
        raw: bool | None = False,
        reading: ReadingOptions,
        most_of_second: int | None = None,
    ) -> Float32Array:
        """A score for each pair, in float32; of its second text so many tokens are read."""
        scores = self.checkpoint.cross_encoder
        pairs = scores.prompted(pairs)
        encode = reading.encoding(self.service.tokenizer, pairs, self.auto_truncate, most_of_second)
        answer = await self.compute(
            asking,
            pairs,
            characters_of(pairs),
            truncate=reading.cuts,
            direction=reading.direction,
            encode=encode,
        )
        logits = answer.values[:, 0]
        plain = raw or scores.activation == "identity"
        return logits if plain else sigmoid(logits)


class PairsRoute(RerankingRoute, EmbeddingRoute):
    """The same for models that embed, too: there a score is the cosine of two vectors."""

    tasks = (Task.RERANK, Task.EMBED)

    async def pair_scores(
        self,
        asking: Asking,
        pairs: list[tuple[str, str]],
        *,
        raw: bool | None = False,
        reading: ReadingOptions,
        most_of_second: int | None = None,
    ) -> Float32Array:
        """A score for each pair, in float32. A first text that all pairs have is embedded once.

        Raises ValidationError for ``most_of_second`` where texts are embedded.
        """
        if self.checkpoint.task is not Task.EMBED:
            return await super().pair_scores(
                asking, pairs, raw=raw, reading=reading, most_of_second=most_of_second
            )
        if most_of_second is not None:
            raise ValidationError(
                "`max_tokens_per_doc` is for models that score pairs; send truncate_prompt_tokens"
            )
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        first = first[:1] if len(set(first)) == 1 else first
        answer = await self.vectors(
            asking,
            first + second,
            truncate=reading.cuts,
            direction=reading.direction,
            most=reading.most_tokens(self.service.tokenizer),
        )
        left, right = answer.values[: len(first)], answer.values[len(first) :]
        return cosine(left, right)[0] if len(first) == 1 else paired_cosine(left, right)


class Rerank(RerankingRoute):
    """``POST /rerank``."""

    name = "rerank"
    answers = list[Rank] | RankedDocuments
    _decoder = msgspec.json.Decoder(RerankRequest)

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._documents = RerankDocuments(service)

    async def answer(self, asking: Asking) -> bytes:
        """The texts' places and scores, best first."""
        request = self.read(self._decoder, asking)
        texts = request.texts
        if texts is None and request.documents is not None:
            return await self._documents.answer(asking)
        if texts is None:
            raise ValidationError("`texts` is missing: send a list of texts")
        scores = await self.scores(
            asking,
            request.query,
            texts,
            raw=request.raw_scores,
            reading=ReadingOptions(
                truncate=request.truncate, truncation_direction=request.truncation_direction
            ),
        )
        ranked = []
        for index in np.argsort(-scores, kind="stable").tolist():
            text = texts[index] if request.return_text else None
            ranked.append(Rank(index, float(scores[index]), text))
        return encode_json(ranked)


class RerankDocuments(OpenAIRoute, PairsRoute):
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
        most = request.max_tokens_per_doc
        if most is not None and most < 1:
            raise ValidationError(f"`max_tokens_per_doc` is {most}; send a number of at least 1")
        raw = request.raw_scores or request.is_raw
        scores = await self.scores(
            asking, request.query, texts, raw=raw, reading=request, most_of_second=most
        )
        assert asking.pending is not None
        tokens = asking.pending.tokens
        results: list[RankedDocument] = []
        for index in np.argsort(-scores, kind="stable").tolist()[: request.top_n or None]:
            document = Document(texts[index]) if request.return_documents else None
            results.append(RankedDocument(index, float(scores[index]), document))
        return encode_json(
            RankedDocuments(
                id=f"rerank-{request.request_id or uuid.uuid4().hex}",
                object="rerank",
                model=self.service.name,
                results=results,
                usage=Usage.of(tokens),
                meta=RerankMeta(ApiVersion("2"), BilledUnits(1), TokenCounts(tokens, 0)),
            )
        )
