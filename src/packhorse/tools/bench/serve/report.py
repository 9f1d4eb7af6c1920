"""From the rows of all load processes to rates, latencies and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.tools.bench.serve.generator import Share
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.tally import COLUMNS, FAULT_NAMES, Fault

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}

BUSY_CPU = 0.9
"""A load process that uses this much of a core is too slow to be trusted."""

LATE_SECONDS = 0.01
"""So is one whose event loop or schedule is this late in a hundredth of the cases."""

Numbers = NDArray[np.float64]


class Rows:
    """The rows of all processes, (requests, COLUMNS), by the names of their columns."""

    def __init__(self, table: Numbers) -> None:
        self._table = table

    def __getitem__(self, column: str) -> Numbers:
        return self._table[:, COLUMNS.index(column)]

    def __len__(self) -> int:
        return len(self._table)

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        return Rows(self._table[chosen])

    @property
    def is_right(self) -> NDArray[np.bool_]:
        """2xx, and nothing wrong with the answer."""
        status = self["status"]
        right: NDArray[np.bool_] = (status >= 200) & (status < 300) & (self["fault"] == Fault.NONE)
        return right


def report_of(
    plan: Plan, shares: Sequence[Share], measured: float, deadline: float | None
) -> dict[str, Any]:
    """Everything that was measured, ready for JSON.

    measured   the moment when the warm-up ended
    deadline   in seconds: answers that took longer are no goodput

    Requests count for latencies and statuses when they were due while measuring; for rates when
    their answers came while measuring. ``totals`` has all requests, those of the warm-up too: what
    the server itself should have counted.
    """
    rows = Rows(np.concatenate([share.table for share in shares]))
    end = measured + plan.duration
    due = rows.where((rows["intended"] >= measured) & (rows["intended"] < end))
    answered = rows.where((rows["ended"] >= measured) & (rows["ended"] < end) & rows.is_right)
    latency = answered_latency(due)
    seconds = plan.duration
    return {
        "loop": "closed" if plan.rate is None else "open",
        "route": plan.route,
        "rate": plan.rate,
        "connections": plan.connections,
        "processes": plan.processes,
        "batches": list(plan.batches) if not plan.bodies else None,
        "distinct_bodies": sum(share.distinct for share in shares),
        "warm_up_seconds": plan.warm_up,
        "duration_seconds": seconds,
        "sent": len(due),
        "answered_2xx": int(due.is_right.sum()),
        "by_status": by_status(due),
        "errors": errors(due),
        "wrong_answers": [wrong for share in shares for wrong in share.wrong][:5],
        "requests_per_second": len(answered) / seconds,
        "texts_per_second": float(answered["texts"].sum()) / seconds,
        "tokens_per_second": _sum(answered["tokens"], seconds),
        "deadline_ms": None if deadline is None else deadline * 1000,
        "goodput_per_second": None
        if deadline is None
        else int((answered_latency(answered) <= deadline).sum()) / seconds,
        "latency_ms": spread(latency * 1000),
        "server_ms": {
            name: spread(due.where(due.is_right)[name])
            for name in ("total", "queue", "tokenization", "inference")
        },
        "totals": {
            "sent": len(rows),
            "by_status": by_status(rows),
            "errors": errors(rows),
            "texts": int(rows.where(rows.is_right)["texts"].sum()),
            "tokens": _sum(rows.where(rows.is_right)["tokens"], 1.0),
        },
        "generator": generator_report(shares),
    }


def answered_latency(rows: Rows) -> Numbers:
    """Seconds from the moment a request was due to its right answer, of those that have one."""
    right = rows.where(rows.is_right)
    return right["ended"] - right["intended"]


def by_status(rows: Rows) -> dict[str, int]:
    """How many answers there were of each status."""
    values, counts = np.unique(rows["status"].astype(int), return_counts=True)
    return {str(v): c for v, c in zip(values.tolist(), counts.tolist(), strict=True) if v}


def errors(rows: Rows) -> dict[str, int]:
    """How many requests have no right answer, by what went wrong."""
    values, counts = np.unique(rows["fault"].astype(int), return_counts=True)
    return {
        FAULT_NAMES[Fault(v)]: c for v, c in zip(values.tolist(), counts.tolist(), strict=True) if v
    }


def spread(values: Numbers) -> dict[str, float] | None:
    """Mean, quantiles and maximum; None without values. Each quantile is one of the values."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    levels = np.quantile(values, list(QUANTILES.values()), method="higher").tolist()
    return {
        "mean": float(values.mean()),
        **dict(zip(QUANTILES, levels, strict=True)),
        "max": float(values.max()),
    }


def generator_report(shares: Sequence[Share]) -> dict[str, Any]:
    """How the load processes fared, and whether they are what was measured."""
    beats = _p99(np.concatenate([share.beats for share in shares]))
    late = _p99(np.concatenate([share.late for share in shares]))
    cpu = max(share.cpu for share in shares)
    reasons = []
    if cpu >= BUSY_CPU:
        reasons.append(f"a load process used {cpu:.0%} of a core: give it more --processes")
    if beats >= LATE_SECONDS:
        reasons.append(f"event loops of load processes were {beats * 1000:.0f} ms late (p99)")
    if late >= LATE_SECONDS:
        reasons.append(f"requests were sent {late * 1000:.0f} ms behind schedule (p99)")
    return {
        "is_bottleneck": bool(reasons),
        "reasons": reasons,
        "cpu": [share.cpu for share in shares],
        "loop_late_ms_p99": beats * 1000,
        "schedule_late_ms_p99": late * 1000,
        "most_waiting_for_a_connection": max(share.backlog for share in shares),
        "reconnects": sum(share.reconnects for share in shares),
    }


def _p99(values: Numbers) -> float:
    return float(np.quantile(values, 0.99)) if len(values) else 0.0


def _sum(values: Numbers, seconds: float) -> float | None:
    """Their sum a second, or None where the answers did not say."""
    values = values[~np.isnan(values)]
    return float(values.sum()) / seconds if len(values) else None
