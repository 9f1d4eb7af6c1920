"""A report as people read it."""

from __future__ import annotations

from typing import Any

from packhorse.tools.bench.units import digits


def summary(report: dict[str, Any]) -> str:
    """A few lines; what went wrong comes last, and says so."""
    lines = [_load(report), _rates(report), _latencies("latency", report["latency_ms"])]
    lines += [_latencies(name, times) for name, times in report["server_ms"].items()]
    statuses = ", ".join(f"{count:,} × {status}" for status, count in report["by_status"].items())
    lines.append(f"answers       {statuses or 'none'}, of {report['sent']:,} sent")
    if report.get("server"):
        used = report["server"]["cpu_seconds"]
        lines.append("server        CPU s: " + ", ".join(f"{k} {v:.2f}" for k, v in used.items()))
    lines += [f"ERROR         {count:,} × {what}" for what, count in report["errors"].items()]
    lines += [f"ERROR         {what}" for what in report["wrong_answers"]]
    lines += [f"WARNING       the load generator is the bottleneck: {reason}"
              for reason in report["generator"]["reasons"]]  # fmt: skip
    waiting = report["generator"]["most_waiting_for_a_connection"]
    if waiting:
        lines.append(
            f"WARNING       up to {waiting:,} requests waited for a free connection (it counts as "
            "latency): the server is too slow for this rate, or there are too few --connections"
        )
    return "\n".join(line for line in lines if line)


def _load(report: dict[str, Any]) -> str:
    if report["loop"] == "open":
        loop = f"open loop, {digits(report['rate'])} requests/s, Poisson,"
    else:
        loop = "closed loop,"
    sizes = "/".join(map(str, report["batches"])) if report["batches"] else "?"
    return (
        f"load          {loop} {report['connections']} connections, "
        f"{report['processes']} processes, {sizes} texts a request, "
        f"{report['distinct_bodies']:,} bodies, {digits(report['duration_seconds'])} s"
    )


def _rates(report: dict[str, Any]) -> str:
    parts = [
        f"{digits(report['requests_per_second'])} requests/s",
        f"{digits(report['texts_per_second'])} texts/s",
    ]
    if report["tokens_per_second"] is not None:
        parts.append(f"{digits(report['tokens_per_second'])} tokens/s")
    if report["goodput_per_second"] is not None:
        parts.append(
            f"{digits(report['goodput_per_second'])} requests/s "
            f"within {digits(report['deadline_ms'])} ms"
        )
    return f"rate          {', '.join(parts)}"


def _latencies(name: str, times: dict[str, float] | None) -> str:
    if times is None:
        return ""
    shown = {"p50": "p50", "p90": "p90", "p99": "p99", "p99.9": "p999", "max": "max"}
    values = ", ".join(f"{label} {digits(times[key])}" for label, key in shown.items())
    return f"{name:13} {values} ms"
