"""POST / for the hub's clients: ``parameters`` in a body ask for the shapes of pipelines.

``huggingface_hub.InferenceClient`` sends these to an address of its user's, and so do the hub's
endpoints. A body without them is one of text-embeddings-inference's, as before.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from packhorse.entities import Aggregation, Entity
from packhorse.errors import EmptyRequestError, ValidationError
from packhorse.postprocess import scores_of, sigmoid, softmax
from packhorse.request import Float32Array, TextOrPair
from packhorse.server.model_route import Asking, characters_of, encode_json
from packhorse.server.routes.fill_mask import FillMask, FillMaskRequest
from packhorse.server.routes.token_classify import TokenClassify, TokenClassifyRequest
from packhorse.server.routes.zero_shot import ZeroShot, ZeroShotRequest
from packhorse.server.schemas import Score, TextPair, pair_in, texts_or_ids
from packhorse.tasks import Task
from packhorse.tokenizing.masks import Fill


class ClassifyParameters(msgspec.Struct):
    """Of the pipelines for text classification and, with ``candidate_labels``, for zero-shot.

    top_k              how many labels, best first; null for all
    function_to_apply  to the logits; null for what the checkpoint says
    candidate_labels   a list, or a text with commas between them
    """

    top_k: int | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    candidate_labels: str | list[str] | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None


class ClassifyPipelineRequest(msgspec.Struct):
    """``POST /`` of a classifier, in the pipelines' words: a text, a pair, or a list of such.

    A pair is {"text": "a", "text_pair": "b"} or, in a list, ["a", "b"].
    """

    inputs: str | TextPair | list[str | list[str] | TextPair]
    parameters: ClassifyParameters


class TokenClassifyParameters(msgspec.Struct):
    """Of the pipeline for token classification."""

    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None


class TokenClassifyPipelineRequest(msgspec.Struct):
    """``POST /`` of a token classifier, in the pipelines' words."""

    inputs: str | list[str]
    parameters: TokenClassifyParameters


class FillMaskParameters(msgspec.Struct):
    """Of the pipeline for masks.

    top_k    how many tokens for a mask; null for 5
    targets  only these tokens; null for all of the vocabulary
    """

    top_k: int | None = None
    targets: str | list[str] | None = None


class FillMaskPipelineRequest(msgspec.Struct):
    """``POST /`` of a model that fills masks, in the pipelines' words."""

    inputs: str | list[str]
    parameters: FillMaskParameters


class PipelineEntity(msgspec.Struct, omit_defaults=True):
    """``entity_group`` where tokens are aggregated, else ``entity`` and ``index``."""

    score: float
    word: str
    start: int
    end: int
    entity: str | None = None
    entity_group: str | None = None
    index: int | None = None


class ClassifyPipeline(ZeroShot):
    """The route of classifiers."""

    name = "invocations"
    tasks = (Task.CLASSIFY, Task.RERANK)
    answers = list[Score | list[Score]]
    _decoder = msgspec.json.Decoder(ClassifyPipelineRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each text its labels with scores, best first; of one text with labels of its own
        only these."""
        request = self.read(self._decoder, asking)
        given = request.parameters
        inputs = _inputs(request.inputs)
        if given.candidate_labels is not None:
            texts = [one for one in inputs if isinstance(one, str)]
            if len(texts) != len(inputs):
                raise ValidationError("`candidate_labels` are for texts, and there is a pair")
            rows = await self.ranked(
                asking,
                texts,
                ZeroShotRequest(
                    inputs=texts,
                    labels=_labels(given.candidate_labels),
                    hypothesis_template=given.hypothesis_template,
                    multi_label=given.multi_label,
                ),
            )
            return encode_json(rows[0] if isinstance(request.inputs, str) else rows)
        if given.top_k is not None and given.top_k < 1:
            raise ValidationError(f"`top_k` is {given.top_k}; send a number of at least 1")
        answer = await self.compute(asking, inputs, characters_of(inputs))
        scores = self._scores(answer.values, given.function_to_apply)
        labels = self.checkpoint.labels
        order = np.argsort(-scores, axis=1, kind="stable")[:, : given.top_k].tolist()
        return encode_json(
            [
                [Score(float(row[i]), labels[i]) for i in best]
                for best, row in zip(order, scores, strict=True)
            ]
        )

    def _scores(self, logits: Float32Array, function: str | None) -> Float32Array:
        if function is None:
            return scores_of(logits, self.checkpoint.problem_type)
        if function == "none":
            return logits
        return sigmoid(logits) if function == "sigmoid" else softmax(logits)


class TokenClassifyPipeline(TokenClassify):
    """The route of token classifiers."""

    name = "invocations"
    answers = list[PipelineEntity | list[PipelineEntity]]
    _decoder = msgspec.json.Decoder(TokenClassifyPipelineRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The entities of a text in order; of several texts a list of them each."""
        request = self.read(self._decoder, asking)
        given = request.parameters
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        strategy: Aggregation = given.aggregation_strategy or "simple"
        asked = TokenClassifyRequest(
            inputs=texts,
            aggregation_strategy=strategy,
            ignore_labels=given.ignore_labels,
            stride=given.stride,
        )
        found = await self.entities(asking, texts, asked)
        rows = [[_shown(one, strategy == "none") for one in row] for row in found]
        return encode_json(rows[0] if isinstance(request.inputs, str) else rows)


class FillMaskPipeline(FillMask):
    """The route of models that fill masks."""

    name = "invocations"
    answers = list[Fill | list[Fill | list[Fill]]]
    _decoder = msgspec.json.Decoder(FillMaskPipelineRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The likeliest tokens for the mask of a text; of several masks or texts a list of each."""
        request = self.read(self._decoder, asking)
        given = request.parameters
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        asked = FillMaskRequest(inputs=texts, top_k=given.top_k, targets=given.targets)
        found = await self.fills(asking, texts, asked)
        shown = [fills[0] if len(fills) == 1 else fills for fills in found]
        return encode_json(shown[0] if len(shown) == 1 else shown)


def _inputs(inputs: str | TextPair | list[str | list[str] | TextPair]) -> list[TextOrPair]:
    """Texts and pairs. Other than in ``/predict`` two texts in a list are two.

    Raises EmptyRequestError or ValidationError.
    """
    if isinstance(inputs, list) and inputs:
        return [pair_in(one, f"inputs[{i}]") for i, one in enumerate(inputs)]
    if isinstance(inputs, list):
        raise EmptyRequestError("`inputs` is an empty list")
    return [pair_in(inputs, "inputs")]


def _labels(given: str | list[str]) -> list[str]:
    """Labels in one text stand between commas."""
    if isinstance(given, list):
        return given
    return [label.strip() for label in given.split(",") if label.strip()]


def _shown(entity: Entity, is_token: bool) -> PipelineEntity:
    named: dict[str, Any] = (
        {"entity": entity.label, "index": entity.index}
        if is_token
        else {"entity_group": entity.label}
    )
    return PipelineEntity(entity.score, entity.word, entity.start, entity.end, **named)
