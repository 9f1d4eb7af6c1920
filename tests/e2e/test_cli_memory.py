"""``packhorse classify`` needs no more memory for a long file than for a short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import tiny_checkpoints
from tests.fake_encoder import run

BATCH = ("--batch", "256")

TEXT = "lorem ipsum dolor sit amet " * 10
LONG_TEXT = TEXT * 9
VERY_LONG_TEXT = LONG_TEXT * 10


def assert_flat(peaks: list[int], more: int) -> None:
    """What ``more`` bytes of rows add to the peak, in KiB, is less than half of what they weigh.

    A run that keeps them takes all of it, and more. The shorter run fills all that is bounded,
    too, however reader, model and writer come to run: the queues between them hold some ten
    batches, and a row group of Parquet is 32 MB of output. What is left is a few megabytes.
    """
    assert more > 40_000_000
    assert peaks[1] - peaks[0] < more / 2 / 1024, peaks


def peak(source: Path, name: str, *more: str) -> int:
    """Peak memory of a run over ``source``, in KiB."""
    note = source.with_suffix(".peak")
    out = source.with_name(name)
    done = run("classify", source, "-o", out, "-q", *more, environment={"FAKE_PEAK": str(note)})
    assert done.returncode == 0, done.stderr
    out.unlink()
    return int(note.read_text())


@pytest.mark.long
def test_six_times_the_rows_in_json_lines(tmp_path: Path) -> None:
    peaks = []
    for rows in (10_000, 60_000):
        source = tmp_path / f"{rows}.jsonl"
        with source.open("w") as file:
            file.writelines(f'{{"id": {i}, "text": "{i} {LONG_TEXT}"}}\n' for i in range(rows))
        peaks.append(peak(source, "out.jsonl", *BATCH))
    assert_flat(peaks, 50_000 * len(LONG_TEXT))


@pytest.mark.long
def test_six_times_the_rows_in_csv(tmp_path: Path) -> None:
    peaks = []
    for rows in (4000, 24_000):
        source = tmp_path / f"{rows}.csv"
        with source.open("w") as file:
            file.write("text\n")
            file.writelines(f"{i} {LONG_TEXT}\n" for i in range(rows))
        peaks.append(peak(source, "out.csv", *BATCH))
    assert_flat(peaks, 20_000 * len(LONG_TEXT))


@pytest.mark.long
def test_four_times_the_row_groups(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = arrow.schema([("id", arrow.int64()), ("text", arrow.string())])
    peaks = []
    for rows in (20_000, 80_000):  # of which 13,000 are a row group of the output
        source = tmp_path / f"{rows}.parquet"
        with parquet.ParquetWriter(source, schema) as writer:
            for start in range(0, rows, 2000):
                numbers = range(start, start + 2000)
                texts = [f"{i} {LONG_TEXT}" for i in numbers]
                writer.write_table(arrow.table({"id": numbers, "text": texts}, schema=schema))
        peaks.append(peak(source, "out.parquet", *BATCH))
    assert_flat(peaks, 60_000 * len(LONG_TEXT))


@pytest.mark.long
def test_one_huge_line_is_a_bad_row_and_costs_little(tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    rows = "".join(f'{{"text": "{i} {TEXT}"}}\n' for i in range(1000))
    small.write_text(rows)
    large.write_text(rows + json.dumps({"text": "x" * 100_000_000}) + "\n" + rows)
    assert_flat([peak(small, "out.jsonl"), peak(large, "out.jsonl")], 100_000_000)
    listed = (tmp_path / "out.jsonl.errors.jsonl").read_text()
    assert json.loads(listed) == {
        "line": 1001,
        "reason": "the line is longer than 8,000,000 bytes",
    }


@pytest.mark.long
def test_a_quote_that_is_never_closed_costs_little(tmp_path: Path) -> None:
    healthy, source = tmp_path / "healthy.csv", tmp_path / "in.csv"
    rows = [f"{i},{VERY_LONG_TEXT}\n" for i in range(4000)]
    healthy.write_text('id,text\n0,"open"\n' + "".join(rows[:400]))
    source.write_text('id,text\n0,"open\n' + "".join(rows))
    note, out = tmp_path / "peak", tmp_path / "out.csv"
    fewer = ("--batch", "16")
    done = run("classify", source, "-o", out, *fewer, environment={"FAKE_PEAK": str(note)})
    assert "line 2 skipped: the record is longer than 8,000,000 bytes" in done.stderr
    assert "4,000 rows, 1 skipped" in done.stderr
    peaks = [peak(healthy, "healthy.out.csv", *fewer), int(note.read_text())]
    assert_flat(peaks, 4000 * len(VERY_LONG_TEXT))


WIDTH = 8192


def embed(source: Path, folder: Path) -> int:
    """Peak memory in KiB of a process that embeds a file with a real model."""
    script = (
        "import sys; from packhorse import cli; code = cli.main(sys.argv[1:]); "
        "from tests.fake_encoder import peak_memory; print(peak_memory()); sys.exit(code)"
    )
    out = source.with_suffix(".out.parquet")
    command: list[str | Path] = [sys.executable, "-c", script, "embed", source, "-o", out, "-q"]
    command += ["--batch", "32", "--model-id", folder]
    done = subprocess.run(
        command,
        env=os.environ | {"DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 4 * WIDTH * source.read_bytes().count(b"\n") / 2
    out.unlink()
    return int(done.stdout)


@pytest.mark.long
def test_vectors_of_more_rows(tmp_path: Path) -> None:
    """They are far larger than the texts: 8192 numbers for a few words."""
    pytest.importorskip("pyarrow")
    folder = tiny_checkpoints.make_bert(tmp_path / "model", head="Model", num_labels=None, layers=1)
    tiny_checkpoints.add_modules(
        folder,
        {"type": "Pooling", "embedding_dimension": 32, "pooling_mode": "mean"},
        {
            "type": "Dense",
            "in_features": 32,
            "out_features": WIDTH,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "tensors": {"linear.weight": torch.randn(WIDTH, 32)},
        },
    )
    peaks = []
    for rows in (1500, 4000):  # of which 1000 are a row group of the output
        source = tmp_path / f"{rows}.txt"
        source.write_text("".join(f"text number {i}\n" for i in range(rows)))
        peaks.append(embed(source, folder))
    assert_flat(peaks, 2500 * 4 * WIDTH)
