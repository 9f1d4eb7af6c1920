"""POST /classify and /score, in the shapes of vLLM."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from packhorse.errors import EmptyRequestError, ValidationError
from packhorse.postprocess import scores_of
from packhorse.request import Answer, Float32Array, Sequences
from packhorse.server.model_route import DIRECTIONS, Asking, encode_json
from packhorse.server.pooling_parameters import PoolingParameters
from packhorse.server.routes.openai import OpenAIRoute
from packhorse.server.routes.rerank import PairsRoute
from packhorse.server.schemas import Ids, TextsOrIds, texts_or_ids
from packhorse.tasks import Task


class ClassifyRequest(PoolingParameters, kw_only=True):
    """``POST /classify``; see ``PoolingParameters``, too.

    input  a text, a list of texts, a list of token ids, or a list of such lists
    """

    input: TextsOrIds


class ScoreRequest(PoolingParameters, kw_only=True):
    """``POST /score``: one text with each of several, or texts pair by pair; see
    ``PoolingParameters``, too.

    text_1, text_2   needed; vLLM's other names for them are read too
    """

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None


class Probabilities(msgspec.Struct):
    """The best label of an input, and a score for every label in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class PairScore(msgspec.Struct):
    """The score of a pair."""

    index: int
    object: str
    score: float


class VllmUsage(msgspec.Struct):
    """vLLM's: an encoder writes no tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class ProbabilitiesList(msgspec.Struct):
    """The answer of ``/classify``."""

    id: str
    object: str
    created: int
    model: str
    data: list[Probabilities]
    usage: VllmUsage


class PairScoreList(msgspec.Struct):
    """The answer of ``/score``."""

    id: str
    object: str
    created: int
    model: str
    data: list[PairScore]
    usage: VllmUsage


class VllmRoute(OpenAIRoute):
    """A route in vLLM's shapes."""

    async def computed(
        self, asking: Asking, inputs: list[str] | list[Ids], request: PoolingParameters
    ) -> Answer:
        """What the model makes of texts or of token ids, read as the request says."""
        return await self.compute(
            asking,
            inputs,
            size_of(inputs),
            truncate=request.cuts,
            direction=request.direction,
            encode=self.encoding(inputs, request),
        )

    async def scores(
        self, asking: Asking, inputs: list[str] | list[Ids], request: PoolingParameters
    ) -> Float32Array:
        """A classifier's scores of texts or of token ids, or its logits, float32 (n, labels)."""
        answer = await self.computed(asking, inputs, request)
        return (
            answer.values
            if request.is_raw
            else scores_of(answer.values, self.checkpoint.problem_type)
        )

    def encoding(
        self, inputs: list[str] | list[Ids], request: PoolingParameters
    ) -> Callable[[], Sequences] | None:
        """How they become sequences; None for the tokenizer's own way with texts."""
        tokenizer, direction = self.service.tokenizer, request.direction
        if isinstance(inputs[0], str):
            return request.encoding(tokenizer, inputs, self.auto_truncate)
        return partial(
            tokenizer.from_ids,
            inputs,
            truncate=self.auto_truncate if request.cuts is None else request.cuts,
            direction=None if direction is None else DIRECTIONS[direction],
            most=request.most_tokens(tokenizer),
        )


class Classify(VllmRoute):
    """``POST /classify``."""

    name = "classify"
    answers = ProbabilitiesList
    tasks = (Task.CLASSIFY, Task.RERANK)
    _decoder = msgspec.json.Decoder(ClassifyRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each input the best label, and a score for every label in the model's order."""
        request = self.read(self._decoder, asking)
        inputs = texts_or_ids(request.input, "input")
        scores = await self.scores(asking, inputs, request)
        labels = self.checkpoint.labels
        best = scores.argmax(axis=1).tolist()
        data = [
            Probabilities(i, labels[one], row, len(labels))
            for i, (one, row) in enumerate(zip(best, scores.tolist(), strict=True))
        ]
        return encode_json(
            ProbabilitiesList(**frame(self.service.name, asking, request, "classify"), data=data)
        )


class Score(OpenAIRoute, PairsRoute):
    """``POST /score``."""

    name = "score"
    answers = PairScoreList
    _decoder = msgspec.json.Decoder(ScoreRequest)

    async def answer(self, asking: Asking) -> bytes:
        """A score for each pair."""
        request = self.read(self._decoder, asking)
        first = _texts("text_1", request.text_1, request.queries, request.data_1)
        second = _texts("text_2", request.text_2, request.documents, request.items, request.data_2)
        if not first or not second:
            raise EmptyRequestError("`text_1` and `text_2` need at least one text each")
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            raise ValidationError(
                f"`text_1` has {len(first)} texts and `text_2` {len(second)}: send one, or as many"
            )
        pairs = list(zip(first, second, strict=True))
        scores = await self.pair_scores(asking, pairs, raw=request.is_raw, reading=request)
        data = [PairScore(i, "score", score) for i, score in enumerate(scores.tolist())]
        return encode_json(
            PairScoreList(**frame(self.service.name, asking, request, "score"), data=data)
        )


def _texts(name: str, *given: str | list[str] | None) -> list[str]:
    """The texts under the first of the names that is used. Raises ValidationError for none."""
    for texts in given:
        if texts is not None:
            return [texts] if isinstance(texts, str) else texts
    raise ValidationError(f"`{name}` is missing: send a text or a list of texts")


def frame(model: str, asking: Asking, request: PoolingParameters, kind: str) -> dict[str, Any]:
    """What stands around vLLM's lists."""
    assert asking.pending is not None
    tokens = asking.pending.tokens
    return {
        "id": f"{kind}-{request.request_id or uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "usage": VllmUsage(tokens, tokens),
    }


def size_of(inputs: list[str] | list[Ids]) -> int:
    """Characters of texts; of token ids how many there are."""
    return sum(map(len, inputs))
