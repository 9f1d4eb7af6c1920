"""An examination as people read it."""

from __future__ import annotations

import textwrap

from packhorse.tools.bench.units import digits, scaled
from packhorse.tools.doctor.findings import IDS, Examination, Finding

_WIDTH = 100
_SHOWN_LINES = 8


def diagnosis(examination: Examination) -> str:
    """What was seen, then each finding with its figure, its cost and its remedy."""
    parts = ["\n".join(seen_lines(examination))]
    parts += [_finding(each, examination.texts_per_second) for each in examination.findings]
    parts += [f"not examined: {each}" for each in examination.not_examined]
    if not examination.findings:
        parts.append("Nothing found.")
    return "\n\n".join(parts)


def seen_lines(examination: Examination) -> list[str]:
    """What was seen whatever was found, a sentence each."""
    seen = examination.seen
    lines = [
        f"{examination.subject}: {digits(examination.texts_per_second)} texts/s "
        f"({examination.texts} texts)"
    ]
    if seen.get("forward_passes"):
        lines.append(
            f"{seen['forward_passes']} forward pass{'es' if seen['forward_passes'] > 1 else ''} "
            f"of {seen['module']} on {seen['device']} in "
            f"{seen['dtype']}, {digits(seen['texts_a_pass'])} texts a pass"
        )
    if "tokenizing_texts_per_second" in seen:
        elsewhere = seen["padding_without_packing"]
        lines += [
            f"{seen['device_name']} in {seen['dtype']}, {seen['kernels']}, {seen['cores']} cores",
            f"tokenizing ({seen['tokenizer']}) {digits(seen['tokenizing_texts_per_second'])} "
            f"texts/s, computing {digits(seen['computing_texts_per_second'])} texts/s",
            f"padding that packing spares: {elsewhere['to_128']:.0%} at 128 tokens, "
            f"{elsewhere['batches_of_32']:.0%} in batches of 32",
        ]
    if "launch_us" in seen:
        lines.append(
            f"copies {digits(seen['pinned_to_device_bytes_per_second'] / 1e9)} GB/s from pinned, "
            f"{digits(seen['pageable_to_device_bytes_per_second'] / 1e9)} GB/s from pageable "
            f"memory; a launch {digits(seen['launch_us'])} µs, a blocking copy back "
            f"{digits(seen['blocking_copy_us'])} µs"
        )
    if "device_reserved_bytes" in seen:
        lines.append(
            f"{scaled(seen['device_reserved_bytes'], 'B')} reserved on the GPU, "
            f"{scaled(seen['device_split_bytes'], 'B')} of it in free pieces between others"
        )
    return lines


def _finding(finding: Finding, texts_per_second: float) -> str:
    lines = [f"{finding.id}: {IDS[finding.id]}", *_row("measured", finding.measured)]
    lines += _row("costs", cost(finding, texts_per_second))
    lines += _row("change", finding.change)
    for number, line in enumerate(finding.where[:_SHOWN_LINES]):
        lines += _row("" if number else "where", line)
    return "\n".join(lines)


def cost(finding: Finding, texts_per_second: float) -> str:
    """What it costs, in a sentence."""
    if finding.costs < 0.005 * texts_per_second:
        return "nothing that could be measured now"
    with_change = texts_per_second + finding.costs
    return (
        f"{digits(finding.costs)} texts/s "
        f"({digits(texts_per_second)} would be {digits(with_change)} without it alone)"
    )


def _row(name: str, text: str) -> list[str]:
    indent = " " * 12
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {name:<10}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
