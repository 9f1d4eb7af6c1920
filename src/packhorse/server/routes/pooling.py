"""POST /pooling, in the shape of vLLM: what the model gives for a text, or for its tokens."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from packhorse.errors import ValidationError
from packhorse.postprocess import softmax
from packhorse.request import Answer, Float32Array
from packhorse.server.model_route import Asking, encode_json
from packhorse.server.pooling_parameters import PoolingParameters
from packhorse.server.routes.embed import EmbeddingRoute
from packhorse.server.routes.openai import as_json
from packhorse.server.routes.vllm import VllmRoute, VllmUsage, frame
from packhorse.server.schemas import Ids, TextsOrIds, texts_or_ids
from packhorse.tasks import Task
from packhorse.vectors import checked_dimensions, finished, normalized

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]

TASKS: dict[Task, tuple[PoolingTask, ...]] = {
    Task.EMBED: ("embed", "token_embed"),
    Task.CLASSIFY: ("classify",),
    Task.RERANK: ("classify",),
    Task.TOKEN_CLASSIFY: ("token_classify",),
}
"""What a loaded model can be asked for; the first of them where a request says nothing."""


class PoolingRequest(PoolingParameters, kw_only=True):
    """``POST /pooling``; see ``PoolingParameters``, too.

    input            a text, a list of texts, a list of token ids, or a list of such lists
    task             embed, token_embed, classify or token_classify; null for the model's own
    dimensions       of embed: the first so many numbers of each; null for all
    encoding_format  float, or base64 of little-endian float32, of a text's tokens in order
    embed_dtype, endianness  of base64, and only what that is
    """

    input: TextsOrIds
    task: PoolingTask | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None


class Pooled(msgspec.Struct):
    """Numbers of a text, a list of such for its tokens, or base64 of all of them in order."""

    index: int
    object: str
    data: list[float | list[float]] | str


class PooledList(msgspec.Struct):
    """The answer of ``/pooling``."""

    id: str
    object: str
    created: int
    model: str
    data: list[Pooled]
    usage: VllmUsage


class Pooling(VllmRoute, EmbeddingRoute):
    """``POST /pooling``."""

    name = "pooling"
    answers = PooledList
    tasks = tuple(TASKS)
    _decoder = msgspec.json.Decoder(PoolingRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each input a vector or scores, or such for each of its tokens."""
        request = self.read(self._decoder, asking)
        task = self._task(request)
        inputs = texts_or_ids(request.input, "input")
        if task == "classify":
            arrays = list(await self.scores(asking, inputs, request))
        elif task == "token_classify":
            arrays = await self._scores_of_tokens(asking, inputs, request)
        else:
            arrays = await self._embedded(asking, inputs, request, task == "token_embed")
        shown = await as_json(arrays, request.encoding_format)
        data = [Pooled(i, "pooling", one) for i, one in enumerate(shown)]
        around = frame(self.service.name, asking, request, "pooling")
        return encode_json(PooledList(**around, data=data))

    def _task(self, request: PoolingRequest) -> PoolingTask:
        """Raises ValidationError for one that the loaded model does not do, and for dimensions
        where there are none."""
        known = TASKS[self.checkpoint.task]
        task = request.task or known[0]
        if task not in known:
            raise ValidationError(
                f"the loaded model does not do the task {task}: send {' or '.join(known)}"
            )
        if request.dimensions is not None:
            if task != "embed":
                raise ValidationError("`dimensions` are for the task embed")
            checked_dimensions(request.dimensions, self.checkpoint.width)
        return task

    async def _embedded(
        self,
        asking: Asking,
        inputs: list[str] | list[Ids],
        request: PoolingRequest,
        of_tokens: bool,
    ) -> list[Float32Array]:
        """A vector of each, float32 (width,), or of each of its tokens, float32 (tokens, width)."""
        answer = await self.vectors(
            asking,
            inputs,
            truncate=request.cuts,
            direction=request.direction,
            token_level=of_tokens,
            most=request.most_tokens(self.service.tokenizer),
        )
        if of_tokens:
            return _by_text(answer, answer.values if request.is_raw else normalized(answer.values))
        normalize = not request.is_raw or self.sentence.normalizes
        return list(finished(answer.values, normalize=normalize, dimensions=request.dimensions))

    async def _scores_of_tokens(
        self, asking: Asking, inputs: list[str] | list[Ids], request: PoolingRequest
    ) -> list[Float32Array]:
        """Of each of a text's tokens a score for every label, float32 (tokens, labels)."""
        answer = await self.computed(asking, inputs, request)
        return _by_text(answer, answer.values if request.is_raw else softmax(answer.values))


def _by_text(answer: Answer, rows: Float32Array) -> list[Float32Array]:
    """The rows of each text's tokens, float32 (tokens, width) each."""
    assert answer.row_counts is not None
    return np.split(rows, np.cumsum(answer.row_counts)[:-1])
