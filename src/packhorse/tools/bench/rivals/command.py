"""What `packhorse bench rivals` does: hold all to the same cores, climb, compare, print, write."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.request import Int32Array
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench import amx, ladder
from packhorse.tools.bench.climb import Climber, climb, say
from packhorse.tools.bench.preparation import Plan, Prepared, compute_reference, prepare
from packhorse.tools.bench.programs.padded_batches import CALIBRATION
from packhorse.tools.bench.results import DISAGREES, OK
from packhorse.tools.bench.rivals.configurations import LIBRARIES, chosen, obstacle
from packhorse.tools.bench.rivals.cores import pin
from packhorse.tools.bench.rivals.ratios import by_round, ratios
from packhorse.tools.bench.rivals.results import FORMAT, Comparison, Entry, write
from packhorse.tools.bench.rivals.table import table
from packhorse.tools.bench.summary import agreement_of, counting
from packhorse.tools.bench.worker_process import WorkerError
from packhorse.tools.bench.workloads import distinct_reviews
from packhorse.tools.output_files import check_outputs

WORKLOAD = "reviews"

CALIBRATION_TEXTS = 128


def run(arguments: argparse.Namespace) -> int:
    """Compare; 1 when ours disagrees or anything broke down.

    Raises ConfigError or CheckpointError for what cannot be measured here.
    """
    chosen(arguments.only)  # before anything is changed
    check_outputs(arguments.json)
    allowed = os.sched_getaffinity(0)
    environment = dict(os.environ)
    cores = pin(arguments.threads, arguments.cores)
    say(f"held to cores {', '.join(map(str, cores))}")
    detect.cache_clear()  # what it found before was not held to them
    if arguments.no_amx:
        os.environ.update(amx.ENVIRONMENT)
    try:
        comparison = compare(plan_of(arguments, cores), arguments.no_amx)
    except WorkerError as error:
        raise ConfigError(f"the reference cannot be computed: {error}") from error
    finally:
        os.sched_setaffinity(0, allowed)
        detect.cache_clear()
        for name in amx.ENVIRONMENT.keys() - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(environment)
    if arguments.json is not None:
        write(comparison, arguments.json)
    print(table(comparison))
    return 1 if comparison.failures else 0


def plan_of(arguments: argparse.Namespace, cores: tuple[int, ...]) -> Plan:
    """The plan of a command line.

    Raises ConfigError.
    """
    return Plan(
        device="cpu",
        dtype="float32",
        threads=arguments.threads,
        model=arguments.model,
        rungs=chosen(arguments.only),
        workloads=[WORKLOAD],
        texts=arguments.texts,
        rounds=arguments.rounds,
        subsets={"naive": min(arguments.naive_texts, arguments.texts)},
        reviews=arguments.reviews,
        commit=arguments.commit,
        cores=cores,
        tune=arguments.tune,
    )


def compare(plan: Plan, no_amx: bool) -> Comparison:
    """Measure all configurations of a plan.

    Raises ConfigError or CheckpointError; WorkerError when the reference
    cannot be computed. A configuration that fails is in the result.
    """
    with TemporaryDirectory(prefix="packhorse-bench-") as folder:
        scratch = Path(folder)
        prepared = prepare(plan, scratch)
        (scratch / CALIBRATION).write_text(json.dumps(calibration(plan, prepared)), "utf-8")
        say("computing the reference in float32")
        answers = compute_reference(plan, prepared, scratch)
        climbed = climb(plan, prepared, answers, scratch, ceilings=False, obstacle=obstacle)
    entries = with_naive([entry_of(climber) for climber in climbed.climbers])
    workload = prepared.workloads[0]
    described = ladder.description(plan, LIBRARIES)
    return Comparison(
        format=FORMAT,
        run=described,
        model=plan.model,
        model_note=prepared.model_note,
        threads=plan.threads,
        cores=list(plan.cores or ()),
        no_amx=no_amx,
        rounds=plan.rounds,
        texts=plan.texts,
        tokens=int(workload.lengths.sum()),
        workload=workload.note,
        reference=answers.note,
        spread=answers.spread,
        entries=entries,
        ratios=ratios(entries),
    )


def calibration(plan: Plan, prepared: Prepared) -> list[str]:
    """Reviews after those that are measured, for int8.

    Raises ConfigError when none is left.
    """
    tokenizer = Tokenizer.load(prepared.checkpoint)

    def lengths(texts: Sequence[str]) -> Int32Array:
        return tokenizer.encode(list(texts)).lengths

    others = distinct_reviews(lengths, plan.reviews)[plan.texts :][:CALIBRATION_TEXTS]
    if not others:
        raise ConfigError(f"{plan.reviews} has no texts left to calibrate int8 with: lower --texts")
    return others


def entry_of(climber: Climber) -> Entry:
    """What became of a configuration."""
    rung, rounds = climber.rung, climber.rounds.get(WORKLOAD)
    if climber.status is not None or rounds is None or not rounds.samples:
        return Entry(rung.name, rung.change, climber.status or OK, climber.fault)
    assert climber.worker is not None
    agreement = agreement_of(rounds)
    counted, noisy = counting(rounds.samples)
    texts = rounds.timings[0].texts
    return Entry(
        name=rung.name,
        change=rung.change,
        status=OK if agreement.fault is None else DISAGREES,
        fault=agreement.fault,
        dtype=climber.dtype,
        note=climber.note,
        has_amx=climber.has_amx,
        ready_seconds=climber.worker.ready_seconds,
        texts=texts,
        texts_per_second=texts / median(sample.seconds for sample in counted),
        noisy=noisy,
        peak_bytes=max(timing.peak_bytes for timing in rounds.timings),
        agreement=agreement,
        samples=rounds.samples,
    )


def with_naive(entries: list[Entry]) -> list[Entry]:
    """The same with the ratios to naive, if it ran."""
    naive = next((e for e in entries if e.name == "naive" and e.samples), None)
    if naive is None:
        return entries
    return [replace(e, vs_naive=median(by_round(e, naive))) if e.samples else e for e in entries]
