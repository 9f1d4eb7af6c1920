"""Which settings to try next, given how those before did: one setting after the other, or all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from packhorse.tools.tune.knobs import Knob
from packhorse.tools.tune.results import Settings, Trial

WORTHWHILE = 1.03
"""A change has to bring 3%: less is within what two measurements of the same differ by."""

FINALISTS = 3
"""Trials that are measured once more when all others are done."""

Measure = Callable[[Settings], Trial]


def descend(knobs: Sequence[Knob], measure: Measure, p99_ms: float | None) -> list[Trial]:
    """Try each knob's values with the others as they are best so far, until a turn brings nothing.

    The best trial is ``best_of`` these.
    """
    start = {knob.name: knob.values[0] for knob in knobs}
    trials = {_key(start): measure(start)}
    best = trials[_key(start)]
    is_better = True
    while is_better:
        is_better = False
        for knob in knobs:
            for value in knob.values:
                settings = best.settings | {knob.name: value}
                if _key(settings) in trials:
                    continue
                trial = trials[_key(settings)] = measure(settings)
                if trial.score(p99_ms) > best.score(p99_ms) * WORTHWHILE:
                    best, is_better = trial, True
    return list(trials.values())


def sweep(knobs: Sequence[Knob], measure: Measure) -> list[Trial]:
    """Try every combination."""
    names = [knob.name for knob in knobs]
    return [
        measure(dict(zip(names, values, strict=True)))
        for values in itertools.product(*(knob.values for knob in knobs))
    ]


def confirm(trials: Sequence[Trial], measure: Measure, p99_ms: float | None) -> list[Trial]:
    """The same trials, the first and the best FINALISTS measured once more.

    Raises nothing where one does not start again: it then counts as one that never did.
    """
    ranked = sorted(trials, key=lambda trial: -trial.score(p99_ms))
    finalists = [t for t in ranked[:FINALISTS] if t.score(p99_ms) > 0]
    if finalists and trials[0] not in finalists and trials[0].fault is None:
        finalists.append(trials[0])
    confirmed = []
    for trial in trials:
        if trial in finalists:
            second = measure(trial.settings)
            points = [] if second.fault else trial.points
            trial = replace(trial, points=points, fault=second.fault, again=second.points)
        confirmed.append(trial)
    return confirmed


def best_of(trials: Sequence[Trial], p99_ms: float | None) -> Trial:
    """The best; of those within 3% of it the one that was tried first: the nearest to default.

    Where some were measured twice, one of these.
    """
    measured_twice = [trial for trial in trials if trial.again]
    candidates = measured_twice or list(trials)
    most = max(trial.score(p99_ms) for trial in candidates)
    return next(trial for trial in candidates if trial.score(p99_ms) * WORTHWHILE >= most)


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))
