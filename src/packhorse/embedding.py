"""What a model that embeds can be asked for: vectors, dense or sparse, and how alike texts are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packhorse.checkpoint import Checkpoint
from packhorse.request import Answer, Float32Array, Sequences
from packhorse.sentence import SentenceModules
from packhorse.tasks import Task
from packhorse.tokenizing.prompts import tokens_left_out
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.vectors import (
    OutputType,
    SparseVector,
    checked_dimensions,
    cosine,
    finished,
    paired_cosine,
    quantized,
    sparse_vectors,
)
from packhorse.verbs import Plan, checked_texts, encoder_of, reading, require

if TYPE_CHECKING:
    from packhorse.loaded import Loaded  # at run time that would import torch


def embed(
    loaded: Loaded,
    texts: Iterable[str],
    prompt_name: str | None,
    prompt: str | None,
    normalize: bool | None,
    dimensions: int | None,
    output_type: OutputType,
    truncate: bool,
    direction: Direction | None,
    stride: int | None,
) -> Plan[NDArray[Any]]:
    """A vector for each text."""
    sentence = sentence_of(loaded.checkpoint)
    put = _prompt(sentence, prompt_name, prompt)
    left_out = tokens_left_out(loaded.tokenizer, sentence, put)
    encode, per_text = reading(loaded, truncate, direction, stride, left_out)
    to_unit = sentence.normalizes if normalize is None else normalize
    if dimensions is not None:
        checked_dimensions(dimensions, sentence.width)

    def finish(answer: Answer) -> NDArray[Any]:
        vectors = finished(per_text(answer.values), normalize=to_unit, dimensions=dimensions)
        return quantized(vectors, output_type)

    width = sentence.width if dimensions is None else dimensions
    nothing = quantized(np.empty((0, width), np.float32), output_type)
    return Plan(loaded, _prompted(sentence, checked_texts(texts), put), encode, finish, nothing)


def embed_tokens(
    loaded: Loaded, texts: Iterable[str], prompt_name: str | None, truncate: bool
) -> Plan[list[Float32Array]]:
    """The last hidden state of every token, special tokens included, for each text."""
    sentence, encode = sentence_of(loaded.checkpoint), encoder_of(loaded, truncate, None)

    def at_token_level(piece: Sequence[Any]) -> Sequences:
        sequences = encode(piece)
        return replace(sequences, token_level=np.ones(len(sequences), np.bool_))

    def finish(answer: Answer) -> list[Float32Array]:
        assert answer.row_counts is not None
        return np.split(answer.values, np.cumsum(answer.row_counts)[:-1])

    inputs = _prompted(sentence, checked_texts(texts), _prompt(sentence, prompt_name, None))
    return Plan(loaded, inputs, at_token_level, finish, [])


def embed_sparse(
    loaded: Loaded,
    texts: Iterable[str],
    prompt_name: str | None,
    prompt: str | None,
    truncate: bool,
    direction: Direction | None,
) -> Plan[list[SparseVector]]:
    """The weights of the vocabulary's tokens that are not 0, for each text."""
    sentence = sentence_of(loaded.checkpoint, Task.EMBED_SPARSE)
    inputs = _prompted(sentence, checked_texts(texts), _prompt(sentence, prompt_name, prompt))
    finish = partial(sparse_vectors, most=sentence.max_active_dims)
    return Plan(loaded, inputs, encoder_of(loaded, truncate, direction), finish, [])


def similarity(
    loaded: Loaded, first: Iterable[str], second: Iterable[str], prompt_name: str | None
) -> Plan[Float32Array]:
    """The cosine of every text of ``first`` with every one of ``second``, float32 (n, m)."""
    one, other = checked_texts(first), checked_texts(second)

    def finish(answer: Answer) -> Float32Array:
        return cosine(answer.values[: len(one)], answer.values[len(one) :])

    nothing = np.empty((0, 0), np.float32)
    return _compared(loaded, [*one, *other], prompt_name, finish, nothing)


def pair_similarities(
    loaded: Loaded, pairs: Sequence[tuple[str, str]], prompt_name: str | None
) -> Plan[Float32Array]:
    """The cosine of the two texts of each pair, float32 (n,)."""

    def finish(answer: Answer) -> Float32Array:
        return paired_cosine(answer.values[0::2], answer.values[1::2])

    texts = [text for pair in pairs for text in pair]
    return _compared(loaded, texts, prompt_name, finish, np.empty(0, np.float32))


def _compared(
    loaded: Loaded,
    texts: list[str],
    prompt_name: str | None,
    finish: Callable[[Answer], Float32Array],
    nothing: Float32Array,
) -> Plan[Float32Array]:
    sentence = sentence_of(loaded.checkpoint)
    put = _prompt(sentence, prompt_name, None)
    left_out = tokens_left_out(loaded.tokenizer, sentence, put)
    encode = encoder_of(loaded, True, None, left_out)
    return Plan(loaded, _prompted(sentence, texts, put), encode, finish, nothing)


def _prompt(sentence: SentenceModules, name: str | None, prompt: str | None) -> str:
    """What goes before each text: a prompt that is given, else the one that is named."""
    return sentence.prompt_named(name) if prompt is None else sentence.checked_prompt(prompt)


def _prompted(sentence: SentenceModules, texts: list[str], put: str) -> list[str]:
    """The texts as they are tokenised."""
    if not put and not sentence.lowercase:
        return texts
    return [sentence.text_with_prompt(text, put) for text in texts]


def sentence_of(checkpoint: Checkpoint, task: Task = Task.EMBED) -> SentenceModules:
    """What makes a vector of hidden states. Raises TaskError for a model of another task."""
    require(checkpoint, task)
    assert checkpoint.sentence is not None
    return checkpoint.sentence
