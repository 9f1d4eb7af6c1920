"""From samples to the file, the table and the picture."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from packhorse.errors import ConfigError
from packhorse.tools.bench import add_arguments, run
from packhorse.tools.bench.agreement import Agreement
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.bench.machine_load import CpuTimes, Load, between, read
from packhorse.tools.bench.physics import distance
from packhorse.tools.bench.picture import picture
from packhorse.tools.bench.results import (
    DISAGREES,
    FORMAT,
    OK,
    SKIPPED,
    Ladder,
    Run,
    RungResult,
    Sample,
    WorkloadResult,
    write,
)
from packhorse.tools.bench.results import read as read_results
from packhorse.tools.bench.summary import Rounds, measured
from packhorse.tools.bench.table import table
from packhorse.tools.bench.units import scaled
from packhorse.tools.bench.worker import Timing

AGREES = Agreement(10, 1e-6, 1e-7, 0.4, 1.0)
QUIET, BUSY = Load(0.01, 0.0), Load(0.7, 0.0)
CEILINGS = {"float32": [Ceiling(1e9, 1e9), Ceiling(1e9, 1e9), Ceiling(2e9, 1e9)]}


def rounds(
    seconds: list[float], texts: int = 10, load: list[Load | None] | None = None, fault: str = ""
) -> Rounds:
    """One rung on one workload; every round one of these times."""
    loads = load or [QUIET] * len(seconds)
    return Rounds(
        workload="reviews",
        tokens=25 * texts,
        nominal_flops=1_000_000 * texts,
        dtype="float32",
        agreement=AGREES,
        timings=[Timing(texts, s, 2 * s, 2_000_000 * texts, 5_000_000, 1e-6, None) for s in seconds]
        if not fault
        else [Timing(texts, s, 2 * s, 0, 0, None, fault) for s in seconds],
        samples=[
            Sample(i, s, 2 * s, each, each)
            for i, (s, each) in enumerate(zip(seconds, loads, strict=True))
        ],
    )


def ladder(**changes: object) -> Ladder:
    """A ladder of four rungs: one slow, one fast, one wrong, one skipped."""
    naive, fast = rounds([2.0, 4.0, 3.0], texts=5), rounds([0.1, 0.1, 0.1])
    rows = [measured(each, 2, CEILINGS, naive, None) for each in (naive, fast)]
    wrong = dataclasses.replace(
        rows[1], agreement=dataclasses.replace(AGREES, fault="a logit is off by 3")
    )
    made = Ladder(
        format=FORMAT,
        run=Run(
            "2026-01-02T03:04:05+0000",
            "packhorse bench ladder",
            None,
            {"cpu": "A <fast> & small processor", "cpus": 2, "threads": 2, "gpus": []},
            {"torch": "2.13.0", "transformers": None},
        ),
        device="cpu",
        dtype="float32",
        model="tiny",
        model_note="random weights",
        shape={"layers": 2, "hidden": 4, "intermediate": 8, "labels": 2},
        reference="Transformers in float32.",
        rounds=3,
        matmul_size=2048,
        ceilings=CEILINGS,
        workloads=[WorkloadResult("reviews", "10 reviews", 10, 10, 250, 40, 10**7, 9**7, 10**6)],
        rungs=[
            RungResult("naive", "One at a time.", OK, None, "float32", 1.0, [rows[0]]),
            RungResult("packed", "No padding & no <fuss>.", OK, None, "float32", 1.0, [rows[1]]),
            RungResult("wrong", "Too fast.", DISAGREES, "off", "float32", 1.0, [wrong]),
            RungResult("compile", "torch.compile.", SKIPPED, "needs a C++ compiler"),
        ],
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_ratios_are_medians_of_the_ratios_of_each_round() -> None:
    naive, fast = rounds([2.0, 40.0, 3.0], texts=5), rounds([1.0, 2.0, 1.0])
    row = measured(fast, 2, CEILINGS, naive, None)
    assert row.vs_naive == pytest.approx(6)  # of 4, 40 and 6; that of the medians would be 6 of 1.0
    assert row.vs_batched is None
    assert row.ms_per_1000 == pytest.approx(100_000)
    assert row.texts_per_second == pytest.approx(10)
    assert row.tokens_per_second == pytest.approx(250)


def test_shares_are_of_the_peak_of_the_same_round() -> None:
    row = measured(rounds([0.1, 0.1, 0.05]), 2, CEILINGS, None, None)
    assert row.nominal_share == pytest.approx(0.1)
    assert row.executed_share == pytest.approx(0.2)


def test_cpu_use_is_of_all_cores() -> None:
    row = measured(rounds([0.1, 0.1, 0.1]), 4, CEILINGS, None, None)
    assert row.cpu_percent == pytest.approx(50)
    assert row.cpu_seconds == pytest.approx(20)  # 0.2 s for 10 texts


def test_busy_samples_do_not_count() -> None:
    row = measured(rounds([1.0, 9.0, 1.2], load=[QUIET, BUSY, None]), 2, CEILINGS, None, None)
    assert row.ms_per_text == pytest.approx(110)
    assert not row.noisy
    assert len(row.samples) == 3


def test_a_busy_row_is_marked() -> None:
    row = measured(rounds([1.0, 9.0, 8.0], load=[QUIET, BUSY, BUSY]), 2, CEILINGS, None, None)
    assert row.ms_per_text == pytest.approx(800)
    assert row.noisy


def test_a_wrong_timed_round_is_a_fault_of_the_row() -> None:
    row = measured(rounds([1.0, 1.0], fault="a score is off"), 2, CEILINGS, None, None)
    assert row.agreement.fault == "a score is off"
    assert row.agreement.score_error is None


def test_others_load_is_what_is_not_ours() -> None:
    start, end = CpuTimes(10.0, 0.0, 100.0, 2), CpuTimes(16.0, 0.4, 104.0, 2)
    found = between(start, end, ours=4.0)
    assert found == Load(pytest.approx(0.25), pytest.approx(0.05))
    assert found is not None
    assert not found.is_quiet
    assert between(None, end, 0) is None


def test_a_hosts_counters_are_not_ours(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    line = "1 2 3 4 5 6 7 8 9 10"
    stat.write_text("\n".join([f"cpu  {line}", *(f"cpu{i} {line}" for i in range(999)), "intr 1"]))
    assert read(stat) is None
    assert read(tmp_path / "none") is None


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "ladder.json"
    write(ladder(), path)
    assert read_results(path) == ladder()
    content = json.loads(path.read_text())
    assert content["rungs"][0]["measured"][0]["samples"][1] == {
        "round": 1,
        "seconds": 4.0,
        "cpu_seconds": 8.0,
        "load_before": {"others": 0.01, "stolen": 0.0},
        "load_during": {"others": 0.01, "stolen": 0.0},
    }


@pytest.mark.parametrize("content", [None, "", "[]", '{"format": 1}'])
def test_another_file_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="is not a ladder's results"):
        read_results(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    write(ladder(format=99), tmp_path / "new.json")
    with pytest.raises(ConfigError, match="has format 99"):
        read_results(tmp_path / "new.json")


def test_the_table_names_every_rung_and_marks_what_is_special() -> None:
    lines = table(ladder()).splitlines()
    naive, packed, wrong, compiled = (line.split() for line in lines[2:6])
    assert naive[:3] == ["naive", "f32", "*600,000"]
    assert packed[:5] == ["packed", "f32", "10,000", "10.0", "60.0x"]
    assert wrong[:2] == ["wrong", "DISAGREES"]
    assert compiled == ["compile", "skipped"]
    assert "compile: skipped: needs a C++ compiler" in lines


def test_the_distance_is_that_of_the_best_honest_rung() -> None:
    text = distance(ladder())
    assert "at least 10.0 ms of arithmetic" in text
    assert "takes 100.0 ms, 10.0 times" in text
    assert "wrong" not in text


def test_the_picture_is_a_readable_svg() -> None:
    text = picture(ladder())
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    words = " ".join("".join(node.itertext()) for node in root.iter(f"{space}text"))
    for word in ("naive", "packed", "No padding & no <fuss>.", "DISAGREES", "SKIPPED", "60.0×"):
        assert word in words
    bars = [node for node in root.iter(f"{space}rect") if node.get("height") == "14"]
    assert len(bars) == 3
    assert all(0 < float(bar.get("width", "0")) < 960 for bar in bars)
    assert "prefers-color-scheme: dark" in text
    assert root.get("role") == "img"


def test_a_bar_is_longer_by_the_logarithm() -> None:
    root = ElementTree.fromstring(picture(ladder()))
    bars = [node for node in root.iter() if node.get("height") == "14"]
    slow, fast, _ = (float(bar.get("width", "0")) for bar in bars)
    decade = (960 - 2 * 24 - 230) / 2  # the axis runs from 1 to 100 texts a second
    assert slow == pytest.approx(0.2218 * decade, abs=0.1)  # 5 texts in 3 s
    assert fast == pytest.approx(2 * decade, abs=0.1)


def test_rendering_a_file_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(ladder(), tmp_path / "ladder.json")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    svg = tmp_path / "pictures" / "ladder.svg"
    arguments = ["ladder", "--render", str(tmp_path / "ladder.json"), "--svg", str(svg)]
    assert run(parser.parse_args(arguments)) == 1  # a rung in it disagrees
    assert "DISAGREES" in capsys.readouterr().out
    assert svg.read_text() == picture(ladder())


def test_numbers_have_three_digits() -> None:
    assert scaled(4.267e12, "FLOP") == "4.27 TFLOP"
    assert scaled(745.4e12, "FLOP/s") == "745 TFLOP/s"
    assert scaled(12.34e9, "B") == "12.3 GB"
    assert scaled(0.5, "s") == "0.50 s"
