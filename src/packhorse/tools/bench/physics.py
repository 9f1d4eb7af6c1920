"""The physics first: what has to be done, what the device can do, and then the distance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.results import OK, Ladder, WorkloadResult
from packhorse.tools.bench.units import scaled


def counted(model: str, dtype: str, size: ModelSize, workloads: Sequence[WorkloadResult]) -> str:
    """The counted work, before anything is measured."""
    lines = [
        f"{model}: {size.layers} layers, hidden size {size.hidden}, "
        f"{size.parameters_in_products:,} weights in matrix products"
    ]
    for each in workloads:
        intensity = each.nominal_flops / each.least_bytes
        lines += [
            f"  {each.name}: {each.note}",
            f"    {each.tokens:,} tokens, the longest text {each.longest}",
            f"    {scaled(each.nominal_flops, 'FLOP')} in matrix products over them, "
            f"{scaled(each.first_token_flops, 'FLOP')} if the last layer computes what is read",
            f"    {scaled(each.least_bytes, 'B')} to move at least in {dtype}: "
            f"{intensity:.0f} FLOP a byte",
        ]
    return "\n".join(lines)


def distance(ladder: Ladder) -> str:
    """Ceilings measured in the run, the least time by them, and how far the best rung is off."""
    peak = median(ceiling.flops for ceiling in ladder.ceilings[ladder.dtype])
    rate = median(ceiling.bytes for ceiling in ladder.ceilings[ladder.dtype])
    n = ladder.matmul_size
    lines = [
        f"measured in this run: {scaled(peak, 'FLOP/s')} in a {n} x {n} x {n} {ladder.dtype} "
        f"product, {scaled(rate, 'B/s')} in a copy"
    ]
    for each in ladder.workloads:
        arithmetic = 1000 * each.nominal_flops / peak
        moving = 1000 * each.least_bytes / rate
        lines.append(
            f"  {each.name}: {each.texts} texts take at least {arithmetic:,.1f} ms of arithmetic "
            f"and {moving:,.1f} ms of moving bytes{_best(ladder, each, max(arithmetic, moving))}"
        )
    return "\n".join(lines)


def _best(ladder: Ladder, each: WorkloadResult, least: float) -> str:
    rows = [
        (row.ms_per_text * each.texts, rung.name)
        for rung in ladder.rungs
        if rung.status == OK
        for row in rung.measured
        if row.workload == each.name
    ]
    if not rows:
        return ""
    taken, name = min(rows)
    return f"; {name} takes {taken:,.1f} ms, {taken / least:.1f} times the larger of the two"
