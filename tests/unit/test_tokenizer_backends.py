"""Which library serves, when that changes, and what threads and forks may do to it."""

import json
import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from packhorse.errors import (
    CheckpointError,
    ConfigError,
    InternalError,
    TokenizationError,
    ValidationError,
)
from packhorse.request import TextOrPair
from packhorse.tokenizing import backends as backends_module
from packhorse.tokenizing.backends import (
    Backend,
    NanotokenBackend,
    Rows,
    TokenizersBackend,
    may_use_threads,
)
from packhorse.tokenizing.choice import FAST, chosen_backend, first_difference
from packhorse.tokenizing.gigatoken_backend import FEW, MOST_CHARACTERS, GigatokenBackend
from packhorse.tokenizing.probes import probes
from packhorse.tokenizing.tokenizer import Tokenizer
from tests.tiny_tokenizers import BUILDERS, fuzzed_texts, saved, word_piece

KIND_FOR = {"nanotoken": "word_piece", "gigatoken": "byte_level", "tokenizers": "word_piece"}
"""What each library is tried on."""


def loaded(folder: Path, kind: str = "word_piece", **options: object) -> Tokenizer:
    return Tokenizer.load(saved(BUILDERS[kind](), folder), **options)  # type: ignore[arg-type]


class Wrong:
    """nanotoken, but every text with an x in it gets another last token."""

    name = "nanotoken"

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        rows = self._backend.rows(texts, special)
        for end in rows.bounds[1:][["x" in text for text in texts]]:
            rows.ids[end - 1] += 1
        return rows


class PanicException(BaseException):  # the name that a panic of Rust has in Python
    pass


class Failing:
    """A library that fails on every text with an x in it, quoting it."""

    name = "nanotoken"

    def __init__(self, backend: Backend, error: type[BaseException]) -> None:
        self._backend = backend
        self._error = error

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        for text in texts:
            if "x" in text:
                raise self._error(f"failed on {text}")
        return self._backend.rows(texts, special)


# At load.


@pytest.mark.parametrize("kind", ["word_piece", "word_piece_cased"])
def test_nanotoken_serves_where_it_gives_the_ids_of_the_reference(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tokenizer = loaded(tmp_path, kind)
    assert tokenizer.backend == "nanotoken"
    assert "it gives the ids of tokenizers for" in tokenizer.backend_reason
    assert f"tokenizer: nanotoken serves: {tokenizer.backend_reason}" in caplog.text


def test_gigatoken_serves_byte_level_bpe_where_it_gives_the_ids_of_the_reference(
    tmp_path: Path,
) -> None:
    tokenizer = loaded(tmp_path, "byte_level")
    assert tokenizer.backend == "gigatoken"
    assert "it gives the ids of tokenizers for" in tokenizer.backend_reason


def test_tokenizers_serves_what_no_fast_library_knows(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, "unigram")
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.backend_reason == "no fast library tokenises Unigram"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("byte_level", "nanotoken"),
        ("unigram", "nanotoken"),
        ("unigram", "gigatoken"),
        ("word_piece", "gigatoken"),
    ],
)
def test_a_library_asked_for_by_name_that_cannot_serve_is_an_error(
    tmp_path: Path, kind: str, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=f"{wanted} cannot serve this model: {wanted} does not"):
        loaded(tmp_path, kind, backend=wanted)


@pytest.mark.parametrize("kind", [*BUILDERS, "word_level"])
def test_old_files_that_do_not_name_their_kind_are_served(kind: str) -> None:
    """Before tokenizers 0.6 a model had no type: it is told by what the model holds."""
    if kind == "word_level":
        library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    else:
        library = BUILDERS[kind]()
    content = json.loads(library.to_str())
    del content["model"]["type"]
    try:
        reference = TokenizersBackend(json.dumps(content))
    except CheckpointError:
        pytest.skip(f"today's tokenizers does not read {kind} without a type either")
    backend, reason = chosen_backend("auto", json.dumps(content), reference, None)
    assert backend.name in ("tokenizers", *FAST.values())
    assert reason


def test_gigatoken_gives_the_same_rows_for_few_texts_for_many_and_for_huge_ones() -> None:
    reference = TokenizersBackend(BUILDERS["byte_level"]().to_str())
    backend = GigatokenBackend(reference.library.to_str(), reference)
    texts = list(fuzzed_texts(3 * FEW, seed=31))
    texts[FEW] = "good film " * (MOST_CHARACTERS // 100)  # a matrix of its own
    for some in (texts, texts[: FEW - 1], texts[:FEW], [""], []):
        for special in (True, False):
            ours, theirs = backend.rows(some, special), reference.rows(some, special)
            assert np.array_equal(ours.ids, theirs.ids)
            assert np.array_equal(ours.bounds, theirs.bounds)
            assert (ours.ids.dtype, ours.bounds.dtype) == (np.int32, np.int32)


def test_a_text_of_half_a_surrogate_is_refused_by_gigatoken_too(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, "byte_level")
    with pytest.raises(TokenizationError, match=r"inputs\[1\] is not Unicode text"):
        tokenizer.encode(["a", "\ud800"])
    assert tokenizer.backend == "gigatoken"


@pytest.mark.parametrize("kind", ["word_piece", "word_piece_cased", "byte_level"])
def test_a_slice_of_fuzzed_texts_gets_the_ids_of_the_reference(kind: str) -> None:
    assert_equal_on_fuzzed_texts(kind, 1500)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["word_piece", "word_piece_cased", "byte_level"])
def test_20_000_fuzzed_texts_get_the_ids_of_the_reference(kind: str) -> None:
    assert_equal_on_fuzzed_texts(kind, 20_000)


def assert_equal_on_fuzzed_texts(kind: str, count: int) -> None:
    text = BUILDERS[kind]().to_str()
    reference = TokenizersBackend(text)
    backend, reason = chosen_backend("auto", text, reference, None)
    assert backend.name in FAST.values(), reason
    texts = fuzzed_texts(count, seed=count)
    assert first_difference(backend, reference, texts) is None


def test_tokenizers_serves_where_it_is_asked_for(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, backend="tokenizers")
    assert (tokenizer.backend, tokenizer.backend_reason) == ("tokenizers", "it was asked for")


def test_tokenizers_serves_where_nanotoken_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    tokenizer = loaded(tmp_path)
    assert tokenizer.backend_reason == "nanotoken is not installed"
    assert tokenizer.backend == "tokenizers"
    with pytest.raises(ConfigError, match="not installed"):
        loaded(tmp_path, backend="nanotoken")
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    monkeypatch.setitem(sys.modules, "gigatoken.gigatoken_rs", None)
    tokenizer = loaded(tmp_path, "byte_level")
    assert tokenizer.backend_reason == ("gigatoken is not installed: pip install 'packhorse[bpe]'")
    assert tokenizer.backend == "tokenizers"


def test_tokenizers_serves_where_nanotoken_gives_other_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = NanotokenBackend.rows

    def wrong(self: NanotokenBackend, texts: Sequence[str], special: bool) -> Rows:
        rows = right(self, texts, special)
        if "[sep]" in texts:
            rows.ids[rows.bounds[texts.index("[sep]")]] += 1 - special
        return rows

    monkeypatch.setattr(NanotokenBackend, "rows", wrong)
    tokenizer = loaded(tmp_path)
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.backend_reason == "nanotoken gives other ids for '[sep]'"


def test_tokenizers_serves_where_nanotoken_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: NanotokenBackend, texts: Sequence[str], special: bool) -> Rows:
        raise PanicException

    monkeypatch.setattr(NanotokenBackend, "rows", failing)
    tokenizer = loaded(tmp_path)
    assert tokenizer.backend == "tokenizers"
    assert "nanotoken raised PanicException" in tokenizer.backend_reason


def test_the_probes_are_about_200_different_texts() -> None:
    texts = probes(word_piece())
    assert 180 <= len(set(texts)) == len(texts) <= 260
    assert any("[SEP]" in text for text in texts)


# While serving.


def test_a_difference_found_while_serving_makes_tokenizers_serve_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = loaded(tmp_path, shadow_share=1.0)
    tokenizer._libraries.serving = Wrong(tokenizer._libraries.serving)
    tokenizer.encode(["good film", "bad"])
    assert tokenizer.shadow_counts == (2, 0)
    assert tokenizer.backend == "nanotoken"

    texts: list[TextOrPair] = ["good", "secret xylophone", ("a", "secret fox"), "film"]
    found = tokenizer.encode(texts)
    assert found.input_ids.tolist() == tokenizer.encode(texts).input_ids.tolist()
    library = tokenizer.library.encode_batch(texts)
    assert found.input_ids.tolist() == [token for each in library for token in each.ids]
    assert tokenizer.shadow_counts == (6, 2)
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.backend_reason == "nanotoken gave other ids for a text while serving"
    assert "secret" not in caplog.text
    assert "16 characters, SHA-256 " in caplog.text

    tokenizer.encode(texts)
    assert tokenizer.shadow_counts[0] == 6


def test_a_length_that_only_one_library_finds_too_great_is_a_difference(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, shadow_share=1.0)

    class Short(Wrong):
        def rows(self, texts: Sequence[str], special: bool) -> Rows:
            return self._backend.rows([text[:9] for text in texts], special)

    tokenizer._libraries.serving = Short(tokenizer._libraries.serving)
    with pytest.raises(ValidationError, match=r"inputs\[1\] has 202 tokens"):
        tokenizer.encode(["good", "good " * 200], truncate=False)
    assert tokenizer.backend == "tokenizers"


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5])
def test_the_share_of_texts_that_is_checked(tmp_path: Path, share: float) -> None:
    tokenizer = loaded(tmp_path, shadow_share=share)
    for _ in range(10):
        tokenizer.encode(["good film"] * 200)
    for _ in range(400):
        tokenizer.encode(["good"])
    assert tokenizer.shadow_counts[0] == pytest.approx(2400 * share, abs=60)
    assert (tokenizer.shadow_counts[0] > 0) == (share > 0)
    assert tokenizer.backend == "nanotoken"


@pytest.mark.parametrize("error", [RuntimeError, PanicException])
def test_a_library_that_fails_is_replaced_and_the_request_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    tokenizer = loaded(tmp_path)
    tokenizer._libraries.serving = Failing(tokenizer._libraries.serving, error)
    assert tokenizer.encode(["good", "a xylophone"]).num_tokens > 5
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.backend_reason == f"nanotoken raised {error.__name__}"
    assert "xylophone" not in caplog.text


def test_a_failure_of_the_reference_itself_is_ours_and_quotes_nothing(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, backend="tokenizers")
    failing = Failing(tokenizer._libraries.reference, RuntimeError)
    libraries = tokenizer._libraries
    libraries.serving = libraries.reference = failing  # type: ignore[assignment]
    with pytest.raises(InternalError) as caught:
        tokenizer.encode(["a xylophone"])
    error: BaseException | None = caught.value
    while error is not None:
        assert "xylophone" not in repr(error)
        error = error.__cause__ or error.__context__


def test_an_interrupt_is_no_failure_of_the_library(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path)
    tokenizer._libraries.serving = Failing(tokenizer._libraries.serving, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode(["x"])
    assert tokenizer.backend == "nanotoken"


# Threads and processes.


@pytest.mark.parametrize("backend", ["nanotoken", "gigatoken", "tokenizers"])
def test_threads_with_other_truncations_do_not_disturb_each_other(
    tmp_path: Path, backend: str
) -> None:
    tokenizer = loaded(tmp_path, KIND_FOR[backend], backend=backend, shadow_share=0.01)
    texts = [text * 3 for text in fuzzed_texts(200, seed=21)]
    pairs = list(zip(texts[:50], texts[50:100], strict=True))
    calls: list[Callable[[], list[int]]] = [
        lambda: tokenizer.encode(texts).input_ids.tolist(),
        lambda: tokenizer.encode(texts, direction="left").input_ids.tolist(),
        lambda: tokenizer.encode(pairs).input_ids.tolist(),
        lambda: tokenizer.encode(pairs, direction="left").input_ids.tolist(),
    ]
    alone = [call() for call in calls]
    with ThreadPoolExecutor(8) as pool:
        futures = [(i, pool.submit(calls[i])) for i in list(range(4)) * 12]
        for i, future in futures:
            assert future.result() == alone[i]
    assert tokenizer.shadow_counts[1] == 0


@pytest.mark.parametrize("backend", ["nanotoken", "gigatoken", "tokenizers"])
@pytest.mark.parametrize(
    ("setting", "parallel"),
    [
        (None, True),
        *(
            pytest.param(setting, parallel, marks=pytest.mark.long)
            for setting, parallel in ((None, None), ("true", True), ("false", True))
        ),
    ],
)
@pytest.mark.case(25)
def test_a_forked_child_answers_a_batch_after_its_parent_used_the_pool(
    tmp_path: Path, backend: str, setting: str | None, parallel: bool | None
) -> None:
    many = 64 if backend == "tokenizers" else 3000  # nanotoken uses its pool from a megabyte on
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from packhorse.tokenizing.tokenizer import Tokenizer
        from tests.tiny_tokenizers import BUILDERS, saved
        library = BUILDERS[{KIND_FOR[backend]!r}]()
        tokenizer = Tokenizer.load(
            saved(library, Path({str(tmp_path)!r})), backend={backend!r}, parallel={parallel}
        )
        texts = ["good film " * 90] * {many}
        before = tokenizer.encode(texts).input_ids.tolist()
        child = os.fork()
        if child == 0:
            signal.alarm(5)  # the default action ends a child that hangs
            os._exit(tokenizer.encode(texts).input_ids.tolist() != before)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tokenizer.encode(texts).input_ids.tolist() == before
    """
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    if setting is not None:
        environment["TOKENIZERS_PARALLELISM"] = setting
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=root, env=environment | {"PYTHONPATH": f"{root}/src:{root}"}, check=True, timeout=30,
    )  # fmt: skip


@pytest.mark.parametrize("parallel", [True, False])
def test_ids_do_not_depend_on_the_thread_pool(parallel: bool) -> None:
    text = word_piece().to_str()
    texts = fuzzed_texts(500, seed=22)
    for kind in (NanotokenBackend, TokenizersBackend):
        one, other = kind(text, parallel).rows(texts, True), kind(text, None).rows(texts, True)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.bounds, other.bounds)


def test_who_may_use_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_use_threads(None)
    assert may_use_threads(True)
    assert not may_use_threads(False)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    assert not may_use_threads(None)
    assert may_use_threads(True)
    monkeypatch.setattr(backends_module, "_IMPORTED_IN", -1)
    assert not may_use_threads(True)


@pytest.mark.parametrize("setting", ["", "off", "false", "FALSE", "f", "no", "n", "0"])
def test_where_the_pool_of_tokenizers_is_off_a_batch_starts_no_thread(
    tmp_path: Path, setting: str
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(word_piece().to_str())
    code = f"""
        import os
        from pathlib import Path
        from packhorse.tokenizing.backends import TokenizersBackend, pool_is_off
        assert pool_is_off()
        backend = TokenizersBackend(Path({str(file)!r}).read_text(), False)
        before = len(os.listdir("/proc/self/task"))
        assert len(backend.rows(["good film " * 90] * 64, True).lengths) == 64
        assert len(os.listdir("/proc/self/task")) == before
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": setting}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=30
    )


@pytest.mark.case(91)
def test_a_huge_text_does_not_stop_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "!" * 400_000
    backend = TokenizersBackend(word_piece().to_str(), parallel=False)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    slowest, last = 0.0, time.monotonic()
    begun = last
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(backend.rows, [text], True)
        while not reading.done():
            time.sleep(0.005)
            slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
    assert slowest < (last - begun) / 2  # all of it, if it kept the interpreter's lock
    assert reading.result().ids.tolist() == backend.library.encode(text).ids


def test_rows_are_replaced_in_place() -> None:
    rows = Rows(np.arange(6, dtype=np.int32), np.array([0, 1, 3, 6], np.int32))
    others = Rows(np.array([7, 8, 9], np.int32), np.array([0, 0, 3], np.int32))
    new = rows.replaced(np.array([0, 2]), others)
    assert new.ids.tolist() == [1, 2, 7, 8, 9]
    assert new.bounds.tolist() == [0, 0, 2, 5]
    assert new.lengths.tolist() == [0, 2, 3]
