"""POST /v1/zero_shot: scores for labels that the model has never seen."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import msgspec
import numpy as np

from packhorse.server.model_route import Asking, ModelRoute, characters_of, encode_json
from packhorse.server.schemas import Score, Usage, texts_or_ids
from packhorse.tasks import Task
from packhorse.zero_shot import TEMPLATE, entailment, hypotheses, label_scores


class ZeroShotRequest(msgspec.Struct):
    """``POST /v1/zero_shot``.

    inputs               a text or a list of texts
    labels               what they may be about
    hypothesis_template  a sentence with {} where a label is put
    multi_label          each label by itself; else the scores of a text add up to 1
    """

    inputs: str | list[str]
    labels: list[str]
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    truncate: bool | None = None
    model: str | None = None


class ZeroShotAnswer(msgspec.Struct):
    """For each text the labels with their scores, best first; ``truncated`` counts what was cut."""

    object: str
    model: str
    data: list[list[Score]]
    truncated: int
    usage: Usage


class ZeroShot(ModelRoute):
    """The route."""

    name = "zero_shot"
    tasks: ClassVar[tuple[Task, ...]] = (Task.CLASSIFY,)
    answers = ZeroShotAnswer
    _decoder = msgspec.json.Decoder(ZeroShotRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each text the labels with their scores, best first."""
        request = self.read(self._decoder, asking)
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        data = await self.ranked(asking, texts, request)
        assert asking.pending is not None
        return encode_json(
            ZeroShotAnswer(
                object="list",
                model=self.service.name,
                data=data,
                truncated=asking.pending.truncated,
                usage=Usage.of(asking.pending.tokens),
            )
        )

    async def ranked(
        self, asking: Asking, texts: list[str], request: ZeroShotRequest
    ) -> list[list[Score]]:
        """For each text the request's labels with their scores, best first."""
        own = self.checkpoint.labels
        entailment(own)
        sentences = hypotheses(request.labels, request.hypothesis_template or TEMPLATE)
        self.check_room(len(texts) * len(sentences))  # before there are so many
        pairs = [(text, sentence) for text in texts for sentence in sentences]
        truncate = self.auto_truncate if request.truncate is None else request.truncate
        encode = partial(self.service.tokenizer.encode, pairs, truncate=truncate, first_only=True)
        answer = await self.compute(
            asking,
            pairs,
            characters_of(pairs),
            encode=encode,
            input_of=lambda: [number // len(sentences) for number in range(len(pairs))],
        )
        logits = answer.values.reshape(len(texts), len(sentences), len(own))
        scores = label_scores(logits, own, bool(request.multi_label))
        order = np.argsort(-scores, axis=1, kind="stable").tolist()
        return [
            [Score(float(row[i]), request.labels[i]) for i in best]
            for best, row in zip(order, scores, strict=True)
        ]
