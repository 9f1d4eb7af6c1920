"""An experiment: do several engines side by side, each with a stream, help small batches?"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as PySequence
from dataclasses import dataclass
from statistics import median

from packhorse.engine.model_runner import Launched, ModelRunner
from packhorse.request import Sequences
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.programs.switches import load_runners

REPLICAS = (1, 2, 4)
TEXTS_A_BATCH = (1, 8, 32, 128)

_MAX_TOKENS = 4096
_BATCHES = 200


@dataclass(frozen=True, slots=True)
class Replicas:
    """Texts a second from ids to logits, batches of ``texts`` handed to ``count`` engines in turn
    by one thread; ``gain`` over one engine."""

    count: int
    texts: int
    texts_per_second: float
    gain: float


def measure_replicas(material: Material) -> list[Replicas]:
    """Engines share the weights; rounds over the counts are interleaved."""
    runners = load_runners(
        material.place(), material.checkpoint, max(REPLICAS), max_tokens=_MAX_TOKENS
    )
    results = []
    for texts in TEXTS_A_BATCH:
        batches = _batches(material.sequences, texts)
        times: dict[int, list[float]] = {count: [] for count in REPLICAS}
        for _ in range(1 + material.plan.rounds):  # the first one is the warm-up
            for count in REPLICAS:
                times[count].append(_seconds(runners[:count], batches))
        alone = median(times[1][1:])
        for count in REPLICAS:
            seconds = median(times[count][1:])
            rate = texts * len(batches) / seconds
            results.append(Replicas(count, texts, rate, alone / seconds))
    for runner in runners:
        runner.close()
    return results


def _batches(sequences: Sequences, texts: int) -> list[Sequences]:
    """Neighbours in the workload, the same number in each; from its start again where it ends."""
    count = max(1, len(sequences) // texts)
    starts = [texts * (i % count) for i in range(_BATCHES)]
    return [sequences.slice(start, min(start + texts, len(sequences))) for start in starts]


def _seconds(runners: PySequence[ModelRunner], batches: list[Sequences]) -> float:
    running: deque[Launched] = deque()
    started = time.perf_counter()
    for i, batch in enumerate(batches):
        if len(running) == len(runners) * runners[0].max_in_flight:
            running.popleft().output()
        running.append(runners[i % len(runners)].launch(batch))
    while running:
        running.popleft().output()
    return time.perf_counter() - started
