"""A comparison as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.tools.bench.results import OK
from packhorse.tools.bench.rivals.results import Comparison, Entry, Ratio
from packhorse.tools.bench.table import aligned
from packhorse.tools.bench.units import digits

COLUMNS = (
    "configuration",
    "type",
    "texts/s",
    "low",
    "high",
    "vs naive",
    "memory MB",
    "max err",
    "RMS err",
    "label =",
)

LEGEND = """\
texts/s: strings in, probabilities out, median of {rounds} rounds in which all ran in turn; low, \
high: of all samples.
err: of logits against float32, which differ by {spread} between texts; label =: same best label, %.
~ the cores were busy with other work. * fewer texts a round, scaled up.\
"""


def table(comparison: Comparison) -> str:
    """Where and with what, the rates, the ratios, what was left out, and the legend."""
    parts = [_heading(comparison)]
    rows: list[Sequence[str]] = [COLUMNS]
    ran = [entry for entry in comparison.entries if entry.samples]
    rows += [_row(entry, comparison.texts) for entry in ran]
    parts.append(aligned(rows))
    notes = [f"{entry.name}: {entry.note}" for entry in ran if entry.note]
    parts += ["\n".join(notes)] if notes else []
    parts += ["\n".join(map(_ratio, comparison.ratios))] if comparison.ratios else []
    bad = [f"{e.name}: {e.status}: {e.fault}" for e in comparison.entries if e.status != OK]
    parts += ["\n".join(bad)] if bad else []
    parts.append(LEGEND.format(rounds=comparison.rounds, spread=digits(comparison.spread)))
    return "\n\n".join(parts)


def _heading(comparison: Comparison) -> str:
    versions = comparison.run.versions.items()
    amx = {True: "AMX granted", False: "no AMX", None: "AMX unknown"}
    states = {amx[e.has_amx] for e in comparison.entries if e.samples}
    return "\n".join(
        [
            f"{comparison.model}, {comparison.workload}, {comparison.tokens:,} tokens; "
            f"{comparison.run.machine['cpu']}, cores {_numbers(comparison.cores)}; "
            f"{', '.join(sorted(states))}{', kept from all' if comparison.no_amx else ''}",
            ", ".join(f"{name} {version}" for name, version in versions if version),
        ]
    )


def _numbers(cores: list[int]) -> str:
    return " ".join(map(str, cores))


def _row(entry: Entry, texts: int) -> list[str]:
    marks = ("~" if entry.noisy else "") + ("*" if entry.texts < texts else "")
    rates = [entry.texts / sample.seconds for sample in entry.samples]
    agreement = entry.agreement
    assert agreement is not None
    errors = [agreement.max_error, agreement.rms_error]
    return [
        entry.name,
        (entry.dtype or "").replace("float", "f"),
        marks + digits(entry.texts_per_second),
        digits(min(rates)),
        digits(max(rates)),
        "-" if entry.vs_naive is None else f"{digits(entry.vs_naive)}x",
        f"{entry.peak_bytes / 1e6:,.0f}",
        *("none" if error is None else f"{error:.1e}" for error in errors),
        f"{100 * agreement.same_label:.1f}",
    ]


def _ratio(ratio: Ratio) -> str:
    low, high = min(ratio.rounds), max(ratio.rounds)
    return (
        f"{ratio.ours} is {ratio.ratio:.2f}x {ratio.rival}, the best of: {ratio.group} "
        f"({low:.2f} to {high:.2f} in {len(ratio.rounds)} rounds)"
    )
