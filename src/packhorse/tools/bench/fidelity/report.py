"""The lines as tables on the terminal."""

from __future__ import annotations

from packhorse.tools.bench.fidelity.lines import LARGEST, RELATIVE, RMS, Fidelity, Line
from packhorse.tools.bench.table import aligned

_COLUMNS = ("family", "problem", "task", "device", "type", "relative", "RMS", "largest", "")

_LEGEND = (
    "relative: largest error against Transformers in float32, as a share of its largest logit; "
    f"float32 may have {RELATIVE:.0e}.\n"
    "RMS, largest: of our errors, as multiples of Transformers' own in the same type; "
    f"{RMS}x and {LARGEST}x are allowed."
)


def report(result: Fidelity) -> str:
    """The lines, the planted faults, and in one sentence whether all is well."""
    lines = aligned([_COLUMNS, *(_row(line) for line in result.lines)])
    planted = aligned(
        [
            ("planted fault", "device", "relative", ""),
            *(
                (
                    each.name,
                    each.device,
                    _small(each.relative),
                    "seen" if each.fault else "NOT SEEN",
                )
                for each in result.planted
            ),
        ]
    )
    failures = result.failures
    held = sum(line.fault is None for line in result.lines)
    seen = sum(each.fault is not None for each in result.planted)
    summary = (
        f"{held} of {len(result.lines)} lines hold over {result.texts:,} texts; "
        f"{seen} of {len(result.planted)} planted faults are seen; {result.seconds:.0f} s"
    )
    return "\n\n".join(
        [lines, _LEGEND, planted, summary, *(["\n".join(failures)] * bool(failures))]
    )


def _row(line: Line) -> tuple[str, ...]:
    return (
        line.family,
        line.problem,
        line.task,
        line.device,
        line.dtype,
        _small(line.relative),
        _ratio(line.rms, line.their_rms),
        _ratio(line.largest, line.their_largest),
        "ok" if line.fault is None else "FAILS",
    )


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}x" if ours is not None and theirs else "-"
