"""How long one short text takes, and the guide's thousand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np

from packhorse import Encoder
from packhorse.errors import ConfigError
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.workloads import SEED_TEXTS

LENGTH = 34
"""Tokens of the text."""

_REPEATS = 500
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds for one text of ``tokens`` tokens.

    gpu         replay of the captured graphs with the copies in and out, by CUDA events
    from_ids    from launch to logits in host memory, by the clock
    end_to_end  ``Encoder.predict_proba`` of one string
    """

    tokens: int
    gpu: float
    gpu_p99: float
    from_ids: float
    from_ids_p99: float
    end_to_end: float
    end_to_end_p99: float


@dataclass(frozen=True, slots=True)
class Thousand:
    """Milliseconds for the guide's 1000 texts, strings in and scores out: median and all rounds."""

    total: float
    rounds: list[float]


def measure_thousand(material: Material) -> Thousand:
    """``Encoder.predict_proba`` of the workload ``seed``."""
    texts = [SEED_TEXTS[i % 2] for i in range(1000)]
    milliseconds = []
    plan = material.plan
    with Encoder(material.place().folder, plan.device, plan.dtype) as encoder:
        encoder.predict_proba(texts)
        for _ in range(4 * plan.rounds):
            started = time.perf_counter()
            encoder.predict_proba(texts)
            milliseconds.append(1000 * (time.perf_counter() - started))
    return Thousand(median(milliseconds), milliseconds)


def measure_latency(material: Material) -> Latency:
    """One after the other, on an idle GPU."""
    rows = np.flatnonzero(material.sequences.lengths == LENGTH)
    if not len(rows):
        raise ConfigError(f"no review has {LENGTH} tokens")
    row = int(rows[0])
    sequence, text = material.sequences.slice(row, row + 1), [material.texts[row]]
    gpu, from_ids, end_to_end = [], [], []
    for _ in range(_WARM_UP + _REPEATS):
        started = time.perf_counter()
        output = material.runner.launch(sequence).output()
        from_ids.append(time.perf_counter() - started)
        gpu.append(output.seconds)
    plan = material.plan
    with Encoder(material.place().folder, plan.device, plan.dtype) as encoder:
        for _ in range(_WARM_UP + _REPEATS):
            started = time.perf_counter()
            encoder.predict_proba(text)
            end_to_end.append(time.perf_counter() - started)
    return Latency(LENGTH, *_both(gpu), *_both(from_ids), *_both(end_to_end))


def _both(seconds: list[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds, without the warm-up."""
    measured = seconds[_WARM_UP:]
    return 1000 * median(measured), 1000 * quantiles(measured, n=100)[98]
