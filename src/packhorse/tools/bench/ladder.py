"""From a plan to the finished ladder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from packhorse.tools.bench import machine
from packhorse.tools.bench.ceilings import MATMUL_SIZE
from packhorse.tools.bench.climb import Climb, Climber, climb, say
from packhorse.tools.bench.flops import ModelSize, first_token_layer, layer, nominal
from packhorse.tools.bench.physics import counted
from packhorse.tools.bench.preparation import Plan, Prepared, compute_reference, prepare
from packhorse.tools.bench.results import (
    DISAGREES,
    FORMAT,
    OK,
    Ladder,
    Measured,
    Run,
    RungResult,
    WorkloadResult,
)
from packhorse.tools.bench.summary import Rounds, measured
from packhorse.tools.bench.traffic import least_bytes
from packhorse.tools.bench.workloads import Workload

BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Tokens a batch in the count of weight reads: the engine's default."""


def run(plan: Plan) -> Ladder:
    """Measure the ladder.

    Raises ConfigError, CheckpointError, DeviceError, or WorkerError when the
    reference cannot be computed. A rung that fails is in the result.
    """
    with TemporaryDirectory(prefix="packhorse-bench-") as folder:
        scratch = Path(folder)
        prepared = prepare(plan, scratch)
        workloads = [_workload(each, prepared.size, plan) for each in prepared.workloads]
        say(counted(plan.model, plan.dtype, prepared.size, workloads))
        say("computing the reference in float32")
        answers = compute_reference(plan, prepared, scratch)
        climbed = climb(plan, prepared, answers, scratch)
        return _ladder(plan, prepared, workloads, answers.note, climbed)


def description(plan: Plan, libraries: Sequence[str] = ()) -> Run:
    """When and how, on what and with what: for the record."""
    return run_now(plan.threads, plan.commit, libraries)


def run_now(threads: int, commit: str | None = None, libraries: Sequence[str] = ()) -> Run:
    """The same for what has no plan; ``commit`` is for sources that are no git checkout."""
    return Run(
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=machine.command_line(),
        commit=machine.commit() or commit,
        machine=machine.description(threads),
        versions=machine.versions(libraries),
    )


def _ladder(
    plan: Plan,
    prepared: Prepared,
    workloads: list[WorkloadResult],
    reference: str,
    climbed: Climb,
) -> Ladder:
    by_name = {climber.rung.name: climber for climber in climbed.climbers}
    run = description(plan)
    return Ladder(
        format=FORMAT,
        run=run,
        device=plan.device,
        dtype=plan.dtype,
        model=plan.model,
        model_note=prepared.model_note,
        shape=dataclasses.asdict(prepared.size),
        reference=reference,
        rounds=plan.rounds,
        matmul_size=MATMUL_SIZE[plan.device.partition(":")[0]],
        ceilings=climbed.ceilings,
        workloads=workloads,
        rungs=[
            _rung(climber, by_name, climbed, int(run.machine["cpus"]))
            for climber in climbed.climbers
        ],
    )


def _rung(climber: Climber, by_name: dict[str, Climber], climbed: Climb, cores: int) -> RungResult:
    """The rung with its rows, if it got that far."""
    if climber.status is not None:
        return RungResult(climber.rung.name, climber.rung.change, climber.status, climber.fault)

    def base(name: str, workload: str) -> Rounds | None:
        other = by_name.get(name)
        return None if other is None else other.rounds.get(workload)

    rows = [
        measured(
            rounds, cores, climbed.ceilings, base("naive", workload), base("batched", workload)
        )
        for workload, rounds in climber.rounds.items()
    ]
    return _judged(climber, rows)


def _judged(climber: Climber, rows: list[Measured]) -> RungResult:
    """A rung that disagrees on any workload fails as a whole."""
    fault = next((f"{r.workload}: {r.agreement.fault}" for r in rows if r.agreement.fault), None)
    assert climber.worker is not None
    result = RungResult(
        climber.rung.name,
        climber.rung.change,
        OK,
        dtype=climber.dtype,
        ready_seconds=climber.worker.ready_seconds,
        measured=rows,
    )
    return result if fault is None else replace(result, status=DISAGREES, fault=fault)


def _workload(each: Workload, size: ModelSize, plan: Plan) -> WorkloadResult:
    tokens = int(each.lengths.sum())
    batches = -(-tokens // BATCH_TOKENS[plan.device.partition(":")[0]])
    whole = nominal(size, each.lengths)
    saved = layer(size, each.lengths) - first_token_layer(size, each.lengths)
    return WorkloadResult(
        name=each.name,
        note=each.note,
        texts=len(each.texts),
        distinct=len(set(each.texts)),
        tokens=tokens,
        longest=int(each.lengths.max()),
        nominal_flops=whole,
        first_token_flops=whole - saved,
        least_bytes=least_bytes(size, tokens, batches, plan.dtype),
    )
