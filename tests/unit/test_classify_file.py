"""``packhorse classify``: formats, columns, paths and rows that cannot be used."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse import cli
from packhorse.checkpoint import DEMO_MODEL, Checkpoint
from packhorse.config import Config
from packhorse.postprocess import ProblemType, scores_of
from packhorse.tools.files import model
from tests.fake_encoder import Classify, FakeEncoder, FakeModel

SECRET = "the-text-that-no-message-may-show"


@pytest.fixture
def classify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Classify:
    return Classify(monkeypatch, capsys)


@pytest.fixture
def three_labels(tmp_path: Path) -> Path:
    """A model folder with the labels red, green and blue."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    config = json.loads((folder / "config.json").read_text())
    labels = {"0": "red", "1": "green", "2": "blue, light"}
    (folder / "config.json").write_text(json.dumps(config | {"id2label": labels}))
    return folder


def expected(texts: list[Any], raw: bool = False) -> list[tuple[str, float]]:
    """Best label and score of each text by the stand-in."""
    encoder = FakeEncoder()
    logits = encoder.logits(encoder.encode(texts))
    scores = logits if raw else scores_of(logits, ProblemType.SINGLE_LABEL)
    best = scores.argmax(axis=1)
    return [
        (encoder.labels[i], float(row[i])) for i, row in zip(best.tolist(), scores, strict=True)
    ]


def rows_of(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter, strict=True))


def objects_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_labelled(rows: list[dict[str, Any]], texts: list[Any]) -> None:
    assert len(rows) == len(texts)
    for row, (label, score) in zip(rows, expected(texts), strict=True):
        assert row["label"] == label
        assert float(row["score"]) == pytest.approx(score, abs=1e-7)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


TEXTS = ["good", "", "  ", "bad\u2028line", "tab\there", "ünïcödé 中文", '"quoted"', "last"]


def test_text_to_jsonl(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "\n".join(TEXTS))
    outcome = classify(source, "-o", tmp_path / "out.jsonl")
    assert outcome.code == 0
    rows = objects_of_lines(tmp_path / "out.jsonl")
    assert [list(row) for row in rows] == [["text", "label", "score"]] * len(TEXTS)
    assert [row["text"] for row in rows] == TEXTS
    assert_labelled(rows, TEXTS)
    assert "8 rows, 0 skipped, 0 truncated" in outcome.err


def objects_of_lines(path: Path) -> list[dict[str, Any]]:
    """Lines end at a line feed only: str.splitlines knows more ends."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_text_to_a_table(tmp_path: Path, classify: Classify, suffix: str, delimiter: str) -> None:
    source = write(tmp_path / "in.txt", "\r\n".join(TEXTS) + "\r\n")
    out = tmp_path / f"out.{suffix}"
    assert classify(source, "-o", out).code == 0
    rows = rows_of(out, delimiter)
    assert [row["text"] for row in rows] == TEXTS
    assert_labelled(rows, TEXTS)


def test_csv_keeps_all_columns_in_order(tmp_path: Path, classify: Classify) -> None:
    records = [
        ["id", "text", "note, more"],
        ["1", "two\nlines", "a"],
        ["2", 'a "quoted", word', ""],
        ["3", "", " spaces "],
        ["4", "carriage\rreturn", "both\r\nends"],
        ["5", "ünï", "=1+1"],
    ]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(records)
    source = write(tmp_path / "in.csv", buffer.getvalue())
    assert classify(source, "-o", tmp_path / "out.csv").code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        written = list(csv.reader(file, strict=True))
    assert [record[:3] for record in written] == records
    assert written[0][3:] == ["label", "score"]
    assert_labelled(rows_of(tmp_path / "out.csv"), [record[1] for record in records[1:]])


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "\ufefftext,id\nx,1\n")
    assert classify(source, "-o", tmp_path / "out.csv").code == 0
    assert rows_of(tmp_path / "out.csv")[0]["text"] == "x"
    source = write(tmp_path / "in.txt", "\ufeffx\n")
    assert classify(source, "-o", tmp_path / "out.jsonl").code == 0
    assert objects_of(tmp_path / "out.jsonl")[0]["text"] == "x"


def test_a_delimiter(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "id;text\n1;a,b\n2;c\n")
    assert classify(source, "-o", tmp_path / "out.csv", "--delimiter", ";").code == 0
    assert (tmp_path / "out.csv").read_text().startswith("id;text;label;score\n1;a,b;")
    assert classify(source, "-o", tmp_path / "out.tsv", "--delimiter", ";").code == 0
    assert (tmp_path / "out.tsv").read_text().startswith("id\ttext\tlabel\tscore\n1\ta,b\t")


def test_a_delimiter_is_proposed_where_the_header_is_one_column(
    tmp_path: Path, classify: Classify
) -> None:
    source = write(tmp_path / "in.csv", "id;text\n1;a\n")
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 2
    assert "--delimiter" in outcome.err
    assert outcome.err.count("\n") == 1


def test_without_quotes(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.tsv", 'id\ttext\n1\t"an open quote\n2\t5" wide\n')
    out = tmp_path / "out.tsv"
    assert classify(source, "-o", out, "--no-quotes").code == 0
    lines = out.read_text().splitlines()
    assert [line.split("\t")[1] for line in lines] == ["text", '"an open quote', '5" wide']


def test_jsonl_keeps_every_byte_of_the_object(tmp_path: Path, classify: Classify) -> None:
    lines = [
        b'{"id": 12345678901234567890, "text": "a", "x": [1, {"y": null}], "z": 0.10}',
        b'{"text":"b","e":1e400, "dup":1,"dup":2 }',
        '  {"text": "\\u00fc ü", "empty": ""}  '.encode(),
        b'{"t": "", "text": "", "nested": {"label": 1}}',
    ]
    source = write(tmp_path / "in.jsonl", b"\n".join(lines) + b"\n\n  \n")
    out = tmp_path / "out.jsonl"
    outcome = classify(source, "-o", out)
    assert outcome.code == 0
    assert "4 rows, 0 skipped" in outcome.err
    written = out.read_bytes().splitlines()
    for line, result in zip(lines, written, strict=True):
        assert result.startswith(line.strip()[:-1].rstrip() + b', "label": "')
    assert_labelled([json.loads(line) for line in written], ["a", "b", "ü ü", ""])


def test_parquet(tmp_path: Path, classify: Classify) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [f"text {i}" for i in range(50)] + [None, "", "last"]
    table = arrow.table(
        {
            "id": arrow.array(range(53), arrow.int16()),
            "text": arrow.array(texts).dictionary_encode(),
            "list": [[i, i + 1] for i in range(53)],
            "when": arrow.array([None, *range(52)], arrow.timestamp("us", "UTC")),
        }
    ).replace_schema_metadata({"about": "a test"})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=20)
    out = tmp_path / "out.parquet"
    outcome = classify(tmp_path / "in.parquet", "-o", out, "--batch", "7")
    assert outcome.code == 0
    assert "row 51 skipped: column 'text' is null" in outcome.err
    written = parquet.read_table(out)
    assert written.column_names == ["id", "text", "list", "when", "label", "score"]
    assert written.schema.metadata[b"about"] == b"a test"
    assert written.schema.field("score").type == arrow.float32()
    kept = table.filter(table["text"].is_valid())
    for name in ("id", "list", "when"):
        assert written[name].equals(kept[name])
    assert_labelled(written.to_pylist(), [text for text in texts if text is not None])
    assert objects_of(tmp_path / "out.parquet.errors.jsonl") == [
        {"row": 51, "reason": "column 'text' is null"}
    ]


@pytest.mark.parametrize("name", ["in.txt", "in.csv"])
def test_strings_to_parquet(tmp_path: Path, classify: Classify, name: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    source = write(tmp_path / name, "text\na\nb\n")
    assert classify(source, "-o", tmp_path / "out.parquet").code == 0
    written = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["text"] for row in written] == (["text"] if name == "in.txt" else []) + ["a", "b"]


def test_parquet_without_rows(tmp_path: Path, classify: Classify) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), tmp_path / "in.pq")
    assert classify(tmp_path / "in.pq", "-o", tmp_path / "out.pq").code == 0
    assert parquet.read_table(tmp_path / "out.pq").column_names == ["text", "label", "score"]


def test_parquet_columns_are_checked(tmp_path: Path, classify: Classify) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(arrow.table({"text": [1], "label": ["a"]}), source)
    assert (
        "column 'text' is int64 instead of string"
        in classify(source, "-o", out, "--prefix", "my_").err
    )
    assert "already has a column 'label'" in classify(source, "-o", out).err
    assert (
        "0 columns 'body' among the columns text, label"
        in classify(source, "-o", out, "--prefix", "my_", "--text-column", "body").err
    )
    write(source, "PAR1 but no more")
    assert "cannot be read as Parquet" in classify(source, "-o", out).err


def test_parquet_without_pyarrow(
    tmp_path: Path, classify: Classify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    source = write(tmp_path / "in.parquet", "")
    outcome = classify(source, "-o", tmp_path / "out.parquet")
    assert outcome.code == 2
    assert 'pip install "packhorse[parquet]"' in outcome.err


def test_compressed_files(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv.gz", gzip.compress(b"text\na\nb\n"))
    assert classify(source, "-o", tmp_path / "out.csv").code == 0
    assert [row["text"] for row in rows_of(tmp_path / "out.csv")] == ["a", "b"]
    assert classify(source, "-o", tmp_path / "out.csv.gz", "--batch", "1").code == 0
    compressed = gzip.decompress((tmp_path / "out.csv.gz").read_bytes())
    assert compressed == (tmp_path / "out.csv").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [b"no gzip", gzip.compress(b"text\n" + b"a\n" * 99999)[:100]],
    ids=["no gzip", "cut short"],
)
def test_a_damaged_compressed_file_is_told(
    tmp_path: Path, classify: Classify, damage: bytes
) -> None:
    source = write(tmp_path / "in.csv.gz", damage)
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 2
    assert "in.csv.gz cannot be read after line" in outcome.err
    assert not (tmp_path / "out.csv").exists()


def test_pairs(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "b,a\n2,1\n4,3\n")
    out = tmp_path / "out.csv"
    assert classify(source, "-o", out, "--text-column", "a", "--pair-column", "b").code == 0
    assert_labelled(rows_of(out), [("1", "2"), ("3", "4")])
    source = write(tmp_path / "in.jsonl", '{"a":"1","b":"2"}\n{"a":"3"}\n{"a":"3","b":null}\n')
    out = tmp_path / "out.jsonl"
    outcome = classify(source, "-o", out, "--text-column", "a", "--pair-column", "b")
    assert_labelled(objects_of(out), [("1", "2")])
    assert "line 2 skipped: Object missing required field `b`" in outcome.err
    assert "line 3 skipped: Expected `str`, got `null` - at `$.b`" in outcome.err
    source = write(tmp_path / "in.txt", "")
    outcome = classify(source, "-o", out, "--pair-column", "b", "--overwrite")
    assert (outcome.code, "--pair-column needs a table" in outcome.err) == (2, True)


def test_several_labels_are_lists_in_jsonl(
    tmp_path: Path, classify: Classify, three_labels: Path
) -> None:
    source = write(tmp_path / "in.txt", "a\nb\n")
    for top_k, count in (("all", 3), ("2", 2), ("7", 3)):
        out = tmp_path / f"{top_k}.jsonl"
        arguments = ("--top-k", top_k, "--model-id", three_labels)
        assert classify(source, "-o", out, *arguments).code == 0
        for row in objects_of(out):
            assert list(row) == ["text", "labels", "scores"]
            assert len(set(row["labels"])) == count == len(row["scores"])
            assert row["scores"] == sorted(row["scores"], reverse=True)
        if count == 3:
            assert sum(objects_of(out)[0]["scores"]) == pytest.approx(1, abs=1e-6)


def test_several_labels_are_columns_in_csv(
    tmp_path: Path, classify: Classify, three_labels: Path
) -> None:
    source = write(tmp_path / "in.txt", "a\nb\n")
    out = tmp_path / "out.csv"
    assert classify(source, "-o", out, "--top-k", "2", "--model-id", three_labels).code == 0
    rows = rows_of(out)
    assert list(rows[0]) == ["text", "label_1", "score_1", "label_2", "score_2"]
    assert all(float(row["score_1"]) >= float(row["score_2"]) for row in rows)
    assert {row["label_1"] for row in rows} <= {"red", "green", "blue, light"}


def test_several_labels_are_lists_in_parquet(
    tmp_path: Path, classify: Classify, three_labels: Path
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = write(tmp_path / "in.txt", "a\nb\n")
    out = tmp_path / "out.parquet"
    assert classify(source, "-o", out, "--top-k", "all", "--model-id", three_labels).code == 0
    table = parquet.read_table(out)
    assert table.schema.field("scores").type == arrow.list_(arrow.float32())
    assert [len(row["labels"]) for row in table.to_pylist()] == [3, 3]


def test_raw_scores(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "a\nb\n")
    out = tmp_path / "out.jsonl"
    assert classify(source, "-o", out, "--raw-scores").code == 0
    for row, (label, score) in zip(objects_of(out), expected(["a", "b"], raw=True), strict=True):
        assert (row["label"], row["score"]) == (label, pytest.approx(score, abs=1e-6))


def test_truncation(tmp_path: Path, classify: Classify) -> None:
    long = "a" + "b" * 1200 + "c"
    source = write(tmp_path / "in.txt", f"{long}\nshort\n")
    outcome = classify(source, "-o", tmp_path / "right.jsonl")
    assert "2 rows, 0 skipped, 1 truncated" in outcome.err
    assert_labelled(objects_of(tmp_path / "right.jsonl"), [long[:1000], "short"])
    assert classify(source, "-o", tmp_path / "left.jsonl", "--truncation", "left").code == 0
    assert_labelled(objects_of(tmp_path / "left.jsonl"), [long[-1000:], "short"])
    outcome = classify(source, "-o", tmp_path / "none.jsonl", "--no-truncate")
    assert "line 1 skipped: is too long" in outcome.err
    assert_labelled(objects_of(tmp_path / "none.jsonl"), ["short"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.csv", "text,label\na,b\n"),
        ("in.csv", "text,score\na,b\n"),
        ("in.jsonl", '{"text": "a", "label": null}\n'),
        ("in.jsonl", '{"text": "a", "score": [1]}\n'),
    ],
)
def test_a_column_that_is_there_already(
    tmp_path: Path, classify: Classify, name: str, content: str
) -> None:
    source, out = write(tmp_path / name, content), tmp_path / f"out{Path(name).suffix}"
    outcome = classify(source, "-o", out)
    assert outcome.code == 2
    assert "--prefix" in outcome.err
    assert "--label-column" in outcome.err
    assert not out.exists()
    assert classify(source, "-o", out, "--prefix", "my_").code == 0
    assert "my_label" in out.read_text()
    names = ("--label-column", "tone", "--score-column", "sure", "--overwrite")
    assert classify(source, "-o", out, *names).code == 0
    assert "tone" in out.read_text()


def test_a_ranked_column_that_is_there_already(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "text,score_2\na,b\n")
    outcome = classify(source, "-o", tmp_path / "out.csv", "--top-k", "all")
    assert (outcome.code, "already has a column 'score_2'" in outcome.err) == (2, True)


def test_a_column_that_only_some_objects_have(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "a"}\n{"text": "b", "label": 1}\n')
    outcome = classify(source, "-o", tmp_path / "out.jsonl")
    assert outcome.code == 0
    assert "line 2 skipped: it already has a column 'label'" in outcome.err
    assert len(objects_of(tmp_path / "out.jsonl")) == 1


def test_no_column_of_that_name(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "id,body\n1,a\n")
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 2
    assert "no column 'text' but the columns id, body; name" in outcome.err
    assert "--text-column" in outcome.err


def test_a_file_without_header_is_not_quoted(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", f"1,{SECRET} and more\n2,b\n")
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 2
    assert "no column 'text' but 2 columns" in outcome.err
    assert SECRET not in outcome.err


@pytest.mark.parametrize("content", ["", "\n", "text,text\n"])
def test_a_header_that_is_no_use(tmp_path: Path, classify: Classify, content: str) -> None:
    source = write(tmp_path / "in.csv", content)
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 2
    assert "header" in outcome.err or "2 columns 'text'" in outcome.err


def test_two_columns_of_one_name(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.csv", "text,a,a\nx,1,2\n")
    assert classify(source, "-o", tmp_path / "out.csv").code == 0
    assert (tmp_path / "out.csv").read_text().startswith("text,a,a,label,score\nx,1,2,")
    outcome = classify(source, "-o", tmp_path / "out.jsonl")
    assert (outcome.code, "two columns of the same name" in outcome.err) == (2, True)


def test_utf16_is_refused(tmp_path: Path, classify: Classify) -> None:
    for name in ("in.txt", "in.csv"):
        source = write(tmp_path / name, "text\na\n".encode("utf-16"))
        outcome = classify(source, "-o", tmp_path / "out.csv")
        assert (outcome.code, "is UTF-16" in outcome.err) == (2, True)


BAD_JSON = [
    (b'{"text": "x"', "invalid JSON"),
    (b"[1]", "Expected `object`, got `array`"),
    (b'"x"', "Expected `object`, got `str`"),
    (b"x", "invalid JSON"),
    (b'{"text": 1}', "Expected `str`, got `int` - at `$.text`"),
    (b'{"text": null}', "Expected `str`, got `null` - at `$.text`"),
    (b'{"text": ["x"]}', "Expected `str`, got `array` - at `$.text`"),
    (b'{"txt": "x"}', "Object missing required field `text`"),
    (b'{"text": "x", "y": NaN}', "invalid JSON"),
    (b'{"text": "x", "y": "\xff"}', "invalid UTF-8 at byte 21 of the line"),
    (b'{"text": "\\ud800"}', "invalid JSON"),
    (b'{"text": "x", "y": ' + b"[" * 100000, "nested too deeply"),
    (b'{"text": "UNTOKENISABLE"}', "is not Unicode"),
    (b'{"text": "NONFINITE"}', "has no answer"),
    (b'{"text": "BROKEN"}', "has no answer"),
]


def test_bad_rows_are_told_and_cost_no_other(tmp_path: Path, classify: Classify) -> None:
    lines = [line for index, (bad, _) in enumerate(BAD_JSON) for line in (good(index), bad)]
    source = write(tmp_path / "in.jsonl", b"\n".join(lines))
    out = tmp_path / "out.jsonl"
    for batch in (1, 4, 1000):
        outcome = classify(source, "-o", out, "--overwrite", "--batch", str(batch))
        assert outcome.code == 0
        assert [row["text"] for row in objects_of(out)] == [f"good {i}" for i in range(15)]
        assert_labelled(objects_of(out), [f"good {i}" for i in range(15)])
        listed = objects_of(tmp_path / "out.jsonl.errors.jsonl")
        assert [row["line"] for row in listed] == list(range(2, 31, 2))
        for row, (_, reason) in zip(listed, BAD_JSON, strict=True):
            assert reason in row["reason"]
            assert f"line {row['line']} skipped: {row['reason']}" in outcome.err
        assert "15 rows, 15 skipped" in outcome.err
        assert "out.jsonl.errors.jsonl" in outcome.err


def good(index: int) -> bytes:
    return json.dumps({"text": f"good {index}"}).encode()


def test_bad_rows_of_a_table(tmp_path: Path, classify: Classify) -> None:
    source = write(
        tmp_path / "in.csv",
        b'id,text\n1,a\n2\n3,b,c\n4,"two\nlines"\n5,"stray"x\n6,\xff\n\n7,"d"\n'
        b'8,"never closed\n9,e\n',
    )
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert outcome.code == 0
    rows = rows_of(tmp_path / "out.csv")
    assert [(row["id"], row["text"]) for row in rows] == [
        ("1", "a"),
        ("4", "two\nlines"),
        ("7", "d"),
        ("9", "e"),
    ]
    assert objects_of(tmp_path / "out.csv.errors.jsonl") == [
        {"line": 3, "reason": "number of fields: 1 instead of 2"},
        {"line": 4, "reason": "number of fields: 3 instead of 2"},
        {"line": 7, "reason": "',' expected after '\"'"},
        {"line": 8, "reason": "invalid UTF-8"},
        {"line": 11, "reason": "unexpected end of data"},
    ]


def test_an_empty_line_of_a_single_column_is_an_empty_text(
    tmp_path: Path, classify: Classify
) -> None:
    source = write(tmp_path / "in.csv", "text\na\n\nb\n")
    assert classify(source, "-o", tmp_path / "out.csv").code == 0
    assert [row["text"] for row in rows_of(tmp_path / "out.csv")] == ["a", "", "b"]


def test_only_the_first_bad_rows_are_told_one_by_one(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.jsonl", "x\n" * 50 + '{"text": "a"}\n')
    outcome = classify(source, "-o", tmp_path / "out.jsonl", "--batch", "8")
    assert outcome.err.count(" skipped: ") == 20
    assert "and 30 more skipped" in outcome.err
    assert len(objects_of(tmp_path / "out.jsonl.errors.jsonl")) == 50


def test_strict_is_code_1_with_the_whole_output(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.jsonl", 'x\n{"text": "a"}\n')
    out = tmp_path / "out.jsonl"
    assert classify(source, "-o", out, "--strict").code == 1
    assert len(objects_of(out)) == 1
    write(source, '{"text": "a"}\n')
    assert classify(source, "-o", out, "--strict", "--overwrite").code == 0
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()


def test_quiet_tells_of_bad_rows_only(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "a\n")
    assert classify(source, "-o", tmp_path / "out.jsonl", "--quiet").err == ""
    source = write(tmp_path / "in.jsonl", "x\n")
    outcome = classify(source, "-o", tmp_path / "bad.jsonl", "-q")
    assert "line 1 skipped" in outcome.err
    assert "rows," not in outcome.err


def test_a_broken_model_is_code_1_and_nothing_is_called_finished(
    tmp_path: Path, classify: Classify
) -> None:
    source = write(tmp_path / "in.txt", "good\n" * 4 + "DEAD\n" + "good\n" * 4)
    out = tmp_path / "out.jsonl"
    outcome = classify(source, "-o", out, "--batch", "4")
    assert outcome.code == 1
    assert "a device fault" in outcome.err
    assert not out.exists()
    assert len(objects_of(tmp_path / "out.jsonl.partial")) == 4


def test_what_is_switched_off_reaches_the_model(
    tmp_path: Path, classify: Classify, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def remembering(config: Config, checkpoint: Checkpoint) -> FakeModel:
        given.append(config.engine.without)
        return FakeModel(config, checkpoint)

    monkeypatch.setattr(model, "load", remembering)
    source = write(tmp_path / "in.txt", "good\n")
    assert classify(source, "-o", tmp_path / "a.jsonl").code == 0
    assert classify(source, "-o", tmp_path / "b.jsonl", "--without", "overlap,graphs").code == 0
    assert given == [(), ("overlap", "graphs")]


def test_a_run_goes_on_only_with_the_same_switched_off(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "good\n" * 4 + "DEAD\n")
    run = (source, "-o", tmp_path / "out.jsonl", "--batch", "4", "--without")
    assert classify(*run, "overlap,graphs").code == 1
    other = classify(*run, "overlap")
    assert (other.code, "changed: option without;" in other.err) == (2, True)
    assert "going on after line 4" in classify(*run, "graphs,overlap").err


def test_info_names_the_tokenizer_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json", "--without", "fast-tokenizer"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["tokenizer"] == "tokenizers"


LOCKING = """
import sys
if sys.argv[2] == "without":
    sys.modules["fcntl"] = None
from pathlib import Path
from packhorse.tools.files.partial_output import PartialOutput
from packhorse.tools.files.resume_state import RunState
outputs = [PartialOutput(Path(sys.argv[1]), RunState({}), True) for _ in range(2)]
"""


@pytest.mark.parametrize(("fcntl", "code"), [("with", 1), ("without", 0)])
def test_files_are_locked_where_the_system_has_locks(tmp_path: Path, fcntl: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCKING, str(tmp_path / "out"), fcntl],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert code == 0 or "another process is writing" in done.stderr


def test_no_message_and_no_file_but_the_output_shows_a_text(
    tmp_path: Path, classify: Classify
) -> None:
    bad = [
        f'{{"text": "{SECRET}"',
        f'{{"text": ["{SECRET}"]}}',
        f'"{SECRET}"',
        f'{{"text": "{SECRET} UNTOKENISABLE"}}',
        f'{{"text": "{SECRET} NONFINITE"}}',
        f'{{"text": "{SECRET} BROKEN"}}',
        f'{{"text": "{SECRET * 40}"}}',
        f'{{"{SECRET}": 1}}',
    ]
    source = write(tmp_path / "in.jsonl", "\n".join(['{"text": "a"}', *bad]))
    outcome = classify(source, "-o", tmp_path / "out.jsonl", "--no-truncate")
    assert "1 rows, 8 skipped" in outcome.err
    assert SECRET not in outcome.err
    assert SECRET not in (tmp_path / "out.jsonl.errors.jsonl").read_text()
    source = write(tmp_path / "in.csv", f'text,b\n"{SECRET}"x,2\n{SECRET}\n')
    outcome = classify(source, "-o", tmp_path / "out.csv")
    assert "2 skipped" in outcome.err
    assert SECRET not in outcome.err


def test_standard_output(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "a\nb\n")
    assert classify(source, "-o", "-").code == 0
    assert_labelled([json.loads(line) for line in classify.out.splitlines()], ["a", "b"])
    assert classify(source, "-o", "-", "--output-format", "csv").code == 0
    assert classify.out.startswith("text,label,score\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no.txt", "-o", "out.csv"), "no.txt does not exist"),
        ((".", "-o", "out.csv", "--input-format", "text"), "is a folder"),
        (("in.txt", "-o", "folder", "--output-format", "csv"), "folder is not a regular file"),
        (("in.txt", "-o", "/dev/null", "--overwrite"), "does not tell its format"),
        (("in.txt", "-o", "/dev/null", "--output-format", "csv", "--overwrite"), "-o - writes"),
        (("in.txt", "-o", "no/out.csv"), "no is not a folder"),
        (("in.dat", "-o", "out.csv"), "in.dat does not tell its format; say it with --input"),
        (("in.txt", "-o", "out.dat"), "out.dat does not tell its format; say it with --output"),
        (("in.txt", "-o", "out.txt"), "a text file has no place for more columns"),
        (("in.jsonl", "-o", "out.csv"), "rows of jsonl are written as jsonl only"),
        (("in.parquet", "-o", "out.csv"), "rows of parquet are written as parquet only"),
        (("in.txt", "-o", "-", "--output-format", "parquet"), "to standard output"),
        (("in.parquet.gz", "-o", "out.parquet"), "compressed in itself"),
        (("-", "-o", "-", "--input-format", "parquet"), "standard"),
        (("in.csv", "-o", "in.csv"), "in.csv is the input"),
        (("in.csv", "-o", "./folder/../in.csv"), "is the input"),
        (("in.csv", "-o", "link.csv"), "is the input"),
        (("o.csv.errors.jsonl", "-o", "o.csv", "--output-format", "jsonl"), "is the input"),
        (("in.txt", "-o", "there.csv"), "there.csv exists; replace it with --overwrite"),
        (("in.txt", "-o", "out.csv", "--device", "cuda:99"), "--device cuda:99: this machine"),
        (("in.txt", "-o", "out.csv", "--device", "tpu"), "is not one of auto, cpu, cuda"),
        (("in.txt", "-o", "out.csv", "--threads", "0"), "--threads: '0' is not valid"),
        (("in.txt", "-o", "out.csv", "--model-id", "./no"), "does not exist"),
        (("in.jsonl", "-o", "o.jsonl", "--pair-column", "text"), "must be two columns"),
        (("in.jsonl", "-o", "o.jsonl", "--score-column", "label"), "must have two names"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(
    tmp_path: Path,
    classify: Classify,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("in.txt", "in.csv", "in.jsonl", "in.parquet", "o.csv.errors.jsonl", "there.csv"):
        write(tmp_path / name, "text\n")
    (tmp_path / "link.csv").symlink_to("in.csv")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    outcome = classify(*arguments)
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.startswith("packhorse: error: ")
    assert outcome.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "there.csv").read_text() == "text\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("in.txt",),
        ("in.txt", "-o", "o.csv", "--top-k", "0"),
        ("in.txt", "-o", "o.csv", "--top-k", "some"),
        ("in.txt", "-o", "o.csv", "--batch", "0"),
        ("in.txt", "-o", "o.csv", "--truncation", "middle"),
        ("in.txt", "-o", "o.csv", "--delimiter", "ab"),
        ("in.txt", "-o", "o.csv", "--delimiter", '"'),
        ("in.txt", "-o", "o.csv", "--input-format", "xml"),
    ],
)
def test_wrong_usage_is_code_2(classify: Classify, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        classify(*arguments)
    assert caught.value.code == 2


def test_an_output_that_is_there_can_be_replaced(tmp_path: Path, classify: Classify) -> None:
    source, out = write(tmp_path / "in.txt", "a\n"), write(tmp_path / "out.csv", "old")
    assert classify(source, "-o", out).code == 2
    assert out.read_text() == "old"
    assert classify(source, "-o", out, "--overwrite").code == 0
    assert [row["text"] for row in rows_of(out)] == ["a"]


def test_nothing_is_left_but_the_output(tmp_path: Path, classify: Classify) -> None:
    source = write(tmp_path / "in.txt", "a\n")
    for name in ("out.csv", "out.jsonl", "out.parquet"):
        assert classify(source, "-o", tmp_path / name).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.txt",
        "out.csv",
        "out.jsonl",
        "out.parquet",
    ]


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl"])
def test_no_rows(tmp_path: Path, classify: Classify, name: str) -> None:
    source = write(tmp_path / name, "")
    assert classify(source, "-o", tmp_path / "out.jsonl").code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    if name == "in.txt":
        assert classify(source, "-o", tmp_path / "out.csv").code == 0
        assert (tmp_path / "out.csv").read_text() == "text,label,score\n"
