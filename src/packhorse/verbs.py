"""What a loaded model can be asked for: what goes to the engine, and what is made of its answer.

Each verb is a ``Plan``, which ``Encoder`` waits for and ``AsyncEncoder`` awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.checkpoint import Checkpoint
from packhorse.entities import (
    Entity,
    Labels,
    checked_aggregation,
    entities_in,
)
from packhorse.errors import TaskError, ValidationError
from packhorse.postprocess import scores_of, sigmoid, softmax
from packhorse.request import Answer, Float32Array, Sequences, TextOrPair, joined
from packhorse.sentence import SentenceModules
from packhorse.tasks import DOES, Task
from packhorse.tokenizing.offsets import Spans
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tokenizing.windows import Windows
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
from packhorse.zero_shot import entailment, hypotheses, label_scores

if TYPE_CHECKING:
    from packhorse.loaded import Call, Encode, Loaded  # at run time that would import torch

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Classification:
    """One label of one input, and its score."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document, where it stood in the list that was ranked, and its score."""

    index: int
    score: float
    document: str


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """A call: ``encode`` pieces of ``inputs`` for the engine, then ``finish`` its answer.

    ``nothing`` is the result where there are no inputs.
    """

    loaded: Loaded
    inputs: Sequence[Any]
    encode: Encode
    finish: Callable[[Answer], Result]
    nothing: Result

    def submit(self, call: Call) -> list[Future[Answer]]:
        """Hand all inputs to the engine."""
        return self.loaded.submit(self.inputs, self.encode, call)

    def result(self, answers: Sequence[Answer]) -> Result:
        """What the pieces' answers come to. Raises the error of the first that failed."""
        return self.finish(joined(answers)) if answers else self.nothing


def probabilities(
    loaded: Loaded,
    inputs: Iterable[TextOrPair],
    truncate: bool,
    direction: Direction | None,
    stride: int | None,
) -> Plan[Float32Array]:
    """Scores, float32 (n, labels)."""
    return label_matrix(loaded, inputs, False, truncate, direction, stride)


def label_matrix(
    loaded: Loaded,
    inputs: Iterable[TextOrPair],
    raw_scores: bool,
    truncate: bool,
    direction: Direction | None,
    stride: int | None,
) -> Plan[Float32Array]:
    """Scores or logits, float32 (n, labels)."""
    require(loaded.checkpoint, Task.CLASSIFY, Task.RERANK)
    problem_type = loaded.checkpoint.problem_type
    encode, per_text = _reading(loaded, truncate, direction, stride)

    def finish(answer: Answer) -> Float32Array:
        return per_text(answer.values if raw_scores else scores_of(answer.values, problem_type))

    nothing = np.empty((0, loaded.checkpoint.width), np.float32)
    return Plan(loaded, checked_inputs(inputs), encode, finish, nothing)


def classify(
    loaded: Loaded,
    inputs: Iterable[TextOrPair],
    top_k: int | None,
    raw_scores: bool,
    truncate: bool,
    direction: Direction | None,
    stride: int | None,
) -> Plan[list[list[Classification]]]:
    """Labels with scores for each input, best first; all, or ``top_k`` of them."""
    plan = label_matrix(loaded, inputs, raw_scores, truncate, direction, stride)
    labels, most = loaded.checkpoint.labels, _checked_top_k(top_k)

    def finish(answer: Answer) -> list[list[Classification]]:
        return _ranked(plan.finish(answer), labels, most)

    return Plan(loaded, plan.inputs, plan.encode, finish, [])


def zero_shot(
    loaded: Loaded, texts: Iterable[str], labels: Sequence[str], template: str, multi_label: bool
) -> Plan[list[list[Classification]]]:
    """The labels of the caller with their scores for each text, best first."""
    plan, names = zero_shot_matrix(loaded, texts, labels, template, multi_label), tuple(labels)

    def finish(answer: Answer) -> list[list[Classification]]:
        return _ranked(plan.finish(answer), names, None)

    return Plan(loaded, plan.inputs, plan.encode, finish, [])


def zero_shot_matrix(
    loaded: Loaded, texts: Iterable[str], labels: Sequence[str], template: str, multi_label: bool
) -> Plan[Float32Array]:
    """Scores, float32 (n, labels of the caller)."""
    sentences = zero_shot_hypotheses(loaded.checkpoint, labels, template)
    own = loaded.checkpoint.labels

    def finish(answer: Answer) -> Float32Array:
        logits = answer.values.reshape(-1, len(sentences), len(own))
        return label_scores(logits, own, multi_label)

    pairs = [(text, sentence) for text in _checked_texts(texts) for sentence in sentences]
    nothing = np.empty((0, len(sentences)), np.float32)
    encode = partial(loaded.tokenizer.encode, first_only=True)
    return Plan(loaded, pairs, encode, finish, nothing)


def zero_shot_hypotheses(checkpoint: Checkpoint, labels: Sequence[str], template: str) -> list[str]:
    """A sentence for each label. Raises TaskError for a model that was not made for inference."""
    require(checkpoint, Task.CLASSIFY)
    entailment(checkpoint.labels)
    return hypotheses(labels, template)


def rerank(
    loaded: Loaded,
    query: str,
    documents: Iterable[str],
    top_k: int | None,
    raw_scores: bool,
    truncate: bool,
) -> Plan[list[RankedDocument]]:
    """The documents, those that answer the query best first."""
    texts, most = _checked_texts(documents), _checked_top_k(top_k)
    plan = pair_scores(loaded, [(query, text) for text in texts], raw_scores, truncate, None)

    def finish(answer: Answer) -> list[RankedDocument]:
        scores = plan.finish(answer)
        order = np.argsort(-scores, kind="stable")[:most]
        return [RankedDocument(i, float(scores[i]), texts[i]) for i in order.tolist()]

    return Plan(loaded, plan.inputs, plan.encode, finish, [])


def pair_scores(
    loaded: Loaded,
    pairs: Sequence[tuple[str, str]],
    raw_scores: bool,
    truncate: bool,
    direction: Direction | None,
) -> Plan[Float32Array]:
    """How well the document of each pair answers its query, float32 (n,)."""
    require(loaded.checkpoint, Task.RERANK)
    plain = raw_scores or loaded.checkpoint.rerank_activation == "identity"

    def finish(answer: Answer) -> Float32Array:
        logits = answer.values[:, 0]
        return logits if plain else sigmoid(logits)

    nothing = np.empty(0, np.float32)
    return Plan(loaded, pairs, _encoder(loaded, truncate, direction), finish, nothing)


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
    encode, per_text = _reading(loaded, truncate, direction, stride)
    sentence = sentence_of(loaded.checkpoint)
    to_unit = sentence.normalizes if normalize is None else normalize
    if dimensions is not None:
        checked_dimensions(dimensions, sentence.width)

    def finish(answer: Answer) -> NDArray[Any]:
        vectors = finished(per_text(answer.values), normalize=to_unit, dimensions=dimensions)
        return quantized(vectors, output_type)

    width = sentence.width if dimensions is None else dimensions
    nothing = quantized(np.empty((0, width), np.float32), output_type)
    inputs = _prompted(sentence, _checked_texts(texts), prompt_name, prompt)
    return Plan(loaded, inputs, encode, finish, nothing)


def embed_tokens(
    loaded: Loaded, texts: Iterable[str], prompt_name: str | None, truncate: bool
) -> Plan[list[Float32Array]]:
    """The last hidden state of every token, special tokens included, for each text."""
    sentence, encode = sentence_of(loaded.checkpoint), _encoder(loaded, truncate, "right")

    def at_token_level(piece: Sequence[Any]) -> Sequences:
        sequences = encode(piece)
        return replace(sequences, token_level=np.ones(len(sequences), np.bool_))

    def finish(answer: Answer) -> list[Float32Array]:
        assert answer.row_counts is not None
        return np.split(answer.values, np.cumsum(answer.row_counts)[:-1])

    inputs = _prompted(sentence, _checked_texts(texts), prompt_name, None)
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
    inputs = _prompted(sentence, _checked_texts(texts), prompt_name, prompt)
    return Plan(loaded, inputs, _encoder(loaded, truncate, direction), sparse_vectors, [])


def similarity(
    loaded: Loaded, first: Iterable[str], second: Iterable[str], prompt_name: str | None
) -> Plan[Float32Array]:
    """The cosine of every text of ``first`` with every one of ``second``, float32 (n, m)."""
    sentence = sentence_of(loaded.checkpoint)
    one, other = _checked_texts(first), _checked_texts(second)

    def finish(answer: Answer) -> Float32Array:
        return cosine(answer.values[: len(one)], answer.values[len(one) :])

    inputs = _prompted(sentence, [*one, *other], prompt_name, None)
    nothing = np.empty((0, 0), np.float32)
    return Plan(loaded, inputs, _encoder(loaded, True, "right"), finish, nothing)


def pair_similarities(
    loaded: Loaded, pairs: Sequence[tuple[str, str]], prompt_name: str | None
) -> Plan[Float32Array]:
    """The cosine of the two texts of each pair, float32 (n,)."""
    sentence = sentence_of(loaded.checkpoint)

    def finish(answer: Answer) -> Float32Array:
        return paired_cosine(answer.values[0::2], answer.values[1::2])

    inputs = _prompted(sentence, [text for pair in pairs for text in pair], prompt_name, None)
    nothing = np.empty(0, np.float32)
    return Plan(loaded, inputs, _encoder(loaded, True, "right"), finish, nothing)


def token_classify(
    loaded: Loaded,
    texts: Iterable[str],
    aggregation_strategy: str,
    ignore_labels: Collection[str],
    stride: int | None,
    truncate: bool,
) -> Plan[list[list[Entity]]]:
    """The entities of each text in order."""
    require(loaded.checkpoint, Task.TOKEN_CLASSIFY)
    aggregation = checked_aggregation(aggregation_strategy)
    if stride is not None and aggregation == "none":
        raise ValidationError("`stride` needs an aggregation_strategy other than none")
    inputs = _checked_texts(texts)
    labels, vocabulary = Labels.of(loaded.checkpoint.labels), loaded.vocabulary
    read: list[Spans] = []

    def encode(piece: Sequence[Any]) -> Sequences:
        read.append(loaded.tokenizer.encode_with_offsets(piece, truncate=truncate, stride=stride))
        return read[-1].sequences

    def finish(answer: Answer) -> list[list[Entity]]:
        found: list[list[Entity]] = []
        row = 0
        for spans in read:
            values = answer.values[row : row + len(spans.starts)]
            row += len(spans.starts)
            some = inputs[len(found) :]
            found += entities_in(
                spans, some, softmax(values), labels, vocabulary, aggregation, ignore_labels
            )
        return found

    return Plan(loaded, inputs, encode, finish, [])


def checked_inputs(inputs: Iterable[TextOrPair]) -> Sequence[TextOrPair]:
    """The inputs as a list. Raises ValidationError for one text in place of it."""
    if isinstance(inputs, str):
        raise ValidationError("give a list of texts, not one text: ['…']")
    return inputs if isinstance(inputs, list) else list(inputs)


def _checked_texts(texts: Iterable[str]) -> list[str]:
    checked = list(checked_inputs(texts))
    for i, text in enumerate(checked):
        if not isinstance(text, str):
            raise ValidationError(f"inputs[{i}] must be a text, not a {type(text).__name__}")
    return checked  # type: ignore[return-value]


def _reading(
    loaded: Loaded, truncate: bool, direction: Direction | None, stride: int | None
) -> tuple[Encode, Callable[[Float32Array], Float32Array]]:
    """How inputs are tokenised, and how rows of what went to the model become rows of inputs.

    They differ where long texts are read in windows, which share ``stride`` tokens.
    """
    if stride is None:
        return _encoder(loaded, truncate, direction), lambda rows: rows
    windows = Windows(loaded.tokenizer, stride)
    return windows.encode, windows.per_text


def _encoder(loaded: Loaded, truncate: bool, direction: Direction | None) -> Encode:
    def encode(piece: Sequence[Any]) -> Sequences:
        return loaded.tokenizer.encode(piece, truncate=truncate, direction=direction)

    return encode


def _prompted(
    sentence: SentenceModules, texts: list[str], name: str | None, prompt: str | None
) -> list[str]:
    """The texts as they are tokenised: a prompt that is given goes before one that is named."""
    put = sentence.prompt_named(name) if prompt is None else sentence.checked_prompt(prompt)
    if not put and not sentence.lowercase:
        return texts
    return [sentence.text_with_prompt(text, put) for text in texts]


def require(checkpoint: Checkpoint, *tasks: Task) -> None:
    """Raise TaskError unless the model was loaded for one of these."""
    if checkpoint.task not in tasks:
        raise TaskError(
            f"this model {DOES[checkpoint.task]}; load one that {DOES[tasks[0]]}, or ask "
            "for that with `task` if this one can"
        )


def sentence_of(checkpoint: Checkpoint, task: Task = Task.EMBED) -> SentenceModules:
    """What makes a vector of hidden states. Raises TaskError for a model of another task."""
    require(checkpoint, task)
    assert checkpoint.sentence is not None
    return checkpoint.sentence


def _checked_top_k(top_k: int | None) -> int | None:
    if top_k is not None and top_k < 1:
        raise ValidationError(f"top_k must be at least 1, not {top_k}")
    return top_k


def _ranked(
    scores: Float32Array, labels: tuple[str, ...], most: int | None
) -> list[list[Classification]]:
    order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    return [
        [Classification(labels[i], score) for i, score in zip(row, values, strict=True)]
        for row, values in zip(
            order.tolist(), np.take_along_axis(scores, order, axis=1).tolist(), strict=True
        )
    ]
