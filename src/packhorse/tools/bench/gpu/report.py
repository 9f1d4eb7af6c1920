"""The GPU's numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packhorse.tools.bench.table import aligned
from packhorse.tools.bench.units import digits, scaled


def report(details: Mapping[str, Any]) -> str:
    """One paragraph a part, in their order; a part that failed says why."""
    return "\n\n".join(
        f"{name}: FAILED: {details[name]['fault']}"
        if isinstance(details[name], dict) and "fault" in details[name]
        else write(details[name])
        for name, write in _WRITERS.items()
        if name in details
    )


def _ready(part: Mapping[str, Any]) -> str:
    return (
        f"ready: first answer {part['cold']:.1f} s after the process started with no compiled "
        f"kernels, {part['warm']:.1f} s with them"
    )


def _memory(part: Mapping[str, Any]) -> str:
    return (
        f"memory: {part['reserved'] / 1e6:,.0f} MB taken by PyTorch for batches of "
        f"{part['batch_tokens']:,} tokens, {part['device'] / 1e6:,.0f} MB in use on the GPU "
        f"({part['device_by']})"
    )


def _thousand(part: Mapping[str, Any]) -> str:
    return (
        f"the guide's 1000 texts: {part['total']:.2f} ms from strings to scores, the best of "
        f"{len(part['rounds'])} rounds {min(part['rounds']):.2f} ms"
    )


def _steady(part: Mapping[str, Any]) -> str:
    return (
        f"steady, {part['texts']:,} texts of which {part['distinct']:,} are distinct, "
        f"{part['tokens']:,} tokens:\n"
        f"  GPU alone    {part['gpu_texts_per_second']:,.0f} texts/s "
        f"({part['gpu_ms_per_1000']:.2f} ms for 1000), "
        f"{scaled(part['gpu_tokens_per_second'], 'tokens/s')}, "
        f"{100 * part['gpu_nominal_share']:.1f}% of the {scaled(part['matmul_flops'], 'FLOP/s')} "
        "of a matrix product, by nominal FLOPs\n"
        f"  end to end   {part['end_to_end_texts_per_second']:,.0f} texts/s, "
        f"{100 * part['end_to_end_share']:.1f}% of that"
    )


def _lengths(part: list[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"texts of {row['length']} tokens: {scaled(row['tokens_per_second'], 'tokens/s')}, "
        f"{100 * row['nominal_share']:.1f}% of the matrix product"
        for row in part
    )


def _latency(part: Mapping[str, Any]) -> str:
    return (
        f"one text of {part['tokens']} tokens: {part['gpu']:.3f} ms on the GPU "
        f"(p99 {part['gpu_p99']:.3f}), {part['from_ids']:.3f} ms from ids to logits "
        f"({part['from_ids_p99']:.3f}), {part['end_to_end']:.3f} ms from string to scores "
        f"({part['end_to_end_p99']:.3f})"
    )


def _precision(part: list[Mapping[str, Any]]) -> str:
    rows = [("logits against float32", "texts", "RMS", "max", "label =", "spread")]
    for row in part:
        for whose in ("ours", "theirs"):
            if (found := row[whose]) is not None:
                name = "packhorse" if whose == "ours" else "transformers"
                rows.append(
                    (
                        f"{name} {row['dtype']}",
                        f"{found['texts']:,}",
                        f"{found['rms_error'] or float('nan'):.2e}",
                        f"{found['max_error'] or float('nan'):.2e}",
                        f"{100 * found['same_label']:.2f}%",
                        digits(found["spread"]),
                    )
                )
    return aligned(rows)


def _padding(part: list[Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = [
        ("padding of graph buckets", "tokens", "sequences", "worst tokens")
    ]
    for row in part:
        name = "full load" if row["texts"] is None else f"{row['texts']} concurrent texts"
        shares = (row["tokens"], row["sequences"], row["worst_tokens"])
        rows.append((name, *(f"{100 * share:.1f}%" for share in shares)))
    return aligned(rows)


def _replicas(part: list[Mapping[str, Any]]) -> str:
    rows = [("engines side by side", "texts a batch", "texts/s", "gain")]
    rows += [
        (
            str(row["count"]),
            str(row["texts"]),
            f"{row['texts_per_second']:,.0f}",
            f"{row['gain']:.2f}x",
        )
        for row in part
    ]
    return aligned(rows)


def faults(details: Mapping[str, Any]) -> list[str]:
    """What failed, by part."""
    return [
        f"{name}: {part['fault']}"
        for name, part in details.items()
        if isinstance(part, dict) and "fault" in part
    ]


_WRITERS: dict[str, Callable[[Any], str]] = {
    "ready": _ready,
    "memory": _memory,
    "thousand": _thousand,
    "steady": _steady,
    "lengths": _lengths,
    "latency": _latency,
    "precision": _precision,
    "padding": _padding,
    "replicas": _replicas,
}
