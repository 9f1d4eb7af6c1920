"""``packhorse classify`` goes on after any interruption, and its output does not show it."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packhorse.checkpoint import DEMO_MODEL
from packhorse.tools.files.resume_state import identity_of_input
from tests.fake_encoder import Classify, Outcome, command, run

ROWS = 1000
BATCH = 10
TEXT = ("--input-format", "text", "--output-format", "jsonl")


def make_input(path: Path, rows: int = ROWS) -> Path:
    """Rows of which every seventh cannot be used (every 700th in Parquet)."""
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        texts = [None if i % 7 == 3 else f"text {i}" for i in range(rows)]
        table = arrow.table({"id": range(rows), "text": texts})
        parquet.write_table(table, path, row_group_size=rows // 4 + 1)
    elif path.suffix == ".csv":
        lines = [f'{i},"text\n{i}"' if i % 7 != 3 else f"{i}" for i in range(rows)]
        path.write_text("\n".join(["id,text", *lines]))
    else:
        lines = [
            json.dumps({"id": i, "text": f"ü {i}"}) if i % 7 != 3 else "{" for i in range(rows)
        ]
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def classify(source: Path, out: Path, *more: str) -> list[str | Path]:
    return ["classify", source, "-o", out, "--batch", str(BATCH), "-q", *more]


def errors_of(out: Path) -> bytes:
    return out.with_name(out.name + ".errors.jsonl").read_bytes()


def rows_done(out: Path) -> int:
    """Rows of the input that the state counts; 0 while there is none."""
    try:
        state = json.loads(out.with_name(out.name + ".partial.json").read_text())
    except FileNotFoundError:
        return 0
    return int(state["counts"]["rows"] + state["counts"]["skipped"])


def run_until_killed(arguments: list[str | Path], out: Path, rows: int) -> int | None:
    """Kill -9 the run once ``rows`` are done, and a random moment later. None if it ended first."""
    environment = os.environ | {"FAKE_DELAY": "0.008"}
    with subprocess.Popen(
        command(*arguments), env=environment, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and rows_done(out) < rows:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.02))
        if process.poll() is not None:
            assert process.returncode == 0
            return None
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return rows_done(out)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Classify:
    """A run in this process."""
    return Classify(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("suffix", "kills"),
    [
        (".jsonl.gz", 1),
        (".csv", 2),
        pytest.param(".jsonl", 3, marks=pytest.mark.long),
        pytest.param(".parquet", 2, marks=pytest.mark.long),
    ],
)
def test_kill_9_again_and_again(tmp_path: Path, here: Classify, suffix: str, kills: int) -> None:
    source = make_input(tmp_path / f"in{suffix}")
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert here(*classify(source, whole)[1:]).code == 0
    progress, killed = 0, 0
    for _ in range(kills):
        reached = run_until_killed(classify(source, out), out, progress + ROWS // 5)
        if reached is None:
            break
        assert progress < reached < ROWS
        assert not out.exists()
        progress, killed = reached, killed + 1
    assert killed >= 1
    finished = here("-o", out, source, "--batch", str(BATCH))
    assert finished.code == 0, finished.err
    assert f"going on after {'row' if suffix == '.parquet' else 'line'} " in finished.err
    assert out.read_bytes() == whole.read_bytes()
    assert errors_of(out) == errors_of(whole)
    assert not out.with_name(out.name + ".partial").exists()
    assert not out.with_name(out.name + ".partial.json").exists()


@pytest.mark.long
def test_kill_9_at_any_moment(tmp_path: Path, long_seconds: float) -> None:
    """From the first instruction on, for as long as there is time, and four times at least."""
    source = make_input(tmp_path / "in.jsonl", 20 * BATCH)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    begun = time.monotonic()
    run(*classify(source, whole))
    once = time.monotonic() - begun  # most of which is the start
    end = time.monotonic() + long_seconds
    kills = 0
    while time.monotonic() < end or kills < 4:
        while not out.exists():
            with subprocess.Popen(
                command(*classify(source, out)),
                env=os.environ | {"FAKE_DELAY": "0.01"},
                stderr=subprocess.DEVNULL,
            ) as process:
                time.sleep(random.uniform(0, 1.5 * once))
                process.kill()
            kills += process.returncode != 0
        run(*classify(source, out))
        assert out.read_bytes() == whole.read_bytes()
        assert errors_of(out) == errors_of(whole)
        for path in tmp_path.glob("out.jsonl*"):
            path.unlink()


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_death_at_each_step_to_the_disk(tmp_path: Path, here: Classify, suffix: str) -> None:
    source = make_input(tmp_path / f"in{suffix}", 20)
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert here(*classify(source, whole)[1:]).code == 0
    steps = subprocess.run(
        [sys.executable, "-m", "tests.crash_points", out, whole, *classify(source, out)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert steps.returncode == 0, steps.stderr
    assert int(steps.stdout) >= 12


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, here: Classify) -> None:
    source, out = make_input(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    with subprocess.Popen(
        command(*classify(source, out)),
        env=os.environ | {"FAKE_DELAY": "0.05"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and rows_done(out) < 50:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on from there" in told
    assert told.endswith("packhorse: interrupted\n")
    assert "Traceback" not in told
    before = rows_done(out)
    assert before >= 50
    assert here(*classify(source, out)[1:]).code == 0
    texts = [json.loads(line)["id"] for line in out.read_text().splitlines()]
    assert texts == [i for i in range(ROWS) if i % 7 != 3]


@pytest.mark.parametrize("by_name", [False, True])
def test_ctrl_c_while_waiting_for_a_stream(tmp_path: Path, by_name: bool) -> None:
    """The stream stays open: nothing more comes, and its end does not either."""
    read, write = os.pipe()
    os.write(write, b"a\n")
    with subprocess.Popen(
        command("classify", f"/dev/fd/{read}" if by_name else "-", "-o", "-", *TEXT),
        stdin=read,
        pass_fds=[read],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "packhorse-demo" in process.stderr.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert (process.returncode, told) == (130, "packhorse: interrupted\n")
    os.close(read)
    os.close(write)


def test_standard_input_to_standard_output() -> None:
    done = run("classify", "-", "-o", "-", "--output-format", "tsv", "-q", input="a\nb\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["text", "a", "b"]


def test_a_pipe_with_a_name_is_read_once(tmp_path: Path) -> None:
    fifo, out = tmp_path / "in.txt", tmp_path / "out.csv"
    os.mkfifo(fifo)
    with subprocess.Popen(command("classify", fifo, "-o", out, "-q")) as process:
        fifo.write_text("a\nb\n")
    assert process.returncode == 0
    assert len(out.read_text().splitlines()) == 3


def test_a_reader_of_the_output_that_goes_away(tmp_path: Path) -> None:
    source = make_input(tmp_path / "in.jsonl")
    with subprocess.Popen(
        command("classify", source, "-o", "-", "--batch", "10", "-q"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"FAKE_DELAY": "0.01"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in told
    assert "error" not in told


def test_two_runs_cannot_write_one_output(tmp_path: Path, here: Classify) -> None:
    source, out = make_input(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    with subprocess.Popen(
        command(*classify(source, out)),
        env=os.environ | {"FAKE_DELAY": "0.05"},
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None and rows_done(out) < 20:
            time.sleep(0.01)
        for more in ("--resume", "--restart", "--no-resume"):
            second = here(*classify(source, out, more)[1:])
            assert second.code == 2
            assert "another process is writing" in second.err
        process.kill()
    assert here(*classify(source, out)[1:]).code == 0
    assert len(out.read_text().splitlines()) == len([i for i in range(ROWS) if i % 7 != 3])


@pytest.fixture
def interrupted(tmp_path: Path, here: Classify) -> Interrupted:
    return Interrupted(tmp_path, here)


class Interrupted:
    """A run that a broken model ended after 20 of 41 rows; the model works now."""

    def __init__(self, folder: Path, classify: Classify) -> None:
        self.source, self.out = folder / "in.txt", folder / "out.jsonl"
        self.partial = folder / "out.jsonl.partial"
        self.state = folder / "out.jsonl.partial.json"
        self.classify = classify
        texts = [f"text {i}" for i in range(40)]
        self.source.write_text("\n".join([*texts[:20], "DEAD", *texts[20:]]))
        assert self.run().code == 1
        self.source.write_text("\n".join([*texts[:20], "LIVE", *texts[20:]]))
        state = json.loads(self.state.read_text())
        state["identity"]["input"] = identity_of_input(self.source)
        self.state.write_text(json.dumps(state))

    def run(self, *more: str) -> Outcome:
        return self.classify(self.source, "-o", self.out, "--batch", "10", *more)

    def rows(self) -> int:
        return len(self.out.read_text().splitlines())


def test_it_goes_on(interrupted: Interrupted) -> None:
    assert interrupted.partial.read_text().count("\n") == 20
    outcome = interrupted.run()
    assert outcome.code == 0
    assert "going on after line 20" in outcome.err
    assert "41 rows, 20 of them by an earlier run" in outcome.err
    assert interrupted.rows() == 41


def test_what_differs_is_told(interrupted: Interrupted) -> None:
    def refusal(*more: str) -> str:
        outcome = interrupted.run(*more)
        assert outcome.code == 2
        assert outcome.err.endswith("; begin again with --restart\n")
        return outcome.err.partition("changed: ")[2].partition(";")[0]

    assert refusal("--batch", "20") == "option batch"
    assert refusal("--top-k", "all") == "option columns, option top_k"
    assert refusal("--raw-scores", "--no-truncate") == "option raw_scores, option truncate"
    assert refusal("--truncation", "left") == "option direction"
    assert refusal("--dtype", "float32") == "option dtype"
    assert refusal("--threads", "97") == "option threads"
    assert refusal("--prefix", "x_") == "option columns"
    assert refusal("--input-format", "csv", "--text-column", "text 0") == (
        "option format, option texts"
    )
    os.utime(interrupted.source, ns=(1, 1))
    assert refusal() == "input modified"
    interrupted.source.write_text("other")
    assert refusal() == "input first bytes, input modified, input size"
    assert interrupted.partial.read_text().count("\n") == 20


def test_another_model_is_told(interrupted: Interrupted, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    outcome = interrupted.run("--model-id", str(folder))
    assert outcome.code == 2
    assert "model files, model folder, model id" in outcome.err


def test_restart_begins_again(interrupted: Interrupted) -> None:
    outcome = interrupted.run("--restart", "--raw-scores")
    assert outcome.code == 0
    assert "going on" not in outcome.err
    assert interrupted.rows() == 41


def test_no_resume_begins_again_and_keeps_no_state(interrupted: Interrupted) -> None:
    interrupted.source.write_text("a\n" * 20 + "DEAD\n")
    assert interrupted.run("--no-resume").code == 1
    assert not interrupted.state.exists()
    interrupted.source.write_text("a\n" * 20)
    assert interrupted.run().code == 0
    assert interrupted.rows() == 20


def test_standard_input_does_not_drop_an_interrupted_run(interrupted: Interrupted) -> None:
    outcome = interrupted.classify("-", "-o", interrupted.out)
    assert (outcome.code, "--restart" in outcome.err) == (2, True)
    assert interrupted.state.exists()


def test_an_old_output_is_replaced_only_at_the_end(interrupted: Interrupted) -> None:
    interrupted.out.write_text("old")
    assert interrupted.run().code == 0
    assert interrupted.rows() == 41


@pytest.mark.parametrize("damage", ["gone", "short", "state"])
def test_leavings_that_are_damaged_are_refused(interrupted: Interrupted, damage: str) -> None:
    if damage == "gone":
        interrupted.partial.unlink()
    elif damage == "short":
        interrupted.partial.write_text("")
    else:
        interrupted.state.write_text('{"identity": 3')
    outcome = interrupted.run()
    assert (outcome.code, "--restart" in outcome.err) == (2, True)
    assert interrupted.run("--restart").code == 0
    assert interrupted.rows() == 41
