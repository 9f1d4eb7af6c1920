"""Ours against the best of each group of rivals, within rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from packhorse.tools.bench.results import OK
from packhorse.tools.bench.rivals.results import Entry, Ratio
from packhorse.tools.bench.summary import counting

GROUPS = (
    ("packhorse-fp32", "any rival in float32", ("",), ("float32",)),
    ("packhorse-bf16", "Transformers, compiled or not", ("transformers", "compile"), None),
    ("packhorse-bf16", "OpenVINO in bfloat16", ("openvino",), ("bfloat16",)),
    ("packhorse-bf16", "any rival in float32 or bfloat16", ("",), ("float32", "bfloat16")),
    ("packhorse-int8", "OpenVINO in int8", ("openvino",), ("int8",)),
    ("packhorse-int8", "any rival", ("",), None),
)
"""One of ours, a name for the group, how the names of its rivals begin, and their types."""


def ratios(entries: Sequence[Entry]) -> list[Ratio]:
    """Those that can be had from the entries that ended well."""
    good = {entry.name: entry for entry in entries if entry.status == OK}
    found = []
    for ours, group, prefixes, types in GROUPS:
        rivals = [
            entry
            for entry in good.values()
            if not entry.name.startswith("packhorse")
            and entry.name.startswith(prefixes)
            and (types is None or entry.dtype in types)
        ]
        if ours in good and rivals:
            best = max(rivals, key=lambda entry: entry.texts_per_second)
            times = by_round(good[ours], best)
            found.append(Ratio(ours, group, best.name, median(times), times))
    return found


def by_round(ours: Entry, rival: Entry) -> list[float]:
    """How many times faster ours was in each round in which both samples count.

    All rounds count where in none both were quiet.
    """
    counts = [{sample.round for sample in counting(e.samples)[0]} for e in (ours, rival)]
    seconds = [{s.round: s.seconds / e.texts for s in e.samples} for e in (ours, rival)]
    both = sorted(counts[0] & counts[1]) or sorted(seconds[0].keys() & seconds[1].keys())
    return [seconds[1][number] / seconds[0][number] for number in both]
