"""From batches to columns that are added, and the threads at both ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from packhorse.checkpoint import load_checkpoint
from packhorse.errors import InternalError, UnavailableError
from packhorse.request import Float32Array, Sequences
from packhorse.tools.files.prefetch import Behind, Prefetched
from packhorse.tools.files.progress import Progress
from packhorse.tools.files.resume_state import Counts
from packhorse.tools.files.row_answers import Answered, RowAnswers
from packhorse.tools.files.tasks.labels import LabelTask
from packhorse.tools.files.tasks.ranked_labels import RankedLabels
from packhorse.tools.table_files.rows import RowBatch, listed_columns
from tests.fake_encoder import FakeEncoder, FakeModel


def batch_of(texts: list[str], first: int = 1) -> RowBatch:
    batch = RowBatch()
    for index, text in enumerate(texts):
        batch.add(first + index, text, [text])
    return batch


def answers(encoder: FakeEncoder | None = None, **options: Any) -> RowAnswers:
    task = LabelTask(("text",), RankedLabels("label", "score", in_lists=True, **options))
    model: Any = FakeModel(None, load_checkpoint(), encoder)
    return RowAnswers(model, task)


def answered(texts: list[str], encoder: FakeEncoder | None = None, **options: Any) -> Answered:
    asked = answers(encoder, **options)
    (encoded,) = asked.encoded(batch for batch in [batch_of(texts)])
    return asked.answered(encoded)


def rows_of(result: Answered) -> list[tuple[str, float]]:
    return list(zip(*result.added, strict=True))


def one_by_one(texts: list[str]) -> list[tuple[str, float]]:
    return [rows_of(answered([text]))[0] for text in texts]


def test_every_place_of_a_bad_row() -> None:
    texts = [f"text {i}" for i in range(9)]
    whole = one_by_one(texts)
    for word in ("UNTOKENISABLE", "NONFINITE", "BROKEN"):
        for place in range(9):
            result = answered([*texts[:place], word, *texts[place + 1 :]])
            assert [row.number for row in result.batch.bad] == [place + 1]
            assert result.batch.texts == [*texts[:place], *texts[place + 1 :]]
            assert rows_of(result) == [*whole[:place], *whole[place + 1 :]]


def test_nothing_but_bad_rows() -> None:
    for word in ("UNTOKENISABLE", "NONFINITE", "BROKEN"):
        result = answered([word] * 3)
        assert len(result.batch) == 0
        assert [row.number for row in result.batch.bad] == [1, 2, 3]
        assert result.added == []


def test_bad_rows_of_the_reader_and_of_the_model_are_in_order() -> None:
    batch = batch_of(["UNTOKENISABLE", "a", "NONFINITE"], first=2)
    batch.bad += batch_of(["x"]).without({0: "unreadable"}).bad
    asked = answers()
    (encoded,) = asked.encoded(batch for batch in [batch])
    assert [row.number for row in asked.answered(encoded).batch.bad] == [1, 2, 4]


def test_a_model_that_is_dead_is_no_bad_row() -> None:
    with pytest.raises(InternalError):
        answered(["a", "DEAD", "b"])


def test_an_error_that_is_no_rows_fault_is_passed_on() -> None:
    class Closed(FakeEncoder):
        def logits(self, sequences: Sequences) -> Float32Array:
            raise UnavailableError("closed")

    with pytest.raises(UnavailableError):
        answered(["a"], Closed())


class Fixed(FakeEncoder):
    """The same logits for every row."""

    def logits(self, sequences: Sequences) -> Float32Array:
        return np.tile(np.array([[1.0, 1.0]], np.float32), (len(sequences), 1))


def test_ties_go_to_the_first_label() -> None:
    labels = list(load_checkpoint().labels)
    assert answered(["a"], Fixed()).added[0] == labels[:1]
    assert answered(["a"], Fixed(), top_k=None).added[0] == [labels]


def test_ranking_is_best_first_and_cut() -> None:
    texts = [f"text {i}" for i in range(50)]
    best, both = answered(texts).added, answered(texts, top_k=None).added
    assert both[1].shape == (50, 2)
    assert (both[1][:, 0] >= both[1][:, 1]).all()
    assert [labels[0] for labels in both[0]] == best[0]
    assert np.array_equal(both[1][:, 0], best[1])


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def test_prefetched_is_the_same_in_order() -> None:
    assert list(Prefetched(numbers(100))) == list(range(100))
    assert list(Prefetched(Prefetched(numbers(0)))) == []


def test_prefetched_runs_ahead_but_not_far() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = Prefetched(source(), depth=2)
    assert next(iter(ahead)) == 0
    end = time.monotonic() + 20
    while len(made) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    assert 3 <= len(made) <= 4
    ahead.close()


def test_an_error_comes_where_its_element_would() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("at the second")

    elements = iter(Prefetched(source()))
    assert next(elements) == 1
    with pytest.raises(ValueError, match="at the second"):
        next(elements)


def test_closing_early_ends_the_threads() -> None:
    before = threading.active_count()
    inner = Prefetched(numbers(1000))
    outer = Prefetched(inner)
    assert next(iter(outer)) == 0
    inner.close()
    outer.close()
    assert threading.active_count() == before


@pytest.mark.timeout(30)
def test_closing_wakes_who_waits_for_an_element_that_never_comes() -> None:
    never = threading.Event()

    def source() -> Iterator[int]:
        never.wait()
        yield 1

    inner = Prefetched(source())
    outer = Prefetched(inner)
    inner.close()
    outer.close()
    assert list(outer) == []
    never.set()


def test_behind_consumes_all_in_order_before_it_is_left() -> None:
    got: list[tuple[int, bool]] = []

    def consume(number: int, more: bool) -> None:
        time.sleep(0.001)
        got.append((number, more))

    with Behind(consume) as behind:
        for number in range(20):
            behind.put(number)
    assert [number for number, _ in got] == list(range(20))
    assert any(more for _, more in got)


def test_what_was_put_is_consumed_whatever_ended_the_block() -> None:
    got: list[int] = []

    def put_two() -> None:
        with Behind(lambda number, _: got.append(number)) as behind:
            behind.put(1)
            behind.put(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_two()
    assert got == [1, 2]


def test_an_error_of_the_consumer_is_raised_and_nothing_hangs() -> None:
    def consume(number: int, _: bool) -> None:
        if number == 1:
            raise OSError("disk full")
        got.append(number)

    got: list[int] = []

    def put_many() -> None:
        with Behind(consume) as behind:
            for number in range(1000):
                behind.put(number)

    with pytest.raises(OSError, match="disk full"):
        put_many()
    assert got == [0]


def test_an_error_of_the_last_element_is_raised_too() -> None:
    def consume(_: int, __: bool) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), Behind(consume) as behind:
        behind.put(1)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (["id", "my-text"], "the columns id, my-text"),
        (["id", "Some words"], "2 columns"),
        (["x" * 40], "1 columns"),
        ([f"c{i}" for i in range(31)], "31 columns"),
    ],
)
def test_columns_are_named_unless_they_look_like_texts(columns: list[str], shown: str) -> None:
    assert listed_columns(columns) == shown


def test_a_bar_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, quiet, shown in ((True, False, True), (True, True, False), (False, False, False)):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        progress = Progress(100, quiet)
        progress.start("a model")
        progress.advance(Counts(rows=150), 0.5)
        progress.tell("a line")
        progress.close()
        progress.summarise(Counts(rows=300, skipped=2, truncated=1), "in.csv")
        told = capsys.readouterr().err
        assert ("texts/s" in told.partition("packhorse: in.csv")[0]) is shown
        assert "packhorse: a line" in told
        summary = "packhorse: in.csv: 300 rows, 100 of them by an earlier run, 2 skipped, 1 trunc"
        assert (summary in told) is not quiet
