"""From scores of tokens to entities, as Transformers' token-classification pipeline does it.

The rules are those of huggingface/transformers, pipelines/token_classification.py, written for
arrays: a label for each token, or for each word, then neighbours of one kind as one entity.
What it reports besides is the pipeline's too, string for string, but for one thing: a span has
no white space at its ends, where some tokenizers count the space before a word to the word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packhorse.errors import ValidationError
from packhorse.request import BoolArray, Float32Array, Int32Array
from packhorse.tokenizing.offsets import Spans

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""none: each token; simple: neighbouring tokens of one kind; the others first give each word
the label of its first token, of its mean scores, or of its most certain token."""

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


@dataclass(frozen=True, slots=True)
class Entity:
    """A part of a text and its label.

    label  as the model names it, without B- and I- where tokens were aggregated
    score  its probability; the mean of its tokens' or words'
    word   the tokens as text; ``text[start:end]`` is how they stand in the text
    start, end   code points
    index  the token's place in its sequence, where tokens are not aggregated
    """

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is asked of a tokenizer.

    token_lengths  int32 (vocabulary,): characters of each token's name
    unk_token_id   None where there is none
    has_prefix     whether pieces within a word have a prefix such as ##
    name_of        the name of a token
    joined         names of tokens as text: the tokenizer's decoder
    """

    token_lengths: Int32Array
    unk_token_id: int | None
    has_prefix: bool
    name_of: Callable[[int], str]
    joined: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Labels:
    """A model's labels, and what B- and I- before them mean.

    names  without the first hyphen and what is before it: what a group is called
    tags   int32 (labels,): equal where two labels are of one kind
    begins bool  (labels,): B-, which never continues what is before it
    """

    full: tuple[str, ...]
    names: tuple[str, ...]
    tags: Int32Array
    begins: BoolArray

    @classmethod
    def of(cls, labels: tuple[str, ...]) -> Labels:
        """Read off the names; a label in another form than B-X or I-X continues itself."""
        kinds = [label[2:] if label.startswith(("B-", "I-")) else label for label in labels]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return cls(
            labels,
            tuple(label.split("-", 1)[-1] for label in labels),
            np.array([numbers[kind] for kind in kinds], np.int32),
            np.array([label.startswith("B-") for label in labels], np.bool_),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one window, special ones left out.

    ids, starts, ends   int32 (n,)
    index   int32 (n,): places in the sequence
    scores  float32 (n, labels): probabilities
    """

    text: str
    ids: Int32Array
    starts: Int32Array
    ends: Int32Array
    index: Int32Array
    scores: Float32Array


def checked_aggregation(name: str) -> Aggregation:
    """Raises ValidationError for a strategy that there is not."""
    if name in AGGREGATIONS:
        return name
    raise ValidationError(f"aggregation_strategy {name!r} is not one of {', '.join(AGGREGATIONS)}")


def entities_of(
    tokens: Tokens,
    labels: Labels,
    vocabulary: Vocabulary,
    aggregation: Aggregation,
    ignored: Collection[str] = ("O",),
) -> list[Entity]:
    """The entities of one window in order, without those whose label is ``ignored``."""
    if not len(tokens.ids):
        return []
    if aggregation == "none":
        return _each_token(tokens, labels, vocabulary, ignored)
    if aggregation == "simple":
        units = np.arange(len(tokens.ids))
        best = tokens.scores.argmax(axis=1)
        scores = tokens.scores[units, best]
    else:
        within = _is_subword(tokens, vocabulary)
        within[0] = False  # whatever the first token is, a word begins with it
        units = np.flatnonzero(~within)
        best, scores = _word_labels(tokens.scores, units, aggregation)
    return _grouped(tokens, labels, vocabulary, ignored, units, best, scores, aggregation)


def entities_in(
    spans: Spans,
    texts: Sequence[str],
    scores: Float32Array,
    labels: Labels,
    vocabulary: Vocabulary,
    aggregation: Aggregation,
    ignored: Collection[str] = ("O",),
) -> list[list[Entity]]:
    """The entities of each text that ``spans`` were read from, with trimmed spans.

    ``scores`` float32 (T, labels) are the probabilities for all its tokens.
    """
    found: list[list[Entity]] = []
    bounds = spans.sequences.cu_seqlens.tolist()
    windows = [0] * (int(spans.text_of[-1]) + 1) if len(spans.text_of) else []
    for window, number in enumerate(spans.text_of.tolist()):
        own = bounds[window] + np.flatnonzero(
            ~spans.is_special[bounds[window] : bounds[window + 1]]
        )
        tokens = Tokens(
            texts[number],
            spans.sequences.input_ids[own],
            spans.starts[own],
            spans.ends[own],
            (own - bounds[window]).astype(np.int32),
            scores[own],
        )
        if not windows[number]:
            found.append([])
        windows[number] += 1
        found[-1] += entities_of(tokens, labels, vocabulary, aggregation, ignored)
    return [
        [trimmed(entity, text) for entity in (without_overlaps(own) if count > 1 else own)]
        for own, text, count in zip(found, texts, windows, strict=False)
    ]


def without_overlaps(entities: list[Entity]) -> list[Entity]:
    """Of entities that overlap, as windows do, the longest, then the most certain."""
    if not entities:
        return []
    entities = sorted(entities, key=lambda entity: entity.start)
    kept, previous = [], entities[0]
    for entity in entities:
        if previous.start <= entity.start < previous.end:
            longer = (entity.end - entity.start) - (previous.end - previous.start)
            if longer > 0 or (longer == 0 and entity.score > previous.score):
                previous = entity
        else:
            kept.append(previous)
            previous = entity
    return [*kept, previous]


def trimmed(entity: Entity, text: str) -> Entity:
    """The entity with a span that neither begins nor ends with white space."""
    span = text[entity.start : entity.end]
    stripped = span.strip()
    if not stripped or len(stripped) == len(span):
        return entity
    start = entity.start + span.index(stripped)
    return replace(entity, start=start, end=start + len(stripped))


def _each_token(
    tokens: Tokens, labels: Labels, vocabulary: Vocabulary, ignored: Collection[str]
) -> list[Entity]:
    best = tokens.scores.argmax(axis=1)
    left_out = np.array([label in ignored for label in labels.full], np.bool_)
    return [
        Entity(
            labels.full[best[i]],
            float(tokens.scores[i, best[i]]),
            _name(tokens, vocabulary, i),
            int(tokens.starts[i]),
            int(tokens.ends[i]),
            int(tokens.index[i]),
        )
        for i in np.flatnonzero(~left_out[best]).tolist()
    ]


def _is_subword(tokens: Tokens, vocabulary: Vocabulary) -> BoolArray:
    """Whether each token continues the word before it, bool (n,)."""
    if vocabulary.has_prefix:
        within: BoolArray = vocabulary.token_lengths[tokens.ids] != tokens.ends - tokens.starts
    else:
        # No way to know but by the spaces: "n't" and "," continue what they stand next to.
        points = np.frombuffer(tokens.text.encode("utf-32-le", "surrogatepass"), np.uint32)
        space = np.append(points == ord(" "), False)
        at = np.minimum(tokens.starts, len(points))
        within = (at > 0) & ~space[at - 1] & ~space[at]
    if vocabulary.unk_token_id is not None:
        within &= tokens.ids != vocabulary.unk_token_id
    return within


def _word_labels(
    scores: Float32Array, words: NDArray[np.intp], aggregation: Aggregation
) -> tuple[NDArray[np.intp], Float32Array]:
    """Label and score of each word, (words,); ``words`` says with which token each begins."""
    rows: Float32Array
    if aggregation == "average":
        lengths = np.diff(np.append(words, len(scores)))
        rows = np.add.reduceat(scores, words, axis=0)
        rows /= lengths[:, None].astype(np.float32)
    elif aggregation == "first":
        rows = scores[words]
    else:
        highest = scores.max(axis=1)
        ends = np.append(words[1:], len(scores))
        spans = zip(words.tolist(), ends.tolist(), strict=True)
        rows = scores[[start + int(highest[start:end].argmax()) for start, end in spans]]
    best = rows.argmax(axis=1)
    return best, rows[np.arange(len(rows)), best]


def _grouped(
    tokens: Tokens,
    labels: Labels,
    vocabulary: Vocabulary,
    ignored: Collection[str],
    units: NDArray[np.intp],
    best: NDArray[np.intp],
    scores: Float32Array,
    aggregation: Aggregation,
) -> list[Entity]:
    """Neighbouring units (tokens or words, by their first token) of one kind as one entity."""
    tags = labels.tags[best]
    new = np.append(True, (tags[1:] != tags[:-1]) | labels.begins[best[1:]])
    firsts = np.flatnonzero(new).tolist()
    ends = np.append(units[1:], len(tokens.ids)).tolist()
    found = []
    for first, stop in zip(firsts, [*firsts[1:], len(units)], strict=True):
        label = labels.names[best[first]]
        if label in ignored:
            continue
        words = []
        for unit in range(first, stop):
            pieces = [_name(tokens, vocabulary, i) for i in range(units[unit], ends[unit])]
            words.append(pieces[0] if aggregation == "simple" else vocabulary.joined(pieces))
        found.append(
            Entity(
                label,
                float(np.mean(scores[first:stop])),
                vocabulary.joined(words),
                int(tokens.starts[units[first]]),
                int(tokens.ends[ends[stop - 1] - 1]),
            )
        )
    return found


def _name(tokens: Tokens, vocabulary: Vocabulary, i: int) -> str:
    """What a token is called; an unknown one by its text."""
    token = int(tokens.ids[i])
    if token == vocabulary.unk_token_id:
        return tokens.text[tokens.starts[i] : tokens.ends[i]]
    return vocabulary.name_of(token)
