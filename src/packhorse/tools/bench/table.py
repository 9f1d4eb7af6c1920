"""The ladder as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.tools.bench.results import OK, Ladder, Measured, RungResult, WorkloadResult
from packhorse.tools.bench.units import digits

COLUMNS = (
    "rung",
    "type",
    "ms/1000",
    "ms/text",
    "vs naive",
    "vs batched",
    "texts/s",
    "tokens/s",
    "memory MB",
    "CPU s",
    "CPU %",
    "nominal %",
    "executed %",
    "max err",
    "RMS err",
    "label =",
)

LEGEND = """\
ms/1000: for 1000 texts, strings in, scores out, median of {rounds} rounds in which all rungs ran \
in turn.
vs: times faster than the rung, median of the ratios round by round.
memory: {memory}. CPU s: of all threads, for 1000 texts; CPU %: of {cpus} cores.
nominal %, executed %: of the matrix product measured in the same round, counting the model over \
the real tokens, or all that the rung multiplies.
err: of logits against float32, which differ by {spread} between texts; label =: same best label, %.
~ the machine was busy with other work. * fewer texts a round, scaled up.\
"""


def table(ladder: Ladder) -> str:
    """One table for each workload, faults and the legend below."""
    parts = [_of_workload(ladder, each) for each in ladder.workloads]
    faults = [
        f"{rung.name}: {rung.status}: {rung.fault}" for rung in ladder.rungs if rung.status != OK
    ]
    return "\n\n".join([*parts, *(["\n".join(faults)] if faults else []), _legend(ladder)])


def _of_workload(ladder: Ladder, each: WorkloadResult) -> str:
    rows: list[Sequence[str]] = [COLUMNS]
    for rung in ladder.rungs:
        measured = next((row for row in rung.measured if row.workload == each.name), None)
        if measured is not None:
            rows.append(_row(rung, measured, each))
        else:
            rows.append([rung.name, rung.status, *[""] * (len(COLUMNS) - 2)])
    return f"{each.name}: {each.note}, {each.tokens:,} tokens\n{aligned(rows)}"


def _row(rung: RungResult, row: Measured, each: WorkloadResult) -> list[str]:
    marks = ("~" if row.noisy else "") + ("*" if row.texts < each.texts else "")
    agreement = row.agreement
    return [
        rung.name + (" DISAGREES" if agreement.fault else ""),
        (rung.dtype or "").replace("float", "f"),
        marks + digits(row.ms_per_1000),
        digits(row.ms_per_text),
        _or_dash(row.vs_naive),
        _or_dash(row.vs_batched),
        digits(row.texts_per_second),
        f"{row.tokens_per_second:,.0f}",
        f"{row.peak_bytes / 1e6:,.0f}",
        digits(row.cpu_seconds),
        f"{row.cpu_percent:.0f}",
        f"{100 * row.nominal_share:.1f}",
        f"{100 * row.executed_share:.1f}",
        _error(agreement.max_error),
        _error(agreement.rms_error),
        f"{100 * agreement.same_label:.1f}",
    ]


def _or_dash(ratio: float | None) -> str:
    return "-" if ratio is None else f"{digits(ratio)}x"


def _error(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: the first to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _legend(ladder: Ladder) -> str:
    on_cpu = ladder.device == "cpu"
    spread = next((row.agreement.spread for rung in ladder.rungs for row in rung.measured), 0.0)
    return LEGEND.format(
        rounds=ladder.rounds,
        memory="peak of the process, resident" if on_cpu else "most that PyTorch took of the GPU",
        cpus=ladder.run.machine["cpus"],
        spread=digits(spread),
    )
