"""POST /v1/token_classify: entities with their places in the texts."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from packhorse.entities import AGGREGATIONS, Aggregation, Entity, Labels, entities_in
from packhorse.errors import ValidationError
from packhorse.postprocess import softmax
from packhorse.request import Sequences
from packhorse.server.model_route import Asking, ModelRoute, characters_of, encode_json
from packhorse.server.schemas import Usage, texts_or_ids
from packhorse.server.service import Service
from packhorse.tasks import Task
from packhorse.tokenizing.names import vocabulary_of
from packhorse.tokenizing.offsets import Spans

AT_ONCE = 2000
"""Tokens whose entities are found in the event loop: some 10 ms; of more in a thread."""


class TokenClassifyRequest(msgspec.Struct):
    """``POST /v1/token_classify``.

    inputs                a text or a list of texts
    aggregation_strategy  none, simple, first, average or max; null for simple
    ignore_labels         labels that are left out; null for O
    stride                read long texts in windows that share so many tokens; null: cut them
    """

    inputs: str | list[str]
    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None
    truncate: bool | None = None
    model: str | None = None


class TokenClassifyAnswer(msgspec.Struct):
    """For each text its entities in order; ``truncated`` counts the texts that were cut."""

    object: str
    model: str
    data: list[list[Entity]]
    truncated: int
    usage: Usage


class TokenClassify(ModelRoute):
    """The route."""

    name = "token_classify"
    tasks = (Task.TOKEN_CLASSIFY,)
    answers = TokenClassifyAnswer
    _decoder = msgspec.json.Decoder(TokenClassifyRequest)

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._labels = Labels.of(service.checkpoint.labels)
        self._vocabulary = vocabulary_of(service.tokenizer)

    async def answer(self, asking: Asking) -> bytes:
        """For each text its entities in order; ``truncated`` says how many were cut."""
        request = self.read(self._decoder, asking)
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        found = await self.entities(asking, texts, request)
        assert asking.pending is not None
        return encode_json(
            TokenClassifyAnswer(
                object="list",
                model=self.service.name,
                data=found,
                truncated=asking.pending.truncated,
                usage=Usage.of(asking.pending.tokens),
            )
        )

    async def entities(
        self, asking: Asking, texts: list[str], request: TokenClassifyRequest
    ) -> list[list[Entity]]:
        """For each text its entities in order. Raises ValidationError."""
        aggregation = request.aggregation_strategy or "simple"
        assert aggregation in AGGREGATIONS
        if request.stride is not None and aggregation == "none":
            raise ValidationError("`stride` needs an aggregation_strategy other than none")
        truncate = self.auto_truncate if request.truncate is None else request.truncate
        read: list[Spans] = []

        def encode() -> Sequences:
            read.append(
                self.service.tokenizer.encode_with_offsets(
                    texts, truncate=truncate, stride=request.stride
                )
            )
            self.check_room(len(read[0].sequences))  # windows of long texts are several
            return read[0].sequences

        answer = await self.compute(
            asking,
            texts,
            characters_of(texts),
            encode=encode,
            input_of=lambda: read[0].text_of.tolist(),
        )
        find = partial(
            entities_in,
            read[0],
            texts,
            softmax(answer.values),
            self._labels,
            self._vocabulary,
            aggregation,
            ("O",) if request.ignore_labels is None else request.ignore_labels,
        )
        if read[0].sequences.num_tokens <= AT_ONCE:
            return find()
        return await asyncio.to_thread(find)
