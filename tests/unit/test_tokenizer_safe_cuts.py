"""A safe cut never changes a token: proved against the tokens of whole texts."""

import random
import re
from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import AddedToken, normalizers, pre_tokenizers

from packhorse.tokenizing.safe_cuts import SafeCuts, safe_cuts
from tests.tiny_tokenizers import BUILDERS, WORDS, byte_level, fuzzed_texts, unigram, word_piece

Builder = Callable[[], tokenizers.Tokenizer]


def changed(
    build: Builder,
    *,
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    added: AddedToken | None = None,
) -> Builder:
    def built() -> tokenizers.Tokenizer:
        tokenizer = build()
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        if added is not None:
            tokenizer.add_tokens([added])
        return tokenizer

    return built


def metaspace(scheme: str = "always") -> pre_tokenizers.Metaspace:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


FOLDED = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
KINDS: dict[str, Builder] = {
    **BUILDERS,
    "word_piece of parts": changed(
        word_piece,
        normalizer=normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Lowercase(), normalizers.StripAccents()]
        ),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation()]
        ),
    ),
    "Han not spaced": changed(
        word_piece, normalizer=normalizers.BertNormalizer(handle_chinese_chars=False)
    ),
    "control characters kept": changed(
        word_piece, normalizer=normalizers.BertNormalizer(clean_text=False, strip_accents=False)
    ),
    "a normalized word added": changed(word_piece, added=AddedToken("Good", normalized=True)),
    "a raw word added": changed(word_piece, added=AddedToken("od", normalized=False)),
    "marks added": changed(word_piece, added=AddedToken("!?!", normalized=False)),
    "a whole word added": changed(
        word_piece, added=AddedToken("ing", normalized=False, single_word=True)
    ),
    "one that strips both sides": changed(
        word_piece, added=AddedToken("<x>", normalized=False, lstrip=True, rstrip=True)
    ),
    "a token with a space added": changed(word_piece, added=AddedToken("m\no", normalized=False)),
    "lines added": changed(word_piece, added=AddedToken("\n", normalized=False)),
    "bytes with a prefix space": changed(
        byte_level,
        normalizer=normalizers.NFC(),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
    ),
    "bytes, and runs of spaces": changed(byte_level, added=AddedToken("   ", normalized=False)),
    "bytes, and one that eats spaces": changed(
        byte_level, added=AddedToken("of", normalized=False, rstrip=True)
    ),
    "unigram, first prefix": changed(unigram, pre_tokenizer=metaspace("first")),
    "unigram, no prefix": changed(unigram, pre_tokenizer=metaspace("never")),
    "unigram, words split": changed(
        unigram,
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()]),
    ),
    "unigram, words split, first prefix": changed(
        unigram,
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), metaspace("first")]
        ),
    ),
    "unigram, stripped": changed(
        unigram,
        normalizer=normalizers.Sequence(
            [normalizers.Lowercase(), normalizers.Strip(), normalizers.NFKC(), FOLDED]
        ),
    ),
    "unigram, quotes replaced": changed(
        unigram,
        normalizer=normalizers.Sequence(
            [normalizers.Replace("``", '"'), normalizers.Nmt(), normalizers.NFKD()]
        ),
    ),
}
WHOLE = "modern_byte_level"
"""Its tokens of several spaces are found in normalised text: it is tokenised whole."""

TRUSTED = [pytest.param(build, id=name) for name, build in KINDS.items() if name != WHOLE]


def texts_with_places(count: int) -> list[str]:
    """Texts that are half plain words, so that there are places of every kind to cut at."""
    rng = random.Random(3)
    ends = ["", "", "", ".", ",", "?", ")", "。", "!?!", "<x>", "[SEP]", "<mask>", "ing", "of"]
    texts = []
    for fuzz in fuzzed_texts(count, seed=5, pieces=12):
        words = [rng.choice(WORDS) + rng.choice(ends) for _ in range(6)]
        words.insert(rng.randrange(6), fuzz)
        texts.append("".join(word + rng.choice(" \n   中!") for word in words))
    return texts


def faults(tokenizer: tokenizers.Tokenizer, cuts: SafeCuts, texts: list[str]) -> list[str]:
    """The cuts that change a token, of all safe ones in the texts."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    found, places = [], 0
    for text in texts:
        whole = ids(text)
        for match in cuts.place.finditer(text):
            place = match.start()
            if 0 < place < len(text) and cuts._is_safe(text, place):
                places += 1
                left, right = ids(text[:place]), ids(text[place:])
                if whole[: len(left)] != left or whole[len(whole) - len(right) :] != right:
                    found.append(f"{text[:place]!a} + {text[place:]!a}")
    assert places > len(texts), "too few places were tried to prove anything"
    return found


def test_runs_of_spaces_as_tokens_are_not_cut_at() -> None:
    assert safe_cuts(BUILDERS[WHOLE]()) is None


@pytest.mark.parametrize("build", TRUSTED)
def test_no_safe_cut_changes_a_token(build: Builder) -> None:
    tokenizer = build()
    cuts = safe_cuts(tokenizer)
    assert cuts is not None
    assert faults(tokenizer, cuts, texts_with_places(100)) == []


@pytest.mark.parametrize(
    ("build", "place"),
    [
        pytest.param(word_piece, "(?=[a-z])", id="within a word"),
        pytest.param(
            BUILDERS["word_piece_cased"],
            "(?=[\u0300-\u036f]|[ !])",
            id="before a combining mark",
        ),
        pytest.param(byte_level, "(?<= )(?=[a-z])", id="after the space of a word"),
        pytest.param(unigram, "(?=[a-z])", id="within a piece"),
        pytest.param(unigram, "(?= )", id="among spaces"),
    ],
)
def test_the_proof_finds_an_unsafe_place(build: Builder, place: str) -> None:
    tokenizer = build()
    cuts = SafeCuts(re.compile(place), added=None, longest_added=0, beside=False)
    assert faults(tokenizer, cuts, texts_with_places(100))


def test_the_proof_finds_a_cut_within_an_added_token() -> None:
    tokenizer = word_piece()
    cuts = safe_cuts(tokenizer)
    assert cuts is not None
    unaware = SafeCuts(cuts.place, added=None, longest_added=0, beside=False)
    assert faults(tokenizer, unaware, texts_with_places(100))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(
            changed(word_piece, pre_tokenizer=pre_tokenizers.Split("e", "isolated")),
            id="an unknown pre-tokenizer",
        ),
        pytest.param(
            changed(word_piece, normalizer=normalizers.Prepend("x")), id="an unknown normaliser"
        ),
        pytest.param(
            changed(word_piece, added=AddedToken("good film", normalized=True)),
            id="a normalized token with a space",
        ),
        pytest.param(
            changed(unigram, pre_tokenizer=pre_tokenizers.Metaspace(split=False)),
            id="words not split",
        ),
        pytest.param(
            changed(
                unigram,
                normalizer=normalizers.Strip(),
                pre_tokenizer=metaspace("first"),
            ),
            id="stripped, and a prefix for the first word only",
        ),
        pytest.param(
            changed(unigram, normalizer=normalizers.Replace(".", " ")), id="marks made spaces"
        ),
        pytest.param(
            changed(unigram, normalizer=normalizers.Replace(tokenizers.Regex("e"), "i")),
            id="an unknown expression replaced",
        ),
        pytest.param(
            changed(byte_level, pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False)),
            id="bytes not split into words",
        ),
    ],
)
def test_a_pipeline_that_is_not_known_is_never_cut(build: Builder) -> None:
    assert safe_cuts(build()) is None


def test_it_keeps_one_to_two_times_as_many_characters_as_asked_for() -> None:
    cuts = safe_cuts(word_piece())
    assert cuts is not None
    text = "good film. " * 1000
    for direction, edge in (("right", text.startswith), ("left", text.endswith)):
        part = cuts.shorten(text, 500, direction)
        assert 500 <= len(part) <= 1000
        assert edge(part)
    assert cuts.shorten(text[:1000], 500, "right") == text[:1000]


@pytest.mark.parametrize("text", ["é" * 5000, "[CLS" * 2000, "x" * 5000 + " " * 9])
def test_a_text_without_a_safe_place_where_it_would_be_cut_is_left_whole(text: str) -> None:
    cuts = safe_cuts(changed(word_piece, added=AddedToken("S[C", normalized=False))())
    assert cuts is not None
    assert cuts.shorten(text, 500, "right") == text
    assert cuts.shorten(text, 500, "left") == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_pieces_has_its_tokens_in_their_places(kind: str) -> None:
    tokenizer = KINDS[kind]()
    cuts = safe_cuts(tokenizer)
    if cuts is None:
        pytest.skip("nowhere is it known to be safe")
    source, most = random.Random(kind), 0
    for text in fuzzed_texts(60, seed=17):
        long = " ".join([text, *source.choices(WORDS, k=30), text])
        whole = tokenizer.encode(long, add_special_tokens=False)
        found, end = [], 0
        pieces = list(cuts.pieces(long, 20))
        for before, start, stop in pieces:
            assert before <= start == end
            end = stop
            context = tokenizer.encode(long[before:start], add_special_tokens=False)
            part = tokenizer.encode(long[before:stop], add_special_tokens=False)
            places = [(first + before, last + before) for first, last in part.offsets]
            found += list(zip(part.ids, places, strict=True))[len(context.ids) :]
        assert end == len(long)
        assert found == list(zip(whole.ids, whole.offsets, strict=True))
        most = max(most, len(pieces))
    assert most > 3
