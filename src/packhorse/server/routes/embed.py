"""POST /embed, /embed_all, /embed_sparse and /similarity, in text-embeddings-inference's shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import msgspec
import numpy as np

from packhorse.errors import ValidationError
from packhorse.request import Answer, Sequences
from packhorse.sentence import SentenceModules
from packhorse.server.matrices import rows_as_json, sparse_as_json
from packhorse.server.model_route import (
    DIRECTIONS,
    Asking,
    ModelRoute,
    at_token_level,
    characters_of,
    encode_json,
)
from packhorse.server.reading import Truncation
from packhorse.server.schemas import Ids, TextsOrIds, texts_or_ids
from packhorse.tasks import Task
from packhorse.tokenizing.prompts import pooled_after, tokens_left_out
from packhorse.tokenizing.windows import Windows
from packhorse.vectors import checked_dimensions, cosine, finished, sparse_vectors


class EmbedRequest(msgspec.Struct):
    """``POST /embed`` and ``/embed_all``.

    inputs       a text, a list of texts, a list of token ids, or a list of such lists
    truncate     whether what is too long is cut; null for the server's --auto-truncate
    truncation_direction  which end is cut off; null for the tokenizer's own, mostly the right
    prompt_name  which of the model's prompts goes before each text
    normalize    whether vectors have length 1; false leaves them as the model's folder makes them
    dimensions   the first so many numbers of each; null for all
    stride       of ``/embed``: read long texts in windows that share so many tokens; null: cut them
    """

    inputs: TextsOrIds
    truncate: bool | None = None
    truncation_direction: Truncation | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    stride: int | None = None


class EmbedSparseRequest(msgspec.Struct):
    """``POST /embed_sparse``; as in ``EmbedRequest``."""

    inputs: TextsOrIds
    truncate: bool | None = None
    truncation_direction: Truncation | None = None
    prompt_name: str | None = None


class SparseValue(msgspec.Struct):
    """The weight of one token of the vocabulary."""

    index: int
    value: float


class SimilarityInputs(msgspec.Struct):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(msgspec.Struct):
    """As in ``EmbedRequest``."""

    truncate: bool | None = None
    truncation_direction: Truncation | None = None
    prompt_name: str | None = None


class SimilarityRequest(msgspec.Struct):
    """``POST /similarity``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class EmbeddingRoute(ModelRoute):
    """A route for models that embed."""

    tasks: ClassVar[tuple[Task, ...]] = (Task.EMBED,)

    @property
    def sentence(self) -> SentenceModules:
        """How the model makes vectors."""
        assert self.checkpoint.sentence is not None
        return self.checkpoint.sentence

    async def vectors(
        self,
        asking: Asking,
        inputs: list[str] | list[Ids],
        *,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        direction: str | None = None,
        token_level: bool = False,
        stride: int | None = None,
        most: int | None = None,
    ) -> Answer:
        """What the model gives for texts, with a prompt before them, or for token ids.

        With a ``stride`` long texts are read in windows, see ``Windows``; ``most`` is how many
        tokens are read, None for as many as the model can. Raises ValidationError for token ids
        with a stride, and for both of these.
        """
        tokenizer = self.service.tokenizer
        cut = self.auto_truncate if truncate is None else truncate
        encode: Callable[[], Sequences] | None = None
        side = None if direction is None else DIRECTIONS[direction]
        prompt, left_out, windows = "", 0, None
        if not inputs or isinstance(inputs[0], str):
            prompt = self.sentence.prompt_named(prompt_name)
            left_out = 0 if token_level else tokens_left_out(tokenizer, self.sentence, prompt)
        if stride is not None:
            if most is not None:
                raise ValidationError("`stride` is for windows of the model's own length")
            windows = Windows(tokenizer, stride, left_out)
        if inputs and not isinstance(inputs[0], str):
            if windows is not None:
                raise ValidationError("`stride` is for texts: token ids are not read in windows")
            encode = partial(tokenizer.from_ids, inputs, truncate=cut, direction=side, most=most)
            characters = sum(map(len, inputs))
        else:
            if prompt or self.sentence.lowercase:
                inputs = [self.sentence.text_with_prompt(str(text), prompt) for text in inputs]
            characters = characters_of(inputs)  # type: ignore[arg-type]
            if token_level or left_out or most is not None:
                encode = partial(
                    tokenizer.encode,
                    inputs,  # type: ignore[arg-type]
                    truncate=cut,
                    direction=side,
                    most=most,
                )
                if left_out:
                    own = tokenizer.truncation_side
                    encode = partial(_pooled_after, encode, left_out, side or own)
        if windows is not None:
            encode = partial(self.in_windows, windows, inputs)  # type: ignore[arg-type]
        if token_level and encode is not None:
            encode = partial(_marked, encode)
        answer = await self.compute(
            asking,
            inputs,
            characters,
            truncate=truncate,
            direction=direction,
            encode=encode,
            input_of=None if windows is None else lambda: windows.text_of,
        )
        return answer if windows is None else windows.answer(answer)


class Embed(EmbeddingRoute):
    """``POST /embed``."""

    name = "embed"
    answers = list[list[float]]
    _decoder = msgspec.json.Decoder(EmbedRequest)

    async def answer(self, asking: Asking) -> bytes:
        """A vector for each input."""
        request = self.read(self._decoder, asking)
        if request.dimensions is not None:
            checked_dimensions(request.dimensions, self.checkpoint.width)
        answer = await self.vectors(
            asking,
            texts_or_ids(request.inputs, "inputs"),
            prompt_name=request.prompt_name,
            truncate=request.truncate,
            direction=request.truncation_direction,
            stride=request.stride,
        )
        vectors = finished(
            answer.values,
            normalize=request.normalize is not False or self.sentence.normalizes,
            dimensions=request.dimensions,
        )
        return encode_json(await rows_as_json(list(vectors)))


class EmbedAll(EmbeddingRoute):
    """``POST /embed_all``."""

    name = "embed_all"
    answers = list[list[list[float]]]
    _decoder = msgspec.json.Decoder(EmbedRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each input a vector for every token, special tokens included."""
        request = self.read(self._decoder, asking)
        if request.stride is not None:
            raise ValidationError("`stride` is for /embed: its windows share tokens")
        answer = await self.vectors(
            asking,
            texts_or_ids(request.inputs, "inputs"),
            prompt_name=request.prompt_name,
            truncate=request.truncate,
            direction=request.truncation_direction,
            token_level=True,
        )
        assert answer.row_counts is not None
        rows = np.split(answer.values, np.cumsum(answer.row_counts)[:-1])
        return encode_json(await rows_as_json(rows))


class EmbedSparse(EmbeddingRoute):
    """``POST /embed_sparse``."""

    name = "embed_sparse"
    answers = list[list[SparseValue]]
    tasks = (Task.EMBED_SPARSE,)
    _decoder = msgspec.json.Decoder(EmbedSparseRequest)

    async def answer(self, asking: Asking) -> bytes:
        """For each input the weights that are not 0, by token id, in order of the ids."""
        request = self.read(self._decoder, asking)
        answer = await self.vectors(
            asking,
            texts_or_ids(request.inputs, "inputs"),
            prompt_name=request.prompt_name,
            truncate=request.truncate,
            direction=request.truncation_direction,
        )
        vectors = sparse_vectors(answer, self.sentence.max_active_dims)
        return encode_json(await sparse_as_json(vectors))


class Similarity(EmbeddingRoute):
    """``POST /similarity``."""

    name = "similarity"
    answers = list[float]
    _decoder = msgspec.json.Decoder(SimilarityRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The cosine of each sentence with the first."""
        request = self.read(self._decoder, asking)
        options = request.parameters or SimilarityParameters()
        sentences = texts_or_ids(request.inputs.sentences, "inputs.sentences")
        answer = await self.vectors(
            asking,
            [request.inputs.source_sentence, *sentences],
            prompt_name=options.prompt_name,
            truncate=options.truncate,
            direction=options.truncation_direction,
        )
        return encode_json(cosine(answer.values[:1], answer.values[1:])[0].tolist())


def _pooled_after(encode: Callable[[], Sequences], tokens: int, direction: str) -> Sequences:
    return pooled_after(encode(), tokens, direction)


def _marked(encode: Callable[[], Sequences]) -> Sequences:
    return at_token_level(encode())
