"""What is kept of pairs and of huge texts: exactly what the reference keeps, at a small cost."""

import functools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray

from packhorse.errors import ValidationError
from packhorse.request import Int32Array, TextOrPair
from packhorse.tokenizing import truncation
from packhorse.tokenizing.backends import Backend, Rows
from packhorse.tokenizing.tokenizer import Direction, Tokenizer
from packhorse.tokenizing.truncation import longest_first
from tests.tiny_tokenizers import BUILDERS, WORDS, fuzzed_texts, saved

DIRECTIONS: tuple[Direction, ...] = ("right", "left")
ONE_IN_SHORT = [pytest.param("right", marks=pytest.mark.long), "left"]
EVERY = [
    ("nanotoken", "word_piece"),
    ("gigatoken", "byte_level"),
    *(("tokenizers", kind) for kind in BUILDERS),
]


@functools.cache
def loaded(kind: str, backend: str = "auto", max_length: int = 64) -> Tokenizer:
    """A tiny tokenizer, loaded once: for what does not change it."""
    return fresh(kind, backend, max_length)


def fresh(kind: str, backend: str = "auto", max_length: int = 64) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = saved(BUILDERS[kind](), Path(folder), max_length=max_length)
        return Tokenizer.load(checkpoint, backend=backend)  # type: ignore[arg-type]


def assert_as_the_reference(
    tokenizer: Tokenizer, inputs: Sequence[TextOrPair], direction: Direction
) -> None:
    """Ids, lengths and segments are those of a `tokenizers` object that truncates by itself."""
    copy = tokenizers.Tokenizer.from_str(tokenizer.library.to_str())
    copy.enable_truncation(tokenizer.max_length, strategy="longest_first", direction=direction)
    encodings = copy.encode_batch(list(inputs))
    sequences = tokenizer.encode(inputs, direction=direction)
    assert_equal(sequences.lengths, [len(encoding.ids) for encoding in encodings])
    assert_equal(sequences.input_ids, [token for e in encodings for token in e.ids])
    assert_equal(sequences.truncated, [len(e.overflowing) > 0 for e in encodings])
    if sequences.segment_starts is not None:
        starts = [len(e.ids) - sum(e.type_ids) for e in encodings]
        assert_equal(sequences.segment_starts, starts)


def assert_equal(got: NDArray[Any], wanted: Sequence[int]) -> None:
    """Pytest would spend minutes on showing where two long lists differ."""
    same = got.tolist() == list(wanted)
    assert same, f"{len(got)} numbers differ from {len(wanted)}"


# Pairs.


def kept(first: int, second: int, room: int) -> tuple[int, int]:
    a, b = longest_first(np.array([first], np.int32), np.array([second], np.int32), room)
    assert a.dtype == b.dtype == np.int32
    return int(a[0]), int(b[0])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((260, 500), (254, 255)),
        ((500, 260), (255, 254)),
        ((200, 500), (200, 309)),
        ((500, 200), (309, 200)),
        ((600, 1), (508, 1)),
        ((1, 600), (1, 508)),
        ((500, 500), (254, 255)),
        ((600, 599), (255, 254)),
        ((600, 5), (504, 5)),
        ((600, 0), (509, 0)),
        ((255, 254), (255, 254)),
        ((0, 0), (0, 0)),
    ],
)
@pytest.mark.case(19)
def test_the_longer_text_of_a_pair_is_cut_first(
    counts: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert kept(*counts, room=512 - 3) == expected


@pytest.mark.parametrize("counts", [(260, 500), (200, 500), (600, 1), (500, 500), (600, 5)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.case(19)
def test_pairs_of_hundreds_of_tokens_are_cut_as_by_the_reference(
    counts: tuple[int, int], direction: Direction
) -> None:
    tokenizer = loaded("word_piece", max_length=512)
    words = WORDS * 8
    pair = " ".join(words[: counts[0]]), " ".join(reversed(words[: counts[1]]))
    assert_as_the_reference(tokenizer, [pair], direction)


def grid_of_pairs(largest: int = 12) -> list[TextOrPair]:
    """Pairs of all lengths, in which every token is another one."""
    first, second = WORDS[1:20], WORDS[20:40]
    return [
        (" ".join(first[:a]), " ".join(second[:b]))
        for a in range(largest + 1)
        for b in range(largest + 1)
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("limit", [4, 5, 6, 7, 12, 13, 19])
def test_pairs_of_all_lengths_are_cut_as_by_the_reference(limit: int, direction: Direction) -> None:
    tokenizer = loaded("word_piece", max_length=limit)
    assert_as_the_reference(tokenizer, grid_of_pairs(), direction)


def one_off(first: Int32Array, second: Int32Array, room: int) -> tuple[Int32Array, Int32Array]:
    a, b = longest_first(first, second, room)
    both = (a + b == room) & (a > 0) & (b < second)
    return (a - both).astype(np.int32), (b + both).astype(np.int32)


def blind_to_order(
    first: Int32Array, second: Int32Array, room: int
) -> tuple[Int32Array, Int32Array]:
    a, b = longest_first(first, second, room)
    both = (a < first) & (b < second)
    return np.where(both, room // 2, a), np.where(both, room - room // 2, b)


def only_second(first: Int32Array, second: Int32Array, room: int) -> tuple[Int32Array, Int32Array]:
    return np.minimum(first, room), np.clip(room - first, 0, second).astype(np.int32)


@pytest.mark.parametrize("fault", [one_off, blind_to_order, only_second])
def test_the_grid_of_pairs_finds_a_fault(monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    tokenizer = loaded("word_piece", max_length=12)
    monkeypatch.setattr("packhorse.tokenizing.tokenizer.longest_first", fault)
    with pytest.raises(AssertionError):
        assert_as_the_reference(tokenizer, grid_of_pairs(), "right")


# Huge texts.


PIECES: dict[str, Sequence[str]] = {
    "words": [f"{word} " for word in WORDS],
    "lines": [f"{word}\n" for word in WORDS],
    "one word": ["a"],
    "long words": ["ab" * 60 + " "],
    "no spaces": WORDS,
    "Han": "中国文日本語",
    "Han with stops": ["中国", "中国", "中国", "日本。", "日\n"],
    "Hangul": ["한국", "한국 ", "어\n"],
    "marks": "!?.,[]",
    "accents": ["e\u0301", "é", "é ", "o\u0308"],
    "only combining marks": ["\u0301"],
    "marks on spaces": ["a ", "\u0301", " \u0301", "\u0e33 "],
    "emoji": ["😀", "😀 ", "👩\u200d👩 "],
    "spaces": [" "],
    "runs of spaces": ["a ", "b  ", "c   \t"],
    "control characters": ["a\x00", "b\x0b", " \x85", "\x00 "],
    "special tokens": ["[SEP]", "[SEP", "<s>", "<mask>", " ", "good"],
    "special tokens apart": [" [SEP] ", " <mask> ", " </s> ", "good film"],
    "anything": fuzzed_texts(300, seed=11),
}
"""What huge texts are made of: each kind is hard to cut in another way."""


def huge(kind: str, size: int) -> str:
    """A text of about so many characters."""
    pieces = PIECES[kind]
    mean = sum(map(len, pieces)) / len(pieces)
    return "".join(random.Random(9).choices(pieces, k=int(size / mean)))


@pytest.mark.parametrize("direction", ONE_IN_SHORT)
@pytest.mark.parametrize(("backend", "kind"), EVERY)
def test_huge_texts_are_cut_as_by_the_reference(
    backend: str, kind: str, direction: Direction
) -> None:
    tokenizer = loaded(kind, backend)
    texts = [huge(name, 5_000) for name in PIECES]
    texts += ["good" + " " * 5_000, " " * 5_000 + "good"]
    assert_as_the_reference(tokenizer, texts, direction)


@pytest.mark.parametrize("direction", ONE_IN_SHORT)
@pytest.mark.parametrize(("backend", "kind"), EVERY)
def test_fuzzed_texts_that_are_all_huge_are_cut_as_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, backend: str, kind: str, direction: Direction
) -> None:
    small_windows(monkeypatch)
    tokenizer = loaded(kind, backend, max_length=7)
    rng = random.Random(13)
    texts = [
        "".join(text[i : i + 5] + rng.choice([" ", "\n", " good ", ". a"]) for i in range(0, 40, 5))
        for text in fuzzed_texts(80, seed=12)
    ]
    assert_as_the_reference(tokenizer, texts, direction)
    pairs: list[TextOrPair] = list(zip(texts[:20], texts[20:40], strict=True))
    assert_as_the_reference(tokenizer, pairs, direction)


def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every text of more than a dozen characters were a huge one."""
    monkeypatch.setattr(truncation, "_FEWEST_CHARACTERS", 4)
    monkeypatch.setattr(truncation, "_CHARACTERS_PER_TOKEN", 1)
    monkeypatch.setattr(truncation, "_GROWTH", 2)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("max_length", [9, 10])
def test_which_of_two_huge_texts_is_longer_decides_who_keeps_one_more(
    monkeypatch: pytest.MonkeyPatch, max_length: int, direction: Direction
) -> None:
    small_windows(monkeypatch)
    tokenizer = loaded("word_piece", max_length=max_length)
    pairs: list[TextOrPair] = [
        ("good film " * a, "a dog " * b) for a in range(20, 40, 6) for b in range(20, 40, 6)
    ]
    assert_as_the_reference(tokenizer, pairs, direction)


class Counting:
    """A backend that counts the characters that it is given."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.characters = 0
        self._backend = backend

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        self.characters += sum(map(len, texts))
        return self._backend.rows(texts, special)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("word_piece", "words"),
        ("word_piece", "lines"),
        ("word_piece", "Han"),
        ("word_piece", "marks"),
        ("word_piece", "special tokens"),
        ("word_piece_cased", "runs of spaces"),
        ("byte_level", "words"),
        ("unigram", "words"),
        ("unigram", "lines"),
        ("unigram", "Han with stops"),
    ],
)
@pytest.mark.case(11)
def test_of_a_megabyte_only_a_few_kilobytes_are_tokenised(
    kind: str, text: str, direction: Direction
) -> None:
    tokenizer = fresh(kind, max_length=512)
    counting = Counting(tokenizer._libraries.reference)
    tokenizer._libraries.serving = counting
    megabyte = huge(text, 1_000_000)
    sequences = tokenizer.encode([megabyte, "good", megabyte], direction=direction)
    assert sequences.lengths.tolist()[0] == sequences.lengths.tolist()[2] == 512
    assert sequences.truncated.tolist() == [True, False, True]
    assert counting.characters < 2 * 8192 + 5


def test_a_megabyte_need_not_be_tokenised_to_be_refused() -> None:
    tokenizer = fresh("word_piece", max_length=512)
    counting = Counting(tokenizer._libraries.reference)
    tokenizer._libraries.serving = counting
    with pytest.raises(ValidationError, match=r"inputs\[1\] has more than 512 tokens"):
        tokenizer.encode(["good", "good film " * 100_000], truncate=False)
    with pytest.raises(ValidationError, match=r"inputs\[0\] has more than 512 tokens"):
        tokenizer.encode([("good film " * 100_000, "good")], truncate=False)
    assert counting.characters < 20_000


def test_a_huge_text_of_few_tokens_is_whole_and_not_refused() -> None:
    tokenizer = loaded("word_piece", max_length=8)
    text = " " * 20_000 + "good" + " " * 20_000 + "film" + "x" * 20_000
    sequences = tokenizer.encode([text, (text, "a")], truncate=False)
    assert sequences.lengths.tolist() == [4, 6]
    assert not sequences.truncated.any()


def test_the_fuzz_of_huge_texts_finds_an_unsafe_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def anywhere(self: object, text: str, characters: int, direction: Direction) -> str:
        return text[:characters] if direction == "right" else text[-characters:]

    monkeypatch.setattr("packhorse.tokenizing.safe_cuts.SafeCuts.shorten", anywhere)
    small_windows(monkeypatch)
    tokenizer = loaded("word_piece", max_length=7)
    for direction in DIRECTIONS:
        with pytest.raises(AssertionError):
            assert_as_the_reference(tokenizer, fuzzed_texts(500, seed=12), direction)
