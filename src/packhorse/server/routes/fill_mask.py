"""POST /v1/fill_mask: the likeliest tokens in the place of each mask."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.server.model_route import (
    DIRECTIONS,
    Asking,
    ModelRoute,
    characters_of,
    encode_json,
)
from packhorse.server.reading import Truncation
from packhorse.server.schemas import Usage, texts_or_ids
from packhorse.server.service import Service
from packhorse.tasks import Task
from packhorse.tokenizing.masks import TOP_K, Fill, Fills, MaskedTexts, Masks

AT_ONCE = 1 << 17
"""Logits that are sorted in the event loop: a millisecond; more in a thread. Four masks of BERT."""

FEW_FILLS = 50
"""Fills that are decoded in the event loop."""

FILL_BYTES = 120
"""Of a fill as JSON, besides its text."""


class FillMaskRequest(msgspec.Struct):
    """``POST /v1/fill_mask``.

    inputs    a text or a list of texts, each with at least one mask token of the model's tokenizer
    top_k     how many tokens for a mask; null for 5
    targets   only these tokens; what is no token of the vocabulary counts as its first one
    truncate  whether what is too long is cut; null for the server's --auto-truncate
    truncation_direction  which end is cut off; null for the tokenizer's own, mostly the right
    """

    inputs: str | list[str]
    top_k: int | None = None
    targets: str | list[str] | None = None
    truncate: bool | None = None
    truncation_direction: Truncation | None = None
    model: str | None = None


class FillMaskAnswer(msgspec.Struct):
    """For each text and each of its masks the tokens, likeliest first.

    ``truncated`` counts the texts that were cut.
    """

    object: str
    model: str
    data: list[list[list[Fill]]]
    truncated: int
    usage: Usage


class FillMask(ModelRoute):
    """The route."""

    name = "fill_mask"
    tasks = (Task.FILL_MASK,)
    answers = FillMaskAnswer
    _decoder = msgspec.json.Decoder(FillMaskRequest)

    def __init__(self, service: Service) -> None:
        """Raises CheckpointError where the task is to fill masks and the tokenizer has none."""
        super().__init__(service)
        is_asked = service.checkpoint.task in self.tasks
        self._masks = Masks(service.tokenizer) if is_asked else None

    async def answer(self, asking: Asking) -> bytes:
        """For each text and each of its masks the likeliest tokens."""
        request = self.read(self._decoder, asking)
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        data = await self.fills(asking, texts, request)
        assert asking.pending is not None
        return encode_json(
            FillMaskAnswer(
                object="list",
                model=self.service.name,
                data=data,
                truncated=asking.pending.truncated,
                usage=Usage.of(asking.pending.tokens),
            )
        )

    async def fills(
        self, asking: Asking, texts: list[str], request: FillMaskRequest
    ) -> list[Fills]:
        """For each text and each of its masks the likeliest tokens. Raises ValidationError."""
        masks = self._masks
        assert masks is not None
        top_k = TOP_K if request.top_k is None else request.top_k
        if top_k < 1:
            raise ValidationError(f"`top_k` is {top_k}; send a number of at least 1")
        targets = None if request.targets is None else masks.target_ids(request.targets)
        most = min(top_k, self.checkpoint.width if targets is None else len(targets))
        truncate = self.auto_truncate if request.truncate is None else request.truncate
        side = request.truncation_direction
        direction = None if side is None else DIRECTIONS[side]
        read: list[MaskedTexts] = []

        def encode() -> Sequences:
            read.append(masks.encode(texts, truncate=truncate, direction=direction))
            self.check_room(len(read[0].sequences))  # a text has as many as it has masks
            self._check_size(texts, read[0], most)
            return read[0].sequences

        answer = await self.compute(
            asking,
            texts,
            characters_of(texts),
            encode=encode,
            input_of=lambda: read[0].text_of,
        )
        fill = partial(masks.filled, read[0], answer.values, top_k, targets)
        if answer.values.size <= AT_ONCE and most * len(answer.values) <= FEW_FILLS:
            return fill()
        return await asyncio.to_thread(fill)

    def _check_size(self, texts: list[str], masked: MaskedTexts, most: int) -> None:
        """Raise ValidationError for more text than is sent at once: each fill has its text."""
        size = sum(
            count * most * (len(text.encode(errors="replace")) + FILL_BYTES)
            for text, count in zip(texts, masked.counts.tolist(), strict=True)
        )
        if size > self.answer_limit:
            raise ValidationError(
                f"the answer has about {size} bytes; at most {self.answer_limit} are sent at once "
                "(--answer-limit): ask for fewer tokens with `top_k`, or send fewer texts"
            )
