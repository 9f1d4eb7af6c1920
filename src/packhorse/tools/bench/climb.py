"""Every rung in a process of its own, all alive at once, one at work at a time, round after round.

In a round every rung runs every workload once, in an order drawn anew, and the
device's ceilings are measured. Ratios are then taken within rounds.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packhorse.tools.bench import machine_load
from packhorse.tools.bench.agreement import Agreement
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.bench.flops import nominal
from packhorse.tools.bench.preparation import Plan, Prepared, Reference, assignment, tasks_of
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.results import FAILED, SKIPPED, Sample
from packhorse.tools.bench.rungs import Rung, obstacle
from packhorse.tools.bench.summary import Rounds
from packhorse.tools.bench.worker import CEILINGS, Assignment, Command, Timing
from packhorse.tools.bench.worker_process import WorkerError, WorkerProcess

_CORES_A_START = 4
"""Loading and compiling keep about so many cores busy: more workers at once would only wait."""


@dataclass(slots=True)
class Climber:
    """A rung and its process, and what became of it: nothing bad while ``status`` is None."""

    rung: Rung
    worker: WorkerProcess | None = None
    dtype: str = ""
    note: str | None = None
    has_amx: bool | None = None
    status: str | None = None
    fault: str | None = None
    rounds: dict[str, Rounds] = field(default_factory=dict)

    def drop_out(self, status: str, fault: str) -> None:
        self.status, self.fault = status, fault
        say(f"{self.rung.name}: {status}: {fault}")
        if self.worker is not None:
            self.worker.close()


@dataclass(frozen=True, slots=True)
class Climb:
    """All rungs, and the worker that measures the device, if it is measured."""

    climbers: list[Climber]
    device: WorkerProcess | None
    ceilings: dict[str, list[Ceiling]]

    def close(self) -> None:
        for climber in self.climbers:
            if climber.worker is not None and climber.status is None:
                climber.worker.close()
        if self.device is not None:
            self.device.close()

    @property
    def climbing(self) -> list[Climber]:
        """Those that have not dropped out."""
        return [climber for climber in self.climbers if climber.status is None]


def say(text: str) -> None:
    """Progress, to standard error."""
    print(text, file=sys.stderr, flush=True)


def climb(
    plan: Plan,
    prepared: Prepared,
    answers: Reference,
    scratch: Path,
    ceilings: bool = True,
    obstacle: Callable[[Rung], str | None] = obstacle,
) -> Climb:
    """Start every rung, check its answers, run the rounds; a rung that fails drops out alone.

    ceilings  whether to measure the device, too
    obstacle  why a rung is skipped; None: it is not
    """
    types = sorted({"float32", plan.dtype}) if ceilings else []
    device = None
    if ceilings:
        task = _ceilings(plan, prepared, types)
        device = WorkerProcess(CEILINGS, task, scratch / "ceilings.log")
    climbers = [Climber(rung) for rung in plan.rungs]
    result = Climb(climbers, device, {dtype: [] for dtype in types})
    try:
        if device is not None:
            device.wait()
        _start(result, plan, prepared, scratch, obstacle)
        _check(result, prepared, answers)
        _run_rounds(result, plan, prepared, answers)
    finally:
        result.close()
    return result


def _ceilings(plan: Plan, prepared: Prepared, types: list[str]) -> Assignment:
    place = Place(str(prepared.checkpoint.folder), plan.device, plan.dtype, plan.threads)
    problem_type = prepared.checkpoint.problem_type
    return Assignment(CEILINGS, (), place, prepared.size, problem_type, {}, types)


def _start(
    result: Climb,
    plan: Plan,
    prepared: Prepared,
    scratch: Path,
    obstacle: Callable[[Rung], str | None],
) -> None:
    """As many at once as there are cores for."""
    ready = []
    for climber in result.climbers:
        missing = obstacle(climber.rung)
        if missing is None:
            ready.append(climber)
        else:
            climber.drop_out(SKIPPED, missing)
    for group in _groups(ready, max(1, plan.threads // _CORES_A_START)):
        for climber in group:
            rung = climber.rung
            task = assignment(rung, plan, prepared, tasks_of(rung, plan, prepared))
            climber.worker = WorkerProcess(rung.name, task, scratch / f"{rung.name}.log")
        for climber in group:
            _wait(climber)


def _groups(climbers: Sequence[Climber], size: int) -> Iterator[Sequence[Climber]]:
    for first in range(0, len(climbers), size):
        yield climbers[first : first + size]


def _wait(climber: Climber) -> None:
    assert climber.worker is not None
    try:
        ready = climber.worker.wait()
        climber.dtype, climber.note, climber.has_amx = ready.dtype, ready.note, ready.has_amx
    except WorkerError as error:
        climber.drop_out(FAILED, str(error))
    else:
        say(f"{climber.rung.name}: ready after {climber.worker.ready_seconds:.1f} s")


def _check(result: Climb, prepared: Prepared, answers: Reference) -> None:
    """Every rung's logits against the reference; this is its warm-up, too."""
    for climber in result.climbing:
        assert climber.worker is not None
        try:
            for each in prepared.workloads:
                command = Command(
                    "check", each.name, str(answers.files[each.name]), spread=answers.spread
                )
                started = time.monotonic()
                agreement = climber.worker.ask(command, Agreement)
                lengths = each.lengths[: agreement.texts]
                climber.rounds[each.name] = Rounds(
                    workload=each.name,
                    tokens=int(lengths.sum()),
                    nominal_flops=nominal(prepared.size, lengths),
                    dtype=climber.dtype,
                    agreement=agreement,
                    timings=[],
                    samples=[],
                )
                say(
                    f"{climber.rung.name}: {each.name}: {agreement.fault or 'agrees'} "
                    f"({agreement.texts} texts, {time.monotonic() - started:.1f} s)"
                )
        except WorkerError as error:
            climber.drop_out(FAILED, str(error))


def _run_rounds(result: Climb, plan: Plan, prepared: Prepared, answers: Reference) -> None:
    shuffle = random.Random(0).shuffle
    for number in range(plan.rounds):
        started = time.monotonic()
        if result.device is not None:
            measured = result.device.ask(Command("measure"), dict[str, Ceiling])
            for dtype, ceiling in measured.items():
                result.ceilings[dtype].append(ceiling)
        for each in prepared.workloads:
            command = Command(
                "time", each.name, str(answers.files[each.name]), spread=answers.spread
            )
            order = result.climbing
            shuffle(order)
            for climber in order:
                _run(climber, command, number, plan.cores)
        say(f"round {number + 1} of {plan.rounds}: {time.monotonic() - started:.1f} s")


def _run(climber: Climber, command: Command, number: int, pinned: tuple[int, ...] | None) -> None:
    """One timed round of one rung, with the machine watched before and during it."""
    assert climber.worker is not None
    before = machine_load.before(pinned)
    start = machine_load.read(pinned=pinned)
    try:
        timing = climber.worker.ask(command, Timing)
    except WorkerError as error:
        climber.drop_out(FAILED, str(error))
        return
    end = machine_load.read(pinned=pinned)
    during = machine_load.between(start, end, timing.busy_seconds)
    rounds = climber.rounds[command.workload]
    rounds.timings.append(timing)
    rounds.samples.append(Sample(number, timing.seconds, timing.cpu_seconds, before, during))
