"""The comparison with other engines on a CPU: who runs, on which cores, and what is made of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.tools.bench import add_arguments, amx, run
from packhorse.tools.bench import rungs as ladder_rungs
from packhorse.tools.bench.agreement import Agreement, compare
from packhorse.tools.bench.machine_load import Load, read
from packhorse.tools.bench.programs.padded_batches import padded_batches
from packhorse.tools.bench.results import DISAGREES, FAILED, OK, SKIPPED, Run, Sample
from packhorse.tools.bench.rivals import configurations
from packhorse.tools.bench.rivals.command import plan_of, with_naive
from packhorse.tools.bench.rivals.configurations import CONFIGURATIONS, chosen, obstacle
from packhorse.tools.bench.rivals.cores import Core, pin
from packhorse.tools.bench.rivals.cores import chosen as chosen_cores
from packhorse.tools.bench.rivals.ratios import by_round, ratios
from packhorse.tools.bench.rivals.results import FORMAT, Comparison, Entry, write
from packhorse.tools.bench.rivals.table import table

BY_NAME = {rung.name: rung for rung in CONFIGURATIONS}
QUIET, BUSY = Load(0.0, 0.0), Load(0.9, 0.0)


def arguments(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["rivals", *line.split()])


def entry(
    name: str, seconds: list[float], dtype: str = "float32", load: list[Load] | None = None
) -> Entry:
    """10 texts a round."""
    loads = load or [QUIET] * len(seconds)
    return Entry(
        name,
        "Runs.",
        OK,
        dtype=dtype,
        has_amx=False,
        texts=10,
        texts_per_second=10 / sorted(seconds)[len(seconds) // 2],
        agreement=Agreement(10, 1e-4, 1e-5, 0.4, 1.0),
        samples=[
            Sample(i, s, s, QUIET, each)
            for i, (s, each) in enumerate(zip(seconds, loads, strict=True))
        ],
    )


def comparison(entries: list[Entry]) -> Comparison:
    machine = {"cpu": "a processor", "cpus": 2}
    return Comparison(
        format=FORMAT,
        run=Run("today", "packhorse bench rivals", None, machine, {"torch": "2", "nncf": None}),
        model="tiny",
        model_note="random",
        threads=2,
        cores=[0, 2],
        no_amx=True,
        rounds=3,
        texts=10,
        tokens=250,
        workload="10 reviews",
        reference="Transformers.",
        spread=0.4,
        entries=entries,
        ratios=ratios(entries),
    )


def test_configurations_are_chosen_by_name_or_by_family() -> None:
    assert [rung.name for rung in chosen("openvino-streams,naive")] == [
        "naive",
        *(f"openvino-streams-{short}" for short in ("fp32", "bf16", "int8")),
    ]
    assert len(chosen("openvino")) == 6
    assert [rung.name for rung in chosen("packhorse-bf16")] == ["packhorse-bf16"]
    assert chosen(None) == list(CONFIGURATIONS)
    with pytest.raises(ConfigError, match="'openv' is none, and begins none"):
        chosen("openv")


def test_names_are_distinct_and_every_type_has_a_bound_for_errors() -> None:
    assert len(BY_NAME) == len(CONFIGURATIONS)
    logits = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    for rung in CONFIGURATIONS:
        assert compare(logits, logits, 1.0, rung.precision).fault is None
        assert compare(logits[::-1], logits, 0.5, rung.precision).fault is not None


def test_what_cannot_run_is_skipped_by_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_rungs, "find_spec", lambda name: None if name == "openvino" else 1)
    monkeypatch.setattr(configurations, "detect", lambda: Hardware(2, frozenset()))
    assert obstacle(BY_NAME["openvino-fp32"]) == (
        "needs the package openvino: pip install openvino"
    )
    assert "multiply bfloat16" in str(obstacle(BY_NAME["transformers-bf16"]))
    assert obstacle(BY_NAME["onnxruntime-int8"]) is None
    assert obstacle(BY_NAME["packhorse-fp32"]) is None

    def refuses(*_: object) -> None:
        raise ConfigError("no int8 here")

    monkeypatch.setattr(configurations, "resolve", refuses)
    assert obstacle(BY_NAME["packhorse-int8"]) == "refused: no int8 here"
    monkeypatch.setattr(configurations, "detect", lambda: Hardware(2, frozenset({"amx_bf16"})))
    assert obstacle(BY_NAME["transformers-bf16"]) is None


def test_batches_are_sorted_by_length_and_lose_no_token() -> None:
    encoded = [[7], [1, 2, 3], [4, 5], [6, 8]]
    batches = list(padded_batches(encoded, 3, pad=9))
    assert [batch.rows.tolist() for batch in batches] == [[1, 2, 3], [0]]
    assert batches[0].ids.tolist() == [[1, 2, 3], [4, 5, 9], [6, 8, 9]]
    assert batches[0].mask.tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert [batch.is_padded for batch in batches] == [True, False]


def test_ratios_are_against_the_best_of_a_group_and_within_rounds() -> None:
    entries = [
        entry("transformers-fp32", [4, 4, 8]),
        entry("openvino-fp32", [2, 2, 4]),
        entry("openvino-bf16", [0.1, 0.1, 0.1], "bfloat16"),
        entry("packhorse-fp32", [1, 2, 1]),
    ]
    found = ratios(entries)
    assert [(ratio.ours, ratio.rival) for ratio in found] == [("packhorse-fp32", "openvino-fp32")]
    assert found[0].rounds == [2.0, 1.0, 4.0]
    assert found[0].ratio == 2.0
    wrong = dataclasses.replace(entries[1], status=DISAGREES, fault="wrong")
    assert ratios([entries[0], wrong, entries[3]])[0].rival == "transformers-fp32"
    assert ratios(entries[:3]) == []


def test_rounds_with_other_load_do_not_count() -> None:
    busy_once = entry("packhorse-fp32", [1, 1, 9], load=[QUIET, QUIET, BUSY])
    rival = entry("openvino-fp32", [2, 3, 2])
    assert by_round(busy_once, rival) == pytest.approx([2.0, 3.0])
    never = entry("openvino-fp32", [2, 3, 9], load=[BUSY, BUSY, QUIET])
    assert by_round(busy_once, never) == pytest.approx([2.0, 3.0])  # all of its count
    only_first = entry("a", [1, 1], load=[QUIET, BUSY])
    only_last = entry("b", [2, 4], load=[BUSY, QUIET])
    assert by_round(only_first, only_last) == [2.0, 4.0]


def test_the_table_tells_all(tmp_path: Path) -> None:
    entries = with_naive(
        [
            dataclasses.replace(entry("naive", [10, 10, 10]), texts=5, texts_per_second=0.5),
            dataclasses.replace(entry("openvino-fp32", [2, 2, 2]), note="1 stream", noisy=True),
            entry("packhorse-fp32", [1, 1, 1]),
            Entry("openvino-int8", "Runs.", SKIPPED, "needs the package openvino"),
        ]
    )
    assert entries[1].vs_naive == 10.0  # 2 s a text against 0.2 s
    made = comparison(entries)
    text = table(made)
    for part in (
        "cores 0 2; no AMX, kept from all",
        "openvino-fp32: 1 stream",
        "openvino-int8: skipped: needs the package openvino",
        "packhorse-fp32 is 2.00x openvino-fp32, the best of: any rival in float32",
        "torch 2",
    ):
        assert part in text
    assert "nncf" not in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["naive"][2] == "*0.50"
    assert rows["openvino-fp32"][2:6] == ["~5.00", "5.00", "5.00", "10.0x"]
    write(made, tmp_path / "new" / "rivals.json")
    content = json.loads((tmp_path / "new" / "rivals.json").read_text())
    assert content["ratios"][0]["rounds"] == [2.0, 2.0, 2.0]
    assert content["entries"][3]["fault"] == "needs the package openvino"


def test_ours_must_agree_and_nothing_may_break_down() -> None:
    ok, rival = entry("packhorse-fp32", [1]), entry("openvino-int8", [1], "int8")
    off = dataclasses.replace(rival, status=DISAGREES, fault="coarse")
    assert comparison([ok, off]).failures == []
    assert comparison([dataclasses.replace(ok, status=DISAGREES)]).failures != []
    assert comparison([ok, dataclasses.replace(rival, status=FAILED)]).failures != []


def test_cores_are_idle_of_one_chip_and_not_threads_of_one() -> None:
    def core(number: int, package: int, busy: float = 0.0) -> Core:
        return Core(number, frozenset((number, number ^ 4)), package, busy)

    cores = [core(n, package=n % 2) for n in range(8)]  # 0 and 4, 1 and 5, ... share a core
    assert chosen_cores(cores, 2) == (0, 2)
    assert chosen_cores(cores, 3) == (0, 2, 4)
    busy = [core(n, n % 2, 0.8 if n in (0, 4) else 0.04) for n in range(8)]
    assert chosen_cores(busy, 2) == (1, 3)
    with pytest.raises(ConfigError, match="no chip has so many cores for us, at most 4"):
        chosen_cores(cores, 5)


def test_named_cores_are_held_to_or_refused() -> None:
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    try:
        assert pin(1, str(first)) == (first,)
        assert os.sched_getaffinity(0) == {first}
        assert len(pin(1, None)) == 1
    finally:
        os.sched_setaffinity(0, allowed)
    with pytest.raises(ConfigError, match="name as many as --threads says, 2"):
        pin(2, str(first))
    with pytest.raises(ConfigError, match="write numbers"):
        pin(1, "first")
    with pytest.raises(ConfigError, match=r"may not use \[99999\]"):
        pin(1, "99999")


def test_the_load_of_pinned_cores_is_theirs_alone(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 0 0\n"
        + "".join(f"cpu{n} {100 * n} 0 0 5 5 0 0 {n} 0 0\n" for n in range(3))
    )
    tick = os.sysconf("SC_CLK_TCK")
    times = read(stat, [1, 2])
    assert times is not None
    assert (times.busy, times.stolen, times.cores) == (300 / tick, 3 / tick, 2)
    assert read(stat, [3]) is None


def test_the_kernel_refuses_amx_when_it_is_told_to() -> None:
    """In a process of its own: the small signal stack stays."""
    import subprocess
    import sys

    code = (
        "from packhorse.tools.bench import amx; amx.refuse();"
        "import threading; threading.Thread(target=print).start();"
        "print(amx.is_granted())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in (["False"], ["None"])
    assert amx.ENVIRONMENT[amx.REFUSED]


def test_the_plan_of_a_command_line() -> None:
    plan = plan_of(arguments("--model bert-base --only naive --texts 30 --tune"), (0, 1))
    assert (plan.model, plan.texts, plan.cores, plan.tune) == ("bert-base", 30, (0, 1), True)
    assert plan.subsets == {"naive": 30}
    assert [rung.name for rung in plan.rungs] == ["naive"]
    with pytest.raises(ConfigError, match="'none' is none"):
        run(arguments("--only none"))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("line", ["", "--no-amx --tune --only onnxruntime,openvino,packhorse"])
def test_whoever_is_installed_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    pytest.importorskip("transformers")
    reviews = tmp_path / "reviews.tsv"
    texts = [f"This is review {i}, and it is{' very' * (i % 5)} good." for i in range(60)]
    reviews.write_text("source\tscore\ttext\n" + "".join(f"tweet\t1.0\t{text}\n" for text in texts))
    allowed, environment = os.sched_getaffinity(0), dict(os.environ)
    out = tmp_path / "rivals.json"
    count = min(2, len(allowed))
    code = run(
        arguments(
            f"--model tiny --threads {count} --texts 40 --naive-texts 4 --rounds 2 "
            f"--reviews {reviews} --json {out} {line}"
        )
    )
    content = json.loads(out.read_text())
    faults = {e["name"]: e["fault"] for e in content["entries"] if e["status"] == FAILED}
    assert faults == {}
    assert code == 0
    ran = {e["name"] for e in content["entries"] if e["samples"]}
    assert "packhorse-fp32" in ran
    assert all(len(e["samples"]) == 2 for e in content["entries"] if e["name"] in ran)
    if line:
        assert all(e["has_amx"] is not True for e in content["entries"])
    skipped = [e for e in content["entries"] if e["status"] == SKIPPED]
    assert all(e["fault"] for e in skipped)
    assert os.sched_getaffinity(0) == allowed
    assert dict(os.environ) == environment
    assert "packhorse-fp32" in capsys.readouterr().out
