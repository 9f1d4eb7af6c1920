"""POST /classify and /score, in the shapes of vLLM."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any, Literal

import msgspec

from packhorse.errors import EmptyRequestError, ValidationError
from packhorse.postprocess import scores_of
from packhorse.server.model_route import DIRECTIONS, Asking, characters_of, encode_json
from packhorse.server.reading import ReadingOptions
from packhorse.server.routes.openai import OpenAIRoute
from packhorse.server.routes.rerank import RerankingRoute
from packhorse.server.schemas import TextsOrIds, texts_or_ids
from packhorse.tasks import Task


class ClassifyRequest(ReadingOptions, kw_only=True):
    """``POST /classify``; see ``ReadingOptions``, too.

    input           a text, a list of texts, a list of token ids, or a list of such lists
    use_activation  false for the model's logits
    add_special_tokens  they are always added to texts, and never to token ids
    """

    input: TextsOrIds
    model: str | None = None
    use_activation: bool | None = None
    add_special_tokens: Literal[True] | None = None


class ScoreRequest(ReadingOptions, kw_only=True):
    """``POST /score``: one text with each of several, or texts pair by pair; see
    ``ReadingOptions``, too.

    text_1, text_2   needed; vLLM's other names for them are read too
    use_activation   false for the model's logits
    """

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    model: str | None = None
    use_activation: bool | None = None
    add_special_tokens: Literal[True] | None = None


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


class Classify(OpenAIRoute):
    """``POST /classify``."""

    name = "classify"
    answers = ProbabilitiesList
    tasks = (Task.CLASSIFY, Task.RERANK)
    _decoder = msgspec.json.Decoder(ClassifyRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each input the best label, and a score for every label in the model's order."""
        request = self.read(self._decoder, asking)
        inputs = texts_or_ids(request.input, "input")
        tokenizer, direction = self.service.tokenizer, request.direction
        if isinstance(inputs[0], str):
            characters = characters_of(inputs)
            encode = request.encoding(tokenizer, inputs, self.auto_truncate)
        else:
            characters = sum(map(len, inputs))
            encode = partial(
                tokenizer.from_ids,
                inputs,
                truncate=self.auto_truncate if request.cuts is None else request.cuts,
                direction=None if direction is None else DIRECTIONS[direction],
                most=request.most_tokens(tokenizer),
            )
        answer = await self.compute(
            asking, inputs, characters, truncate=request.cuts, direction=direction, encode=encode
        )
        scores = answer.values
        if request.use_activation is not False:
            scores = scores_of(scores, self.checkpoint.problem_type)
        labels = self.checkpoint.labels
        best = scores.argmax(axis=1).tolist()
        data = [
            Probabilities(i, labels[one], row, len(labels))
            for i, (one, row) in enumerate(zip(best, scores.tolist(), strict=True))
        ]
        return encode_json(ProbabilitiesList(**_frame(self.service.name, asking), data=data))


class Score(OpenAIRoute, RerankingRoute):
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
        raw = request.use_activation is False
        scores = await self.pair_scores(asking, pairs, raw=raw, reading=request)
        data = [PairScore(i, "score", score) for i, score in enumerate(scores.tolist())]
        return encode_json(PairScoreList(**_frame(self.service.name, asking, "score"), data=data))


def _texts(name: str, *given: str | list[str] | None) -> list[str]:
    """The texts under the first of the names that is used. Raises ValidationError for none."""
    for texts in given:
        if texts is not None:
            return [texts] if isinstance(texts, str) else texts
    raise ValidationError(f"`{name}` is missing: send a text or a list of texts")


def _frame(model: str, asking: Asking, kind: str = "classify") -> dict[str, Any]:
    """What stands around vLLM's lists."""
    assert asking.pending is not None
    tokens = asking.pending.tokens
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "usage": VllmUsage(tokens, tokens),
    }
