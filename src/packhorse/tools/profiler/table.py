"""A profile as a table on the terminal."""

from __future__ import annotations

from packhorse.tools.bench.units import digits, scaled
from packhorse.tools.profiler.roofline import Operation, Profile

HEADINGS = ("operation", "calls", "ms", "share", "FLOPs", "bytes", "bound by", "of roofline")


def table(profile: Profile) -> str:
    """The ceilings, a row for each operation, and how much of the time they account for."""
    rows = [HEADINGS, *(row(each, profile.seconds) for each in profile.operations)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in rows
    ]
    ceilings, about = profile.ceilings, profile.subject
    return "\n".join(
        [
            f"{about['model']} on {about['device']} in {about['dtype']}: "
            f"{about['tokens']:,} tokens of {about['sequences']:,} texts in "
            f"{digits(profile.seconds * 1000)} ms, "
            f"{digits(profile.plain_seconds * 1000)} ms unwatched",
            f"ceilings measured here: {scaled(ceilings.flops, 'FLOP/s')} in matrix products, "
            f"{scaled(ceilings.bytes, 'B/s')} in copies",
            "",
            *lines,
            "",
            f"the operations' times add up to {profile.accounted:.0%} of the pass",
            *(f"{name}: {file}" for name, file in profile.files.items()),
            *(f"skipped: {what}" for what in profile.skipped),
        ]
    )


def row(operation: Operation, total: float) -> tuple[str, ...]:
    """The cells of one operation in a pass of ``total`` seconds, under HEADINGS."""
    return (
        operation.name,
        str(operation.calls),
        digits(operation.seconds * 1000),
        f"{operation.seconds / total:.0%}",
        scaled(operation.flops, "FLOP") if operation.flops else "-",
        scaled(operation.bytes, "B"),
        operation.bound,
        f"{operation.roofline:.0%}",
    )
