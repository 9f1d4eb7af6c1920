"""Whether ``packhorse tune`` finds what an exhaustive sweep finds, and in how many trials.

    python benchmarks/tune_sweep.py --json tune-sweep.json
    python benchmarks/tune_sweep.py --try max_batch_time=10,50 --try front_ends=1,2

The demo model on a CPU, most texts/s within a p99 of 50 ms. First the search,
then every combination of the same settings. What each calls best is then
measured again, in turn, round after round, so that what drifts on the machine
drifts for both; the ratio is of the medians. Without ``--try`` all settings are
turned that ``tune`` turns: some fifty combinations, half an hour on two cores,
in which nothing else may run.

The exit code is 1 where the search reaches less than nine tenths.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from packhorse.tools import tune
from packhorse.tools.bench import machine_load
from packhorse.tools.bench.units import digits
from packhorse.tools.doctor.sample_texts import our_texts
from packhorse.tools.tune import command
from packhorse.tools.tune.results import Tuning
from packhorse.tools.tune.server_trial import trial

ENOUGH = 0.9
"""Of what the best of the sweep reaches."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--p99-ms", type=float, default=50.0, metavar="MS")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each load")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of the comparison")
    parser.add_argument(
        "--try", dest="tried", action="append", default=[], metavar="SETTING=VALUE,VALUE"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def searched(arguments: argparse.Namespace, *flags: str) -> tuple[Tuning, float]:
    """What ``packhorse tune`` with these flags finds, and in how many seconds."""
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    words = ["--device=cpu", f"--p99-ms={arguments.p99_ms}", f"--seconds={arguments.seconds}"]
    words += [f"--try={each}" for each in arguments.tried]
    started = time.monotonic()
    return command.search(parser.parse_args([*words, *flags])), time.monotonic() - started


def rates(arguments: argparse.Namespace, found: dict[str, Tuning]) -> dict[str, list[float]]:
    """Texts/s within the limit of each one's best settings, a number for each round."""
    measured: dict[str, list[float]] = {name: [] for name in found}
    for number in range(arguments.rounds):
        names = list(found) if number % 2 == 0 else list(found)[::-1]
        for name in names:
            settings = found[name].best.settings
            again = trial(
                settings, ["--device=cpu"], our_texts(), "/predict", arguments.seconds,
                arguments.p99_ms,
            )  # fmt: skip
            measured[name].append(again.score(arguments.p99_ms))
    return measured


def main() -> int:
    """Search, sweep, compare, print, write."""
    arguments = parsed()
    before = machine_load.before()
    tuned, tuned_seconds = searched(arguments)
    swept, swept_seconds = searched(arguments, "--sweep")
    measured = rates(arguments, {"tuned": tuned, "swept": swept})
    middle = {name: statistics.median(each) for name, each in measured.items()}
    ratio = middle["tuned"] / middle["swept"] if middle["swept"] else 0.0
    result: dict[str, Any] = {
        "format": 1,
        "p99_ms": arguments.p99_ms,
        "ratio": ratio,
        "rates": measured,
        "seconds": {"tuned": tuned_seconds, "swept": swept_seconds},
        "load_before": None if before is None else msgspec.to_builtins(before),
        "tuned": msgspec.to_builtins(tuned),
        "swept": msgspec.to_builtins(swept),
    }
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    for name, tuning, seconds in (
        ("tuned", tuned, tuned_seconds),
        ("swept", swept, swept_seconds),
    ):
        settings = ", ".join(f"{key} {value}" for key, value in tuning.best.settings.items())
        print(
            f"{name}: {digits(middle[name])} texts/s within {digits(arguments.p99_ms)} ms, "
            f"{len(tuning.trials)} settings in {digits(seconds)} s: {settings}"
        )
    print(f"tune reaches {ratio:.0%} of the best of the sweep")
    return 0 if ratio >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
