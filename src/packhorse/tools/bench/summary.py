"""From the samples of all rounds to the columns of the table.

Trusted are ratios of samples of one round: a machine drifts by more than the
rungs differ, but not between two programs run within a minute of each other.
So each ratio is taken in its round, and the median of the ratios counts.
Samples taken while other work was busy count only where fewer than half are
quiet; then all do, and the row is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from packhorse.tools.bench.agreement import Agreement
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.bench.results import Measured, Sample
from packhorse.tools.bench.worker import Timing


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was recorded of one rung on one workload.

    tokens, nominal_flops  of the texts of one round
    """

    workload: str
    tokens: int
    nominal_flops: int
    dtype: str
    agreement: Agreement
    timings: list[Timing]
    samples: list[Sample]

    def seconds_per_text(self, round_number: int) -> float | None:
        """In one round; None where it has no sample."""
        for sample, timing in zip(self.samples, self.timings, strict=True):
            if sample.round == round_number:
                return sample.seconds / timing.texts
        return None


def counting(samples: Sequence[Sample]) -> tuple[list[Sample], bool]:
    """The samples that count, and whether they are noisy."""
    quiet = [sample for sample in samples if sample.is_quiet]
    if 2 * len(quiet) >= len(samples):
        return quiet, False
    return list(samples), True


def measured(
    rounds: Rounds,
    cores: int,
    ceilings: dict[str, list[Ceiling]],
    naive: Rounds | None,
    batched: Rounds | None,
) -> Measured:
    """One row of the table."""
    samples, noisy = counting(rounds.samples)
    texts = rounds.timings[0].texts
    executed = rounds.timings[0].executed_flops
    seconds = median(sample.seconds for sample in samples)

    def share(flops: int) -> float:
        peaks = ceilings[rounds.dtype]
        return median(flops / sample.seconds / peaks[sample.round].flops for sample in samples)

    return Measured(
        workload=rounds.workload,
        texts=texts,
        samples=rounds.samples,
        noisy=noisy,
        ms_per_1000=seconds / texts * 1e6,
        ms_per_text=seconds / texts * 1e3,
        texts_per_second=texts / seconds,
        tokens_per_second=rounds.tokens / seconds,
        cpu_seconds=median(sample.cpu_seconds for sample in samples) / texts * 1000,
        cpu_percent=100 * median(s.cpu_seconds / s.seconds / cores for s in samples),
        peak_bytes=max(timing.peak_bytes for timing in rounds.timings),
        vs_naive=_ratio(samples, texts, naive),
        vs_batched=_ratio(samples, texts, batched),
        nominal_flops=rounds.nominal_flops,
        executed_flops=executed,
        nominal_share=share(rounds.nominal_flops),
        executed_share=share(executed),
        agreement=agreement_of(rounds),
    )


def _ratio(samples: Sequence[Sample], texts: int, base: Rounds | None) -> float | None:
    """How many times faster than ``base``: the median of the ratios round by round."""
    if base is None:
        return None
    per_text: Callable[[int], float | None] = base.seconds_per_text
    ratios = [
        other / (sample.seconds / texts)
        for sample in samples
        if (other := per_text(sample.round)) is not None
    ]
    return median(ratios) if ratios else None


def agreement_of(rounds: Rounds) -> Agreement:
    """That of the logits, and the worst of the timed scores."""
    faults = [rounds.agreement.fault, *(timing.fault for timing in rounds.timings)]
    errors = [timing.score_error for timing in rounds.timings]
    return replace(
        rounds.agreement,
        score_error=None if None in errors else max(e for e in errors if e is not None),
        fault=next((fault for fault in faults if fault is not None), None),
    )
