"""``packhorse classify`` needs no more memory for a long file than for a short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_checkpoints
from tests.fake_encoder import run

ALLOWED = 20_000
"""KiB by which the peak may differ; the long files are of 45,000 and more.

The short ones fill all that is bounded too, however reader, model and writer come to run: the
queues between them hold some ten batches, and a row group of Parquet is 32 MB of output.
"""

BATCH = ("--batch", "1024")

TEXT = "lorem ipsum dolor sit amet " * 10
LONG_TEXT = TEXT * 9


def peak(source: Path, name: str, *more: str) -> int:
    """Peak memory of a run over ``source``, in KiB."""
    note = source.with_suffix(".peak")
    out = source.with_name(name)
    done = run("classify", source, "-o", out, "-q", *more, environment={"FAKE_PEAK": str(note)})
    assert done.returncode == 0, done.stderr
    out.unlink()
    return int(note.read_text())


@pytest.mark.long
def test_two_hundred_thousand_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (20_000, 200_000):
        source = tmp_path / f"{rows}.jsonl"
        with source.open("w") as file:
            file.writelines(f'{{"id": {i}, "text": "{i} {TEXT}"}}\n' for i in range(rows))
        peaks.append(peak(source, "out.jsonl", *BATCH))
    assert peaks[1] - peaks[0] < ALLOWED, peaks


@pytest.mark.long
def test_ten_times_the_rows_in_csv(tmp_path: Path) -> None:
    peaks = []
    for rows in (4000, 40_000):
        source = tmp_path / f"{rows}.csv"
        with source.open("w") as file:
            file.write("text\n")
            file.writelines(f"{i} {LONG_TEXT}\n" for i in range(rows))
        peaks.append(peak(source, "out.csv", "--batch", "256"))
    assert peaks[1] - peaks[0] < ALLOWED, peaks


@pytest.mark.long
def test_three_times_the_row_groups(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = arrow.schema([("id", arrow.int64()), ("text", arrow.string())])
    peaks = []
    for rows in (120_000, 360_000):
        source = tmp_path / f"{rows}.parquet"
        with parquet.ParquetWriter(source, schema) as writer:
            for start in range(0, rows, 5000):
                numbers = range(start, start + 5000)
                texts = [f"{i} {TEXT}" for i in numbers]
                writer.write_table(arrow.table({"id": numbers, "text": texts}, schema=schema))
        peaks.append(peak(source, "out.parquet", *BATCH))
    assert peaks[1] - peaks[0] < ALLOWED, peaks


@pytest.mark.long
def test_one_huge_line_is_a_bad_row_and_costs_little(tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    rows = "".join(f'{{"text": "{i} {TEXT}"}}\n' for i in range(1000))
    small.write_text(rows)
    large.write_text(rows + json.dumps({"text": "x" * 50_000_000}) + "\n" + rows)
    before = peak(small, "out.jsonl")
    assert peak(large, "out.jsonl") - before < 100_000
    listed = (tmp_path / "out.jsonl.errors.jsonl").read_text()
    assert json.loads(listed) == {
        "line": 1001,
        "reason": "the line is longer than 8,000,000 bytes",
    }


@pytest.mark.long
def test_a_quote_that_is_never_closed_costs_little(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    rows = "".join(f"{i},{TEXT}\n" for i in range(40_000))
    source.write_text('id,text\n0,"open\n' + rows)
    note = tmp_path / "peak"
    out = tmp_path / "out.csv"
    done = run("classify", source, "-o", out, environment={"FAKE_PEAK": str(note)})
    assert "line 2 skipped: the record is longer than 8,000,000 bytes" in done.stderr
    assert "40,000 rows, 1 skipped" in done.stderr
    assert int(note.read_text()) < 180_000


def embed(source: Path, folder: Path) -> int:
    """Peak memory in KiB of a process that embeds a file with a real model."""
    script = (
        "import sys; from packhorse import cli; code = cli.main(sys.argv[1:]); "
        "from tests.fake_encoder import peak_memory; print(peak_memory()); sys.exit(code)"
    )
    out = source.with_suffix(".out.jsonl")
    command: list[str | Path] = [sys.executable, "-c", script, "embed", source, "-o", out, "-q"]
    command += ["--batch", "64", "--model-id", folder]
    done = subprocess.run(
        command,
        env=os.environ | {"DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().count(b"\n") == source.read_bytes().count(b"\n")
    return int(done.stdout)


@pytest.mark.long
def test_vectors_of_ten_times_the_rows(tmp_path: Path) -> None:
    """They are far larger than the texts: 384 numbers for a few words."""
    folder = tiny_checkpoints.make_bert(
        tmp_path / "model", head="Model", num_labels=None, hidden_size=384, layers=1
    )
    peaks = []
    for rows in (600, 6000):
        source = tmp_path / f"{rows}.txt"
        source.write_text("".join(f"text number {i}\n" for i in range(rows)))
        peaks.append(embed(source, folder))
    assert peaks[1] - peaks[0] < 20_000, peaks  # the output grows by 27 MB
