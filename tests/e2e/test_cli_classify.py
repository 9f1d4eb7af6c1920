"""``packhorse classify`` and ``info`` as processes, with the real encoder."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import Encoder, cli
from packhorse.hardware import detect
from tests.fake_encoder import Outcome
from tests.tiny_checkpoints import shared

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


CPU = ("--device", "cpu", "--dtype", "float32")


def packhorse(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "packhorse.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


@pytest.fixture
def classify(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """In this process, where torch is imported already."""

    def run(*arguments: str | Path) -> Outcome:
        code = cli.main(["classify", *map(str, arguments), *CPU])
        return Outcome(code, capfd.readouterr().err)

    return run


def test_the_answers_are_those_of_the_library(
    tmp_path: Path, classify: Callable[..., Outcome]
) -> None:
    texts = ["I love it", "", "an awful, sad\nbook", "word " * 600, "I love it"]
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    outcome = classify(source, "-o", out, "--top-k", "all")
    assert outcome.code == 0
    assert "packhorse: packhorse-demo on cpu" in outcome.err
    assert "5 rows, 0 skipped, 1 truncated" in outcome.err
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with Encoder(device="cpu", dtype="float32") as encoder:
        answers = encoder.classify(texts)
    for row, text, answer in zip(rows, texts, answers, strict=True):
        assert row["text"] == text
        assert [row["label_1"], row["label_2"]] == [one.label for one in answer]
        for rank, one in enumerate(answer, 1):
            assert float(row[f"score_{rank}"]) == pytest.approx(one.score, abs=1e-5)


def test_too_long_texts_are_skipped_by_line(
    tmp_path: Path, classify: Callable[..., Outcome]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("fine\n" + "long " * 600 + "\nfine too\n")
    outcome = classify(source, "-o", tmp_path / "out.jsonl", "--no-truncate")
    assert outcome.code == 0
    assert "packhorse: line 2 skipped: " in outcome.err
    assert "input 0" not in outcome.err
    assert "2 rows, 1 skipped" in outcome.err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


@pytest.mark.long
def test_ctrl_c_while_the_model_works_and_then_on(
    tmp_path: Path, classify: Callable[..., Outcome]
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    texts = [
        f"This is text number {i}, and it is {'good' if i % 3 else 'bad'}." for i in range(200)
    ]
    source.write_text("\n".join(texts))
    arguments = (source, "-o", out, "--batch", "20")
    state = tmp_path / "out.jsonl.partial.json"
    with subprocess.Popen(
        [sys.executable, "-m", "packhorse.cli", "classify", *map(str, arguments), *CPU],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not state.exists():
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    again = classify(*arguments)
    assert again.code == 0
    assert "going on after line" in again.err
    assert classify(source, "-o", tmp_path / "whole.jsonl", "--batch", "20").code == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:9"])
@pytest.mark.parametrize("command", ["classify", "info", "serve"])
@pytest.mark.case(101)
def test_a_gpu_that_is_asked_for_and_not_there(tmp_path: Path, command: str, device: str) -> None:
    """In one line: no fallback that nobody asked for."""
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    arguments = [str(source), "-o", str(tmp_path / "out.csv")] if command == "classify" else []
    done = packhorse(command, *arguments, "--device", device, env=os.environ | WITHOUT_GPU)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"packhorse: error: --device {device}: this machine shows 0 usable"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.case(101)
def test_a_gpu_that_the_environment_hides_is_not_there() -> None:
    done = packhorse("serve", "--device", "cuda", env=os.environ | {"CUDA_VISIBLE_DEVICES": "9"})
    assert done.returncode == 2
    assert done.stderr.startswith("packhorse: error: --device cuda: this machine shows 0 usable")


@pytest.mark.case(101)
@pytest.mark.parametrize("visible", ["", "9"])
def test_auto_is_the_cpu_where_no_gpu_is_shown(visible: str) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    shown = json.loads(packhorse("info", "--json", env=environment).stdout)
    assert shown["settings"]["model"]["device"] == "cpu"
    assert shown["machine"]["gpus"] == []


@pytest.mark.case(97)
def test_threads_are_the_cores_that_may_be_used() -> None:
    def threads(*arguments: str, **options: Any) -> int:
        shown = json.loads(
            packhorse("info", "--json", "--device", "cpu", *arguments, **options).stdout
        )
        return int(shown["settings"]["engine"]["threads"])

    assert threads() == detect().cpus
    assert threads("--threads", "3") == 3
    if hasattr(os, "sched_setaffinity"):
        one = {min(os.sched_getaffinity(0))}
        assert threads(preexec_fn=lambda: os.sched_setaffinity(0, one)) == 1


LONG_RUN = """
import sys
from packhorse import cli
from tests.fake_encoder import peak_memory
code = cli.main(sys.argv[1:])
print(peak_memory())
sys.exit(code)
"""


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("model", ["tiny", "demo"])
def test_memory_of_two_hundred_thousand_lines(
    tmp_path: Path, request: pytest.FixtureRequest, model: str
) -> None:
    """Within 100 MB of what a tenth of the lines takes. The demo model takes some minutes."""
    few, many = (4_000, 8_000) if request.config.getoption("--slice") else (20_000, 200_000)
    peaks = []
    for rows in (few, many):
        source = tmp_path / f"{rows}.txt"
        line = "Text {} is quite good to read.\n" if model == "tiny" else "Good {}\n"
        source.write_text("".join(line.format(i) for i in range(rows)))
        arguments = ["classify", source, "-o", tmp_path / f"{rows}.jsonl", "-q", "--device", "cpu"]
        arguments += ["--model-id", shared()] if model == "tiny" else []
        done = subprocess.run(
            [sys.executable, "-c", LONG_RUN, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=2500,
            check=True,
        )
        peaks.append(int(done.stdout))
        assert len((tmp_path / f"{rows}.jsonl").read_text().splitlines()) == rows
    print(f"peak memory of {few:,} and {many:,} lines: {peaks} KiB")
    assert peaks[1] - peaks[0] < 100_000, peaks
