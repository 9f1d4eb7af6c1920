"""`packhorse tune`: search, loads, file and picture; servers are made up, but in the long test."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from packhorse.config import Config, ModelOptions, load_config, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import Gpu, Hardware
from packhorse.tools.tune import add_arguments, command, run
from packhorse.tools.tune.config_file import config_text
from packhorse.tools.tune.knobs import Knob, knobs_for
from packhorse.tools.tune.loads import climb
from packhorse.tools.tune.picture import picture
from packhorse.tools.tune.results import Point, Settings, Trial, Tuning
from packhorse.tools.tune.search import best_of, confirm, descend, sweep

CPU = Config(ModelOptions(device="cpu"))

KNOBS = [
    Knob("threads", ("auto", "1", "2")),
    Knob("front_ends", ("1", "2")),
    Knob("dtype", ("a", "b")),
]


def made_up(settings: Settings) -> Trial:
    """Two threads, two front ends and b are best, each for itself."""
    rate = {"auto": 100, "1": 60, "2": 150}[settings["threads"]]
    rate *= {"1": 1.0, "2": 1.3}[settings["front_ends"]]
    rate *= {"a": 1.0, "b": 1.2}[settings["dtype"]]
    return Trial(
        settings, [Point(1, rate / 2, 5, 8), Point(8, rate, 20, 30), Point(64, 9e9, 90, 99)]
    )


def arguments(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(line.split())


def tuning(p99_ms: float | None = 50) -> Tuning:
    trials = descend(KNOBS, made_up, p99_ms)
    fixed = {"served_model_name": 'a "name"', "dedup": "false"}
    return Tuning("demo", p99_ms, fixed, trials, best_of(trials, p99_ms))


def test_one_setting_after_the_other_finds_what_a_sweep_finds_with_fewer_trials() -> None:
    asked = []
    found = descend(KNOBS, lambda s: asked.append(s) or made_up(s), 50)
    every = sweep(KNOBS, made_up)
    assert len(every) == 12
    assert len(found) == len(asked) < 12
    assert best_of(found, 50).settings == best_of(every, 50).settings
    assert best_of(found, 50).settings == {"threads": "2", "front_ends": "2", "dtype": "b"}


def test_the_best_are_measured_again_and_what_they_reach_twice_counts() -> None:
    """The luckiest of many measurements is not the best setting."""
    rates = {"auto": [100, 100], "1": [140, 90], "2": [130, 128], "3": [10, 10], "4": [99, 99]}
    asked: list[str] = []

    def measure(settings: Settings) -> Trial:
        name = settings["threads"]
        asked.append(name)
        return Trial(settings, [Point(1, rates[name][asked.count(name) - 1], 1, 2)])

    first = sweep([Knob("threads", tuple(rates))], measure)
    assert best_of(first, 50).settings == {"threads": "1"}
    twice = confirm(first, measure, 50)
    assert sorted(asked[len(rates) :]) == ["1", "2", "auto"]
    assert best_of(twice, 50).settings == {"threads": "2"}
    assert best_of(twice, 50).score(50) == 128


def test_where_nothing_keeps_the_limit_nothing_is_measured_again() -> None:
    def measure(settings: Settings) -> Trial:
        raise AssertionError(settings)

    trials = [Trial({}, [Point(1, 10, 60, 70)]), Trial({"threads": "1"}, [], "did not start")]
    assert confirm(trials, measure, 50) == trials


def test_a_finalist_that_does_not_start_again_is_not_taken() -> None:
    trials = [Trial({"threads": "1"}, [Point(1, 10, 1, 2)])]
    (trial,) = confirm(trials, lambda settings: Trial(settings, [], "no memory"), 50)
    assert trial.fault == "no memory"
    assert trial.score(50) == 0


def test_no_setting_is_tried_twice() -> None:
    keys = [tuple(trial.settings.items()) for trial in descend(KNOBS, made_up, 50)]
    assert len(set(keys)) == len(keys)


def test_what_is_not_three_percent_better_leaves_the_settings_as_they_were() -> None:
    def measure(settings: Settings) -> Trial:
        return Trial(settings, [Point(1, 100 + 2 * (settings["threads"] == "2"), 1, 2)])

    assert best_of(descend(KNOBS[:1], measure, None), None).settings == {"threads": "auto"}


def test_a_point_over_the_limit_or_with_errors_does_not_count() -> None:
    trial = Trial({}, [Point(1, 10, 1, 20), Point(2, 30, 1, 60), Point(4, 20, 1, 30, errors=1)])
    assert trial.score(50) == 10
    assert trial.score(None) == 30
    assert trial.score(5) == 0


def test_connections_double_up_to_the_limit_and_close_in_on_it() -> None:
    def load(connections: int) -> Point:
        return Point(connections, 100.0 * connections, connections, 5.0 * connections)

    loads = [point.connections for point in climb(load, 50)]
    assert loads == [1, 2, 4, 8, 16, 12, 10], "p99 is 5 ms a connection: 10 are possible"


def test_without_a_limit_connections_double_while_that_brings_more() -> None:
    def load(connections: int) -> Point:
        return Point(connections, min(100.0 * connections, 1600), 1, 2)

    assert [point.connections for point in climb(load, None)] == [1, 2, 4, 8, 16, 32]


def test_a_server_that_is_too_slow_for_one_request_ends_the_climb() -> None:
    assert len(climb(lambda connections: Point(connections, 1, 90, 99), 50)) == 1


def test_the_file_is_one_that_serve_reads(tmp_path: Path) -> None:
    settings = {"threads": "2", "front_ends": "1", "dtype": "float32", "max_batch_time": "2.5"}
    best = Trial(settings, [Point(4, 100, 10, 20)])
    fixed = {"served_model_name": 'a "name"', "dedup": "false"}
    file = tmp_path / "packhorse.toml"
    file.write_text(config_text(Tuning("demo", 50, fixed, [best], best)))
    config = load_config({}, {}, file)
    assert config.engine.threads == 2
    assert config.engine.max_batch_time == 2.5
    assert config.server.front_ends == 1
    assert config.server.dedup is False
    assert config.model.dtype == "float32"
    assert config.model.served_model_name == 'a "name"'
    assert load_config({"threads": "7"}, {}, file).engine.threads == 7, "a flag goes first"


@pytest.mark.parametrize(
    "name", ["007", "1234567", "1.50", ".5", "true", 'a "b" \\n', "tab\tline\n"]
)
def test_whatever_a_setting_says_it_is_the_same_in_the_file(tmp_path: Path, name: str) -> None:
    best = Trial({"max_batch_time": ".5"}, [Point(4, 100, 10, 20)])
    fixed = {"revision": name, "dedup": "yes"}
    file = tmp_path / "packhorse.toml"
    file.write_text(config_text(Tuning("demo", 50, fixed, [best], best)))
    config = load_config({}, {}, file)
    assert config.model.revision == name
    assert config.server.dedup is True
    assert config.engine.max_batch_time == 0.5


def test_settings_of_a_file_and_of_variables_stay_and_are_in_the_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Settings] = []

    def trial(settings: Settings, words: list[str], *rest: object) -> Trial:
        assert words == ["--dtype=float32", "--config", str(tmp_path / "base.toml")]
        tried.append(settings)
        return Trial(settings, [Point(2, 50.0, 10, 20)])

    monkeypatch.setattr(command, "trial", trial)
    monkeypatch.setenv("PACKHORSE_MAX_BATCH_TOKENS", "2048")
    (tmp_path / "base.toml").write_text('served_model_name = "mine"\nthreads = 1\n')
    line = f"--p99-ms 50 --dtype float32 --config {tmp_path}/base.toml -o {tmp_path}/found.toml"
    assert run(arguments(line)) == 0
    assert {name for settings in tried for name in settings} == {"max_batch_time", "front_ends"}
    config = load_config({}, {}, tmp_path / "found.toml")
    assert config.model.served_model_name == "mine"
    assert (config.engine.threads, config.engine.max_batch_tokens) == (1, 2048)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "trial", lambda *_: pytest.fail("a server was started"))
    (tmp_path / "file").write_text("")
    for place, fault in ((f"{tmp_path}/file/a.json", "cannot be written"), (tmp_path, "a folder")):
        with pytest.raises(ConfigError, match=fault):
            run(arguments(f"--throughput --json {place}"))


@pytest.mark.parametrize("p99_ms", [50, None])
def test_the_picture_is_well_formed_and_has_a_line_for_each_trial(p99_ms: float | None) -> None:
    made = tuning(p99_ms)
    root = ET.fromstring(picture(made))
    lines = root.findall(".//{*}polyline")
    assert len(lines) == len(made.trials)
    assert lines[-1].get("class") == "best"
    assert len(root.findall(".//*[@class='limit']")) == (p99_ms is not None)
    assert "1e+" not in ET.tostring(root, encoding="unicode")
    inside = [float(c.get("cx", "")) for c in root.findall(".//{*}circle")]
    assert all(0 <= x <= 760 for x in inside)


def test_given_settings_are_not_turned_and_types_of_less_precision_not_tried() -> None:
    cpu = Hardware(cpus=8, cpu_features=frozenset())
    names = [knob.name for knob in knobs_for(resolve(CPU, cpu), cpu, {"front_ends"})]
    assert names == ["max_batch_time", "max_batch_tokens", "threads"]
    amx = Hardware(cpus=8, cpu_features=frozenset({"amx_bf16"}))
    assert [k.values for k in knobs_for(resolve(CPU, amx), amx, set()) if k.name == "dtype"] == [
        ("auto", "float32")
    ]
    gpu = Hardware(16, frozenset(), (Gpu("any", (9, 0)),))
    found = knobs_for(resolve(Config(ModelOptions(device="cuda:0")), gpu), gpu, set())
    assert "threads" not in [knob.name for knob in found]
    (front_ends,) = [k.values for k in found if k.name == "front_ends"]
    assert front_ends == ("auto", "1", "2", "4"), "auto is 8 here, and not tried twice"


def test_the_command_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def trial(settings: Settings, words: list[str], *rest: object) -> Trial:
        seen.append(words)
        return Trial(settings, [Point(2, 50.0 * int(settings["threads"]), 10, 20)])

    monkeypatch.setattr(command, "trial", trial)
    files = f"-o {tmp_path}/found.toml --svg {tmp_path}/a.svg --json {tmp_path}/a.json"
    line = f"--p99-ms 50 --try threads=1,2 --dtype float32 --hf-token secret {files}"
    assert run(arguments(line)) == 0
    assert seen[0] == ["--hf-token=secret", "--dtype=float32"]
    assert load_config({}, {}, tmp_path / "found.toml").engine.threads == 2
    assert "100 texts/s" in capsys.readouterr().out
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["best"]["settings"] == {"threads": "2"}
    assert "secret" not in (tmp_path / "a.json").read_text()
    assert "secret" not in (tmp_path / "found.toml").read_text()


def test_a_target_that_nothing_keeps_is_told_and_no_file_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "trial", lambda settings, *_: Trial(settings, [Point(1, 5, 1, 70)])
    )
    assert run(arguments(f"--p99-ms 50 --try threads=1 -o {tmp_path}/found.toml")) == 1
    assert "lowest p99 of any load was 70" in capsys.readouterr().out
    assert not (tmp_path / "found.toml").exists()


@pytest.mark.parametrize(
    "tried",
    ["nothing=1", "threads", "threads=none", "threads=0", "port=1,2", "threads=1 --try threads=2"],
)
def test_what_cannot_be_tried_is_refused(tried: str) -> None:
    with pytest.raises(ConfigError, match="--try"):
        run(arguments(f"--throughput --try {tried}"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_is_found_is_within_a_tenth_of_an_exhaustive_sweep(
    tmp_path: Path, long_seconds: float
) -> None:
    """Four settings here; the command without ``--try`` takes all, and half an hour."""
    seconds, rounds = (2.0, 3) if long_seconds > 10 else (1.0, 1)
    file = tmp_path / "tune.json"
    command = [sys.executable, "benchmarks/tune_sweep.py", "--json", str(file)]
    command += ["--try", "max_batch_time=10,50", "--try", "front_ends=1,2"]
    command += ["--seconds", str(seconds), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert file.exists(), done.stderr
    result = json.loads(file.read_text())
    assert len(result["swept"]["trials"]) == 4
    assert len(result["rates"]["tuned"]) == rounds
    assert result["ratio"] >= 0.9, done.stdout
    assert done.returncode == 0
