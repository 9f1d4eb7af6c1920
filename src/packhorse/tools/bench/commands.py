"""What ``packhorse bench`` does: measure, print, write."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from packhorse.config import AUTO
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bench import ladder as ladders
from packhorse.tools.bench.arguments import resolved_device, subsets
from packhorse.tools.bench.gpu.report import faults, report
from packhorse.tools.bench.physics import distance
from packhorse.tools.bench.picture import picture
from packhorse.tools.bench.preparation import Plan, half_type
from packhorse.tools.bench.results import FORMAT, GpuNumbers, Ladder, read, write
from packhorse.tools.bench.rungs import chosen_rungs
from packhorse.tools.bench.table import table
from packhorse.tools.bench.worker_process import WorkerError
from packhorse.tools.output_files import check_outputs


def ladder(arguments: argparse.Namespace) -> int:
    """Climb; 1 when a rung disagrees or failed.

    Raises ConfigError, CheckpointError or DeviceError.
    """
    check_outputs(arguments.json, arguments.svg)
    plan = plan_of(arguments)
    try:
        result = ladders.run(plan)
    except WorkerError as error:
        raise ConfigError(f"the reference cannot be computed: {error}") from error
    _record(result, arguments)
    if arguments.details and plan.device != "cpu":
        from packhorse.tools.bench.gpu.details import measure

        result = dataclasses.replace(result, details=measure(plan))
        _record(result, arguments)
    return _show(result, arguments)


def render(path: Path, arguments: argparse.Namespace) -> int:
    """The table and the picture of a run that was recorded."""
    return _show(read(path), arguments)


def gpu(arguments: argparse.Namespace) -> int:
    """The numbers of the GPU alone; 1 when one of them could not be had.

    Raises ConfigError or CheckpointError.
    """
    check_outputs(arguments.json)
    plan = plan_of(arguments)
    if plan.device == "cpu":
        raise ConfigError("bench gpu needs an NVIDIA GPU")
    from packhorse.tools.bench.gpu.details import measure

    details = measure(plan)
    run = ladders.description(plan)
    _record(GpuNumbers(FORMAT, run, plan.device, plan.dtype, plan.model, details), arguments)
    print(report(details))
    return 1 if faults(details) else 0


def families(arguments: argparse.Namespace) -> int:
    """Every family beside bert-base and beside Transformers, on one GPU.

    Raises ConfigError or CheckpointError.
    """
    check_outputs(arguments.json)
    plan = plan_of(arguments)
    if plan.device == "cpu":
        raise ConfigError("bench families needs an NVIDIA GPU")
    from packhorse.tools.bench.gpu.families import measure_families, report_families

    rows = measure_families(plan, arguments.models.split(","), arguments.reviews_texts)
    details = {"families": [dataclasses.asdict(row) for row in rows]}
    run = ladders.description(plan)
    _record(GpuNumbers(FORMAT, run, plan.device, plan.dtype, arguments.models, details), arguments)
    print(report_families(rows))
    return 0


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan, every "auto" decided.

    Raises ConfigError.
    """
    device = resolved_device(arguments.device)
    rungs = chosen_rungs(device, getattr(arguments, "rungs", None))
    counts = subsets(getattr(arguments, "subset", []), device)
    known = {rung.name for rung in chosen_rungs(device, None)}
    for name in counts.keys() - known:
        raise ConfigError(f"--subset: {name!r} is not one of {', '.join(sorted(known))}")
    return Plan(
        device=device,
        dtype=half_type(device) if arguments.dtype == AUTO else arguments.dtype,
        threads=arguments.threads or detect().cpus,
        model=arguments.model,
        rungs=rungs,
        workloads=getattr(arguments, "workloads", "reviews").split(","),
        texts=getattr(arguments, "texts", 1000),
        rounds=arguments.rounds,
        subsets=counts,
        reviews=arguments.reviews,
        commit=arguments.commit,
    )


def _record(results: Ladder | GpuNumbers, arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        write(results, arguments.json)


def _show(result: Ladder, arguments: argparse.Namespace) -> int:
    """Table, distance, details and picture; 1 when something in them is wrong."""
    details = result.details or {}
    print(table(result))
    print()
    print(distance(result))
    if details:
        print()
        print(report(details))
    if arguments.svg is not None:
        arguments.svg.parent.mkdir(parents=True, exist_ok=True)
        arguments.svg.write_text(picture(result), encoding="utf-8")
    return 1 if result.failures or faults(details) else 0
