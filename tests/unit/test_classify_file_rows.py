"""Readers and writers of rows: whatever the bytes are, nothing is lost, doubled or changed."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.errors import ConfigError
from packhorse.tools.files.tasks.ranked_labels import RankedLabels
from packhorse.tools.table_files import line_rows, lines
from packhorse.tools.table_files.added_columns import AddedColumn, score_texts, shortest
from packhorse.tools.table_files.columns import Columns
from packhorse.tools.table_files.formats import Format, input_format, output_format
from packhorse.tools.table_files.lines import LineReader, LongLine
from packhorse.tools.table_files.opening import Input, make_writer, open_reader
from packhorse.tools.table_files.rows import Place, RowBatch

COLUMNS = Columns(("text",), ("label", "score"), ("--text-column",), "--prefix")


def label_columns(*labels: str) -> list[AddedColumn]:
    return RankedLabels("label", "score").columns(labels)


ANY_FILE = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

FIELD = st.text(st.sampled_from(' ab,;"\n\r\tü中\u2028\0'), max_size=6)
CSV_BYTES = st.lists(
    st.sampled_from([b"a", b",", b'"', b"\n", b"\r\n", b"\r", b"\xc3\xbc", b"\xff", b" "]),
    max_size=40,
).map(b"".join)


def batches(source: Input, size: int, start: Place | None = None) -> list[RowBatch]:
    reader = open_reader(source, COLUMNS, source.format)
    try:
        if start is not None:
            reader.go_to(start)
        return list(reader.batches(size))
    finally:
        reader.close()


def flat(found: list[RowBatch]) -> list[tuple[Any, ...]]:
    """All rows, good and bad, in the order of their numbers."""
    good = [
        (number, text, kept)
        for batch in found
        for number, text, kept in zip(batch.numbers, batch.texts, batch.kept, strict=True)
    ]
    bad = [(row.number, row.reason) for batch in found for row in batch.bad]
    return sorted([*good, *bad], key=lambda row: row[0])


def with_csv(folder: Path, content: bytes) -> Input:
    path = folder / "in.csv"
    path.write_bytes(content)
    return Input(str(path), Format.CSV)


@ANY_FILE
@given(st.lists(st.lists(FIELD, min_size=3, max_size=3), max_size=8))
def test_what_csv_writes_is_read(tmp_path: Path, records: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["id", "text", "x"], *records])
    found = batches(with_csv(tmp_path, text.getvalue().encode()), 3)
    assert [kept for batch in found for kept in batch.kept] == records
    assert [text for batch in found for text in batch.texts] == [row[1] for row in records]
    assert not any(batch.bad for batch in found)


@ANY_FILE
@given(st.lists(st.lists(FIELD, min_size=2, max_size=2), min_size=1, max_size=8))
def test_what_is_written_is_read_by_csv(tmp_path: Path, records: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["id", "text"], *records])
    source = with_csv(tmp_path, text.getvalue().encode())
    reader = open_reader(source, COLUMNS, Format.CSV)
    (batch,) = reader.batches(100)
    reader.close()
    writer = make_writer(source, reader, COLUMNS, Format.CSV, label_columns('a,"b"', "c\nd"))
    added = [["c\nd"] * len(batch), np.ones(len(batch), np.float32)]
    written = (writer.header() + writer.encode(batch, added)).decode()
    assert list(csv.reader(io.StringIO(written, newline=""), strict=True)) == [
        ["id", "text", "label", "score"],
        *([*record, "c\nd", "1.0"] for record in records),
    ]


@ANY_FILE
@given(CSV_BYTES, st.integers(1, 5))
def test_any_bytes_as_csv_are_the_same_rows_wherever_reading_goes_on(
    tmp_path: Path, content: bytes, size: int
) -> None:
    source = with_csv(tmp_path, b"id,text\n" + content)
    at_once = batches(source, 1000)
    in_steps = batches(source, size)
    assert flat(in_steps) == flat(at_once)
    for index, batch in enumerate(in_steps):
        following = batches(source, size, batch.after)
        assert flat(following) == flat(in_steps[index + 1 :])
        assert [len(b) for b in following] == [len(b) for b in in_steps[index + 1 :]]


@ANY_FILE
@given(CSV_BYTES)
def test_a_row_that_stands_on_its_own_line_is_never_lost(tmp_path: Path, content: bytes) -> None:
    """Rubbish, then a row: it is read unless the rubbish quotes it, properly closed."""
    source = with_csv(tmp_path, b"id,text\n" + content + b"\nKEPT,row\n")
    rows = [row for row in flat(batches(source, 10)) if len(row) == 3]
    within_quotes = content.count(b'"') % 2 == 1
    assert ["KEPT", "row"] in [row[2] for row in rows] or within_quotes


def test_a_stray_quote_does_not_swallow_the_rows_after_it(tmp_path: Path) -> None:
    content = b'id,text\n1,"open\n2,a\n3,b\n4,"c"\n5,d\n'
    found = batches(with_csv(tmp_path, content), 10)
    assert [kept[0] for kept in found[0].kept] == ["2", "3", "4", "5"]
    assert [row.number for row in found[0].bad] == [2]


def test_a_quoted_field_of_many_lines_is_one_row(tmp_path: Path) -> None:
    text = "\n".join(f"line {i}" for i in range(1000))
    found = batches(with_csv(tmp_path, f'id,text\n1,"{text}"\n2,b\n'.encode()), 10)
    assert found[0].texts == [text, "b"]
    assert found[0].numbers == [2, 1002]


@ANY_FILE
@given(st.binary(max_size=60), st.integers(1, 4))
def test_any_bytes_as_text_are_as_many_rows_as_lines(
    tmp_path: Path, content: bytes, size: int
) -> None:
    content = b"." + content  # no byte order mark
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    found = batches(Input(str(path), Format.TEXT), size)
    parts = content.split(b"\n")
    if not parts[-1]:
        parts.pop()
    rows = flat(found)
    assert [row[0] for row in rows] == list(range(1, len(parts) + 1))
    for part, row in zip(parts, rows, strict=True):
        try:
            assert row[1] == part.removesuffix(b"\r").decode() or row[1] == part.decode()
        except UnicodeDecodeError:
            assert "invalid UTF-8" in row[1]


JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


@ANY_FILE
@given(st.dictionaries(st.sampled_from(["text", "id", "x y", "ü"]), JSON_VALUE), st.booleans())
def test_any_object_is_a_row_or_a_bad_one(
    tmp_path: Path, value: dict[str, Any], ascii_only: bool
) -> None:
    path = tmp_path / "in.jsonl"
    line = json.dumps(value, ensure_ascii=ascii_only)
    path.write_bytes(line.encode())
    source = Input(str(path), Format.JSONL)
    (batch,) = batches(source, 10)
    if not isinstance(value.get("text"), str):
        assert [row.number for row in batch.bad] == [1]
        return
    assert batch.texts == [value["text"]]
    reader = open_reader(source, COLUMNS, Format.JSONL)
    reader.close()
    writer = make_writer(source, reader, COLUMNS, Format.JSONL, label_columns("no", 'y"es'))
    written = writer.encode(batch, [['y"es'], np.full(1, 0.25, np.float32)])
    assert written.startswith(line[:-1].encode())
    assert json.loads(written) == value | {"label": 'y"es', "score": 0.25}


@ANY_FILE
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_scores_read_back_as_they_were(scores: list[float]) -> None:
    array = np.array(scores, np.float32)
    texts = score_texts(array)
    assert np.array_equal(np.array([json.loads(text) for text in texts], np.float32), array)


@ANY_FILE
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_of_vectors_are_few_digits_and_read_back_as_they_were(numbers: list[float]) -> None:
    for dtype in (np.float32, np.float16):
        with np.errstate(over="ignore"):
            array = np.array(numbers).astype(dtype)
        array = array[np.isfinite(array)]
        few = shortest(array)
        assert np.array_equal(few.astype(dtype), array)
        sizes = np.abs(array.astype(np.float64))
        usual = (sizes > 1e-12) & (sizes < 1e6)
        assert all(len(repr(x).lstrip("-0.").split("e")[0]) <= 11 for x in few[usual].tolist())


def test_a_batch_ends_early_where_texts_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_rows, "MAX_BATCH_CHARACTERS", 100)
    path = tmp_path / "in.txt"
    path.write_text(f"{'a' * 60}\n{'b' * 60}\nc\nd\n")
    found = batches(Input(str(path), Format.TEXT), 10)
    assert [len(batch) for batch in found] == [2, 2]


def test_long_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(lines, "_SKIPPED_AT_ONCE", 3)
    path = tmp_path / "in.txt"
    for long in (b"x" * 11, b"x" * 50):
        path.write_bytes(b"a\n" + b"y" * 9 + b"\n" + long + b"\nb\n" + long)
        reader = LineReader(str(path))
        found = []
        while (line := reader.next_line()) is not None:
            found.append(len(line) if isinstance(line, LongLine) else line)
        assert found == [b"a\n", b"y" * 9 + b"\n", len(long) + 1, b"b\n", len(long)]
        assert reader.place == Place(path.stat().st_size, 5)
        reader.close()


def test_lines_that_are_given_back_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\nbb\nccc\n")
    reader = LineReader(str(path))
    taken = [line for line in (reader.next_line() for _ in range(3)) if line is not None]
    reader.give_back(taken[1:])
    assert reader.place == Place(2, 1)
    assert [reader.next_line(), reader.next_line(), reader.next_line()] == [b"bb\n", b"ccc\n", None]
    reader.close()


def test_how_much_of_a_file_is_read(tmp_path: Path) -> None:
    for name, content in (("in.txt", b"a\nb\n"), ("in.txt.gz", gzip.compress(b"a\nb\n"))):
        (tmp_path / name).write_bytes(content)
        reader = open_reader(Input(str(tmp_path / name), Format.TEXT), COLUMNS, Format.JSONL)
        list(reader.batches(1))
        assert reader.fraction() == 1.0
        reader.close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.txt", Format.TEXT),
        ("a.CSV", Format.CSV),
        ("a.b.tsv.gz", Format.TSV),
        ("a.ndjson", Format.JSONL),
        ("a.jsonl.gz", Format.JSONL),
        ("a.parquet", Format.PARQUET),
        ("-", Format.TEXT),
    ],
)
def test_formats_by_name(path: str, expected: Format) -> None:
    assert input_format(path, "auto") is expected
    assert input_format(path, "csv") is Format.CSV


def test_formats_that_fit_each_other() -> None:
    fitting = {(source, target) for source in Format for target in Format if fits(source, target)}
    strings = {Format.TEXT, Format.CSV, Format.TSV}
    tables = set(Format) - {Format.TEXT}
    assert fitting == {(s, t) for s in strings for t in tables} | {
        (Format.JSONL, Format.JSONL),
        (Format.PARQUET, Format.PARQUET),
    }


def fits(source: Format, target: Format) -> bool:
    try:
        return output_format("out", target, source) is target
    except ConfigError:
        return False


def test_labels_that_cannot_be_written_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\n")
    source = Input(str(path), Format.CSV, quoted=False)
    reader = open_reader(source, COLUMNS, Format.CSV)
    reader.close()
    with pytest.raises(ConfigError, match="'label' may hold the delimiter"):
        make_writer(source, reader, COLUMNS, Format.CSV, label_columns("a,b"))
