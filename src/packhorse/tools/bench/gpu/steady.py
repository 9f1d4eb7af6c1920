"""The steady rate: what the GPU needs for the batches alone, and the same texts end to end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from packhorse import Encoder
from packhorse.engine.model_runner import Launched, ModelRunner
from packhorse.request import Sequences
from packhorse.tools.bench.ceilings import Ceilings
from packhorse.tools.bench.flops import nominal
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.workloads import cut_to

TOKENS_OF_A_LENGTH = 1 << 19
"""How many tokens are measured at one length: 32 full batches."""

LENGTHS = (512, 50)


@dataclass(frozen=True, slots=True)
class SteadyRound:
    """Seconds for all texts: on the GPU alone (events around each batch), from ids to logits on
    the clock, and from strings to scores; and FLOP/s of the matrix product."""

    gpu: float
    from_ids: float
    end_to_end: float
    matmul_flops: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Medians over the rounds; shares are taken within a round.

    gpu_nominal_share  nominal FLOPs a second of the GPU alone, of the matrix product's
    end_to_end_share   texts a second from strings to scores, of the GPU's alone
    """

    texts: int
    distinct: int
    tokens: int
    batches: int
    matmul_flops: float
    gpu_texts_per_second: float
    gpu_tokens_per_second: float
    gpu_ms_per_1000: float
    gpu_nominal_share: float
    end_to_end_texts_per_second: float
    end_to_end_share: float
    rounds: list[SteadyRound]


@dataclass(frozen=True, slots=True)
class AtLength:
    """Texts of one length, on the GPU alone."""

    length: int
    texts: int
    tokens_per_second: float
    texts_per_second: float
    nominal_share: float


def measure_steady(material: Material) -> Steady:
    """All reviews, several rounds; product, GPU and whole library in turn."""
    plan, sequences = material.plan, material.sequences
    batches = list(material.batches.batches(sequences))
    ceilings = Ceilings(plan.device, [plan.dtype], plan.threads)
    rounds = []
    with Encoder(material.place().folder, plan.device, plan.dtype) as encoder:
        encoder.predict_proba(material.texts)
        for _ in range(plan.rounds):
            peak = ceilings.measure()[plan.dtype].flops
            started = time.perf_counter()
            gpu = gpu_seconds(material.runner, batches)
            from_ids = time.perf_counter() - started
            started = time.perf_counter()
            encoder.predict_proba(material.texts)
            rounds.append(SteadyRound(gpu, from_ids, time.perf_counter() - started, peak))
    flops = nominal(material.size, sequences.lengths)
    texts = len(sequences)
    gpu_only = median(each.gpu for each in rounds)
    return Steady(
        texts=texts,
        distinct=len(set(material.texts)),
        tokens=sequences.num_tokens,
        batches=len(batches),
        matmul_flops=median(each.matmul_flops for each in rounds),
        gpu_texts_per_second=texts / gpu_only,
        gpu_tokens_per_second=sequences.num_tokens / gpu_only,
        gpu_ms_per_1000=1e6 * gpu_only / texts,
        gpu_nominal_share=median(flops / each.gpu / each.matmul_flops for each in rounds),
        end_to_end_texts_per_second=texts / median(each.end_to_end for each in rounds),
        end_to_end_share=median(each.gpu / each.end_to_end for each in rounds),
        rounds=rounds,
    )


def measure_lengths(material: Material) -> list[AtLength]:
    """Texts that all have 512 or 50 tokens, cut from real ones."""
    plan = material.plan
    ceilings = Ceilings(plan.device, [plan.dtype], plan.threads)
    results = []
    for length in LENGTHS:
        count = TOKENS_OF_A_LENGTH // length
        batches = list(material.batches.batches(cut_to(material.sequences, length, count)))
        gpu_seconds(material.runner, batches)
        times = [gpu_seconds(material.runner, batches) for _ in range(plan.rounds)]
        peak = ceilings.measure()[plan.dtype].flops
        seconds = median(times)
        flops = nominal(material.size, np.full(count, length, np.int32))
        results.append(
            AtLength(
                length,
                count,
                count * length / seconds,
                count / seconds,
                flops / seconds / peak,
            )
        )
    return results


def gpu_seconds(runner: ModelRunner, batches: Iterable[Sequences]) -> float:
    """What the GPU needs for the batches: copies in, forward pass, copies out.

    Two are in flight, so that none waits for Python; each is timed by CUDA
    events on the one stream they share, so waiting is not counted.
    """
    return sum(output for output in _seconds(runner, batches))


def _seconds(runner: ModelRunner, batches: Iterable[Sequences]) -> Iterable[float]:
    running: deque[Launched] = deque()
    for batch in batches:
        if len(running) == runner.max_in_flight:
            yield running.popleft().output().seconds
        running.append(runner.launch(batch))
    while running:
        yield running.popleft().output().seconds
