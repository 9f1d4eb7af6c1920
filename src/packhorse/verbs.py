"""What a loaded model can be asked for: what goes to the engine, and what is made of its answer.

Each verb is a ``Plan``, which ``Encoder`` waits for and ``AsyncEncoder`` awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar

import numpy as np

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
from packhorse.tasks import DOES, Task
from packhorse.tokenizing.masks import Fills, MaskedTexts
from packhorse.tokenizing.offsets import Spans
from packhorse.tokenizing.prompts import pooled_after
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tokenizing.windows import Windows
from packhorse.zero_shot import entailment, hypotheses, label_scores

if TYPE_CHECKING:
    from packhorse.loaded import Call, Encode, Loaded  # at run time that would import torch

Result = TypeVar("Result")

LOGIT_BYTES = 64 << 20
"""Of the masks whose logits are there at once: 549 with BERT's vocabulary."""


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
    encode, per_text = reading(loaded, truncate, direction, stride)

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

    pairs = [(text, sentence) for text in checked_texts(texts) for sentence in sentences]
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
    texts, most = checked_texts(documents), _checked_top_k(top_k)
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
    scores = loaded.checkpoint.cross_encoder
    plain = raw_scores or scores.activation == "identity"

    def finish(answer: Answer) -> Float32Array:
        logits = answer.values[:, 0]
        return logits if plain else sigmoid(logits)

    nothing = np.empty(0, np.float32)
    pairs = scores.prompted(pairs)
    return Plan(loaded, pairs, encoder_of(loaded, truncate, direction), finish, nothing)


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
    inputs = checked_texts(texts)
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


def fill_mask_plans(
    loaded: Loaded,
    texts: Iterable[str],
    top_k: int,
    targets: str | Sequence[str] | None,
    truncate: bool,
    direction: Direction | None,
) -> list[Plan[list[Fills]]]:
    """For each text and each of its masks the likeliest tokens; plans of neighbouring texts.

    A mask's logits are as many as the vocabulary has tokens, so those of all texts are never there
    at once.
    """
    require(loaded.checkpoint, Task.FILL_MASK)
    checked = checked_texts(texts)
    # All of them first, for an error with the right index.
    counts = loaded.masks.encode(checked, truncate=truncate, direction=direction).counts
    most = max(1, LOGIT_BYTES // (4 * loaded.checkpoint.width))
    part = (np.cumsum(counts) - counts) // most
    starts = np.flatnonzero(np.diff(part, prepend=-1)).tolist()
    return [
        fill_mask(loaded, checked[start:stop], top_k, targets, truncate, direction)
        for start, stop in pairwise([*starts, len(checked)])
    ]


def fill_mask(
    loaded: Loaded,
    texts: list[str],
    top_k: int,
    targets: str | Sequence[str] | None,
    truncate: bool,
    direction: Direction | None,
) -> Plan[list[Fills]]:
    """The same of so few texts that the logits of all their masks may be there at once."""
    require(loaded.checkpoint, Task.FILL_MASK)
    masks, most = loaded.masks, checked_top_k(top_k)
    wanted = None if targets is None else masks.target_ids(targets)
    read: list[MaskedTexts] = []

    def encode(piece: Sequence[Any]) -> Sequences:
        read.append(masks.encode(piece, truncate=truncate, direction=direction))
        return read[-1].sequences

    def finish(answer: Answer) -> list[Fills]:
        found: list[Fills] = []
        row = 0
        for part in read:
            logits = answer.values[row : row + len(part.sequences)]
            row += len(part.sequences)
            found += masks.filled(part, logits, most, wanted)
        return found

    return Plan(loaded, texts, encode, finish, [])


def checked_inputs(inputs: Iterable[TextOrPair]) -> Sequence[TextOrPair]:
    """The inputs as a list. Raises ValidationError for one text in place of it, and for what would
    be iterated over by its names, such as a table."""
    if isinstance(inputs, (str, bytes, bytearray)):
        raise ValidationError("give a list of texts, not one text: ['…']")
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
        raise ValidationError(
            f"give a list of texts or pairs, not a {type(inputs).__name__}: a pair is (text, text) "
            "in the list, and of a table one column is given"
        )
    return inputs if isinstance(inputs, list) else list(inputs)


def checked_texts(texts: Iterable[str]) -> list[str]:
    """The texts as a list. Raises ValidationError for what is no text, with its place."""
    checked = list(checked_inputs(texts))
    for i, text in enumerate(checked):
        if not isinstance(text, str):
            raise ValidationError(f"inputs[{i}] must be a text, not a {type(text).__name__}")
    return checked  # type: ignore[return-value]


def reading(
    loaded: Loaded,
    truncate: bool,
    direction: Direction | None,
    stride: int | None,
    left_out: int = 0,
) -> tuple[Encode, Callable[[Float32Array], Float32Array]]:
    """How inputs are tokenised, and how rows of what went to the model become rows of inputs.

    They differ where long texts are read in windows, which share ``stride`` tokens. ``left_out``
    tokens at the start of each text are not pooled.
    """
    if stride is None:
        return encoder_of(loaded, truncate, direction, left_out), lambda rows: rows
    windows = Windows(loaded.tokenizer, stride, left_out)
    return windows.encode, windows.per_text


def encoder_of(
    loaded: Loaded, truncate: bool, direction: Direction | None, left_out: int = 0
) -> Encode:
    """How inputs are tokenised that are cut where they are too long."""

    def encode(piece: Sequence[Any]) -> Sequences:
        sequences = loaded.tokenizer.encode(piece, truncate=truncate, direction=direction)
        return pooled_after(sequences, left_out, direction or loaded.tokenizer.truncation_side)

    return encode


def require(checkpoint: Checkpoint, *tasks: Task) -> None:
    """Raise TaskError unless the model was loaded for one of these."""
    if checkpoint.task not in tasks:
        raise TaskError(
            f"this model {DOES[checkpoint.task]}; load one that {DOES[tasks[0]]}, or ask "
            "for that with `task` if this one can"
        )


def _checked_top_k(top_k: int | None) -> int | None:
    return None if top_k is None else checked_top_k(top_k)


def checked_top_k(top_k: int) -> int:
    """Raises ValidationError."""
    if not isinstance(top_k, SupportsIndex) or top_k < 1:
        raise ValidationError(f"top_k must be at least 1 and a whole number, not {top_k!r}")
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
