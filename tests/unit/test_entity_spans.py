"""Where entities stand in the text as it was sent, and which tokens become one entity."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.entities import AGGREGATIONS, Aggregation, Entity, Labels, Tokens, entities_of
from packhorse.tokenizing.names import vocabulary_of
from packhorse.tokenizing.tokenizer import Tokenizer
from tests.tiny_tokenizers import saved, word_piece
from tests.unit.test_token_classify import KINDS, LABELS, pipeline_of, prepared

NAMES = tuple(LABELS.values())


def visible(text: str) -> str:
    """Without spaces, control and format characters."""
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ")


CONTROLS = [
    "T\x10his \x10\t is \x00a te\x10st",
    "\x00\x00good\x00 film\x00",
    "hel\x00lo wo\x7frld \x01 a\u0085b",
    "\x1b[31mred\x1b[0m earth",
    "a\r\nb\x0bc\x0cd",
    "go\u200bod fa\u00adr\ufeffther",
]


@pytest.mark.case(3)
@pytest.mark.parametrize("kind", KINDS)
def test_spans_are_of_the_text_as_it_was_sent_control_characters_and_all(kind: str) -> None:
    """No visible character is left out, and WordPiece's words have those of their spans."""
    compared = 0
    with Encoder(prepared(kind), device="cpu", dtype="float32") as encoder:
        for strategy in ("none", "simple", "first"):
            rows = encoder.token_classify(CONTROLS, strategy, ignore_labels=())
            for text, entities in zip(CONTROLS, rows, strict=True):
                covered = set()
                for one in entities:
                    assert 0 <= one.start <= one.end <= len(text), (text, one)
                    covered |= set(range(one.start, one.end))
                    if kind.startswith("word_piece"):
                        span = visible(text[one.start : one.end])
                        assert span.lower() == visible(one.word.replace("##", "")).lower()
                        assert one.start < one.end
                        compared += 1
                assert visible("".join(text[i] for i in sorted(covered))) == visible(text)
    assert compared > 30 or not kind.startswith("word_piece")


@pytest.mark.case(3, 5)
def test_nul_is_dropped_within_a_word_and_ends_nothing(tmp_path: Any) -> None:
    library = word_piece()
    tokenizer = Tokenizer.load(saved(library, tmp_path))
    for one, same in (("go\x00od film", "good film"), ("good\x00", "good"), ("\x00", "")):
        assert tokenizer.encode([one]).input_ids.tolist() == library.encode(same).ids


@pytest.mark.case(65)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("😀😀 john", (3, 7)),
        ("  john", (2, 6)),
        ("café  john", (6, 10)),
        ("e\u0301a\u0308 john", (5, 9)),
        ("\u00a0john", (1, 5)),
    ],
)
def test_a_span_is_the_visible_word_in_code_points(
    kind: str, text: str, span: tuple[int, int]
) -> None:
    with Encoder(prepared(kind), device="cpu", dtype="float32") as encoder:
        (entities,) = encoder.token_classify([text], "none", ignore_labels=())
    last = [one for one in entities if one.end > span[0]]
    assert (last[0].start, last[-1].end) == span
    for one in entities:
        piece = text[one.start : one.end]
        assert piece == piece.strip() or not piece.strip()


# What becomes one entity, by scores that are set and not a model's.


def scored(text: str, labels: list[dict[str, float]]) -> tuple[Tokens, tokenizers.Encoding]:
    """The text's tokens, each with these probabilities and the rest for O."""
    encoding = word_piece_of().encode(text)
    inner = range(1, len(encoding.ids) - 1)
    rows = np.zeros((len(inner), len(NAMES)), np.float32)
    for row, given in zip(rows, labels, strict=True):
        for name, score in given.items():
            row[NAMES.index(name)] = score
        row[0] += 1 - row.sum()
    tokens = Tokens(
        text,
        np.array([encoding.ids[i] for i in inner], np.int32),
        np.array([encoding.offsets[i][0] for i in inner], np.int32),
        np.array([encoding.offsets[i][1] for i in inner], np.int32),
        np.array(inner, np.int32),
        rows,
    )
    return tokens, encoding


def word_piece_of() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(prepared("word_piece") / "tokenizer.json"))


pipeline = functools.cache(pipeline_of)


def by_the_pipeline(tokens: Tokens, aggregation: str) -> list[tuple[Any, ...]]:
    """What Transformers' rules make of the same scores."""
    pipe = pipeline(prepared("word_piece"))
    names = [pipe.tokenizer.convert_ids_to_tokens(int(i)) for i in tokens.ids]
    given = [
        {
            "word": name,
            "scores": tokens.scores[i],
            "start": int(tokens.starts[i]),
            "end": int(tokens.ends[i]),
            "index": int(tokens.index[i]),
            "is_subword": len(name) != tokens.ends[i] - tokens.starts[i],
        }
        for i, name in enumerate(names)
    ]
    strategy = transformers.pipelines.token_classification.AggregationStrategy(aggregation)
    return [
        (e.get("entity_group", e.get("entity")), e["word"], e["start"], e["end"])
        for e in pipe.aggregate(given, strategy)
        if e.get("entity_group", e.get("entity")) != "O"
    ]


def ours(tokens: Tokens, aggregation: Aggregation) -> list[Entity]:
    folder = prepared("word_piece")
    vocabulary = vocabulary_of(Tokenizer.load(load_checkpoint(folder)))
    return entities_of(tokens, Labels.of(NAMES), vocabulary, aggregation)


PER, LOC = {"B-PER": 0.9}, {"B-LOC": 0.6}
GROUPS: dict[str, tuple[str, list[dict[str, float]]]] = {
    "B after B": ("good film", [PER, PER]),
    "I after B": ("good film", [PER, {"I-PER": 0.8}]),
    "I first": ("good film", [{"I-PER": 0.8}, {}]),
    "I after O": ("good life film", [{}, {"I-LOC": 0.7}, {"I-LOC": 0.9}]),
    "I of another kind": ("good film", [PER, {"I-LOC": 0.7}]),
    "pieces that differ": ("goodness", [PER, LOC]),
    "a surer second piece": ("goodness", [{"B-PER": 0.5}, {"I-LOC": 0.99}]),
    "a piece outside": ("goodness film", [PER, {}, PER]),
    "no prefix": ("good film", [{"MISC": 0.9}, {"MISC": 0.8}]),
}


@pytest.mark.case(67)
@pytest.mark.parametrize("kind", GROUPS)
def test_tokens_become_entities_as_by_the_reference(kind: str) -> None:
    tokens, _ = scored(*GROUPS[kind])
    for aggregation in AGGREGATIONS:
        found = [(e.label, e.word, e.start, e.end) for e in ours(tokens, aggregation)]
        assert found == by_the_pipeline(tokens, aggregation), aggregation


@pytest.mark.case(67)
def test_neighbours_that_both_begin_are_two_and_pieces_of_a_word_may_be_one() -> None:
    two, _ = scored(*GROUPS["B after B"])
    for aggregation in AGGREGATIONS:
        assert [e.word for e in ours(two, aggregation)] == ["good", "film"]
    word, _ = scored(*GROUPS["pieces that differ"])
    simple = [(e.label, e.word, e.start, e.end) for e in ours(word, "simple")]
    assert simple == [("PER", "good", 0, 4), ("LOC", "##ness", 4, 8)]
    first = [(e.label, e.word, e.start, e.end) for e in ours(word, "first")]
    assert first == [("PER", "good ##ness", 0, 8)]  # this tokenizer has no decoder to join them
