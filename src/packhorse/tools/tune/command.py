"""What ``packhorse tune`` does: search, print, write."""

from __future__ import annotations

import argparse
import sys

import msgspec

from packhorse.config import options, parse_value, resolve, values_given
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bench.ladder import run_now
from packhorse.tools.bench.serve.bodies import read_texts
from packhorse.tools.bench.serve.command import without_secrets
from packhorse.tools.bench.units import digits
from packhorse.tools.doctor.sample_texts import our_texts
from packhorse.tools.option_flags import given_settings, read_settings
from packhorse.tools.output_files import check_outputs
from packhorse.tools.tune.config_file import config_text
from packhorse.tools.tune.knobs import CHOSEN_HERE, Knob, knobs_for
from packhorse.tools.tune.picture import picture
from packhorse.tools.tune.results import Settings, Trial, Tuning
from packhorse.tools.tune.search import best_of, confirm, descend, sweep
from packhorse.tools.tune.server_trial import trial


def tune(arguments: argparse.Namespace) -> int:
    """Search; 1 when no trial keeps the target."""
    check_outputs(arguments.json, arguments.svg, arguments.output)
    tuning = search(arguments)
    print(summary(tuning))
    if arguments.json is not None:
        shown = msgspec.json.format(msgspec.json.encode(tuning), indent=1)
        arguments.json.write_bytes(shown + b"\n")
    if tuning.best.best(tuning.p99_ms) is None:
        return 1
    if arguments.svg is not None:
        arguments.svg.write_text(picture(tuning), encoding="utf-8")
    if arguments.output is not None:
        arguments.output.write_text(config_text(tuning), encoding="utf-8")
    return 0


def search(arguments: argparse.Namespace) -> Tuning:
    """All trials and the best.

    Raises ConfigError, also when no server started.
    """
    settings = read_settings(arguments)
    resolved = resolve(settings, detect())
    flags = given_settings(arguments)
    fixed = values_given(flags, file=arguments.config)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    if arguments.config is not None:
        words += ["--config", str(arguments.config)]
    knobs = _knobs(arguments.tried, fixed) or knobs_for(resolved, detect(), fixed)
    texts = our_texts() if arguments.texts is None else read_texts(arguments.texts)
    p99_ms: float | None = arguments.p99_ms

    def measure(tried: Settings) -> Trial:
        result = trial(tried, words, texts, arguments.route, arguments.seconds, p99_ms)
        print(_line(result, p99_ms), file=sys.stderr, flush=True)
        return result

    trials = sweep(knobs, measure) if arguments.sweep else descend(knobs, measure, p99_ms)
    trials = confirm(trials, measure, p99_ms)
    if all(each.fault for each in trials):
        raise ConfigError(f"no server could be measured: {trials[0].fault}")
    return Tuning(
        model=settings.model.model_id or "the demo model",
        p99_ms=p99_ms,
        fixed=_without_secrets(fixed),
        trials=trials,
        best=best_of(trials, p99_ms),
        run=msgspec.to_builtins(run_now(detect().cpus))
        | {"command": " ".join(["packhorse", *without_secrets(sys.argv[1:])])},
    )


def summary(tuning: Tuning) -> str:
    """The best settings and what they reach, beside where the search began."""
    best, first = tuning.best.best(tuning.p99_ms), tuning.trials[0]
    if best is None:
        lowest = min(p.p99_ms for each in tuning.trials for p in each.points + each.again)
        return (
            f"no setting keeps p99 within {digits(tuning.p99_ms or 0)} ms here: "
            f"the lowest p99 of any load was {digits(lowest)} ms"
        )
    settings = [f"  {name} = {value}" for name, value in tuning.best.settings.items()]
    return "\n".join(
        [
            f"{digits(best.texts_per_second)} texts/s, p50 {digits(best.p50_ms)} ms, "
            f"p99 {digits(best.p99_ms)} ms with {best.connections} connections; "
            f"the first settings: {digits(first.score(tuning.p99_ms))} texts/s",
            *settings,
        ]
    )


def _knobs(tried: list[str], fixed: Settings) -> list[Knob]:
    """Those of --try. Raises ConfigError."""
    known = {option.name: option for _, option in options() if option.name not in CHOSEN_HERE}
    knobs: list[Knob] = []
    for entry in tried:
        name, _, values = entry.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if name not in known or not values:
            raise ConfigError(f"--try {entry}: write SETTING=VALUE,VALUE, such as threads=1,2")
        if name in fixed:
            raise ConfigError(f"--try {entry}: {name} is given as a setting, too")
        if name in (knob.name for knob in knobs):
            raise ConfigError(
                f"--try {entry}: {name} has a --try already; put a comma between values"
            )
        for value in values.split(","):
            parse_value(known[name], value, f"--try {name}")
        knobs.append(Knob(name, tuple(values.split(","))))
    return knobs


def _without_secrets(settings: Settings) -> Settings:
    secret = {option.name for _, option in options() if option.metadata["secret"]}
    return {name: value for name, value in settings.items() if name not in secret}


def _line(result: Trial, p99_ms: float | None) -> str:
    name = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    if result.fault is not None:
        return f"{name}: {result.fault}"
    return f"{name}: {digits(result.score(p99_ms))} texts/s"
