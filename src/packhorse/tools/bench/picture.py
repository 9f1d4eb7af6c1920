"""The ladder as a picture: SVG by hand, texts a second on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from packhorse.tools.bench.results import OK, Ladder, Measured, RungResult
from packhorse.tools.bench.units import digits, scaled

WIDTH, MARGIN, LABEL_ROOM = 960, 24, 230
"""Of the picture, around it, and to the right of a bar for its number."""

HEAD, FOOT, SENTENCE, BAR, GAP = 84, 84, 20, 18, 14
"""Heights: above and below the rungs, of a rung's sentence, of a bar, between rungs."""

STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 18px; font-weight: 600 }
.name { font-weight: 600 }
.muted { fill: #59636e }
.bad { fill: #cf222e }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0 }
.bar0 { fill: #0969da }
.bar1 { fill: #bf8700 }
.bar2 { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .muted { fill: #9198a1 }
  .bad { fill: #ff7b72 }
  .paper { fill: #0d1117 }
  .grid { stroke: #3d444d }
  .bar0 { fill: #4493f8 }
  .bar1 { fill: #d29922 }
  .bar2 { fill: #3fb950 }
}"""


def picture(ladder: Ladder) -> str:
    """The SVG file's text; readable on light and on dark pages, and without seeing it."""
    names = [each.name for each in ladder.workloads]
    scale = _Scale.around([row.texts_per_second for r in ladder.rungs for row in r.measured])
    body, top = [], HEAD
    for rung in ladder.rungs:
        rows = {row.workload: row for row in rung.measured}
        body.append(_sentence(rung, top))
        top += SENTENCE
        for number, name in enumerate(names):
            if name in rows:
                body.append(_bar(rows[name], number, scale, top))
                top += BAR
        top += GAP
    height = top + FOOT
    title = f"Texts a second, rung by rung: {ladder.model} on {_device(ladder)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title summary">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="summary">{escape(_summary(ladder))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            _text(MARGIN, 34, title, "title"),
            _key(names),
            scale.grid(HEAD - 8, top),
            *body,
            *_foot(ladder, top + 44),
            "</svg>\n",
        ]
    )


class _Scale:
    """A logarithmic axis from one power of ten to another."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    @classmethod
    def around(cls, values: Sequence[float]) -> _Scale:
        """Whole powers of ten that enclose the values."""
        exponents = [math.log10(value) for value in values] or [0.0]
        low = math.floor(min(exponents))
        return cls(low, max(low + 1, math.ceil(max(exponents))))

    def x(self, value: float) -> float:
        """Pixels from the left."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return MARGIN + share * (WIDTH - 2 * MARGIN - LABEL_ROOM)

    def grid(self, top: float, bottom: float) -> str:
        """A line and a label at every power of ten."""
        parts = []
        for exponent in range(self.low, self.high + 1):
            x = self.x(10.0**exponent)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
            parts.append(_text(x, bottom + 16, _power(exponent), "muted", "middle"))
        return "\n".join(parts)


def _power(exponent: int) -> str:
    """1,000,000 and not 1e+06."""
    return f"{10**exponent:,}" if exponent >= 0 else f"{10.0**exponent:g}"


def _sentence(rung: RungResult, top: float) -> str:
    fault = "" if rung.status == OK else f" {rung.status.upper()}"
    change = rung.change if rung.status == OK or rung.measured else f"{rung.change} ({rung.status})"
    return (
        f'<text x="{MARGIN}" y="{top + 13}"><tspan class="name">{escape(rung.name)}</tspan>'
        f'<tspan class="bad">{escape(fault)}</tspan>'
        f'<tspan class="muted" dx="8">{escape(change)}</tspan></text>'
    )


def _bar(row: Measured, number: int, scale: _Scale, top: float) -> str:
    end = scale.x(row.texts_per_second)
    label = f"{digits(row.texts_per_second)} texts/s"
    if row.vs_naive is not None:
        label += f" · {digits(row.vs_naive)}×"
    if row.noisy:
        label += " ~"
    return (
        f'<rect class="bar{number % 3}" x="{MARGIN}" y="{top + 2}" '
        f'width="{max(1.0, end - MARGIN):.1f}" height="{BAR - 4}" rx="2"/>'
        + _text(max(end, MARGIN + 1) + 6, top + BAR - 4, label)
    )


def _key(names: Sequence[str]) -> str:
    """Which colour is which workload."""
    parts, x = [], MARGIN
    for number, name in enumerate(names):
        parts.append(
            f'<rect class="bar{number % 3}" x="{x}" y="48" width="12" height="12" rx="2"/>'
            + _text(x + 18, 59, name)
        )
        x += 40 + 8 * len(name)
    return "\n".join(parts)


def _foot(ladder: Ladder, top: float) -> list[str]:
    versions = ladder.run.versions
    lines = (
        f"×: times faster than naive, median of the ratios in {ladder.rounds} interleaved rounds. "
        f"Strings in, scores out. {'~: the machine was busy. ' if _any_noisy(ladder) else ''}",
        f"{ladder.run.date[:10]}, {ladder.run.machine['threads']} threads, torch "
        f"{versions.get('torch')}, transformers {versions.get('transformers')}, commit "
        f"{(ladder.run.commit or 'unknown')[:10]}",
    )
    return [_text(MARGIN, top + 18 * i, line, "muted") for i, line in enumerate(lines)]


def _any_noisy(ladder: Ladder) -> bool:
    return any(row.noisy for rung in ladder.rungs for row in rung.measured)


def _device(ladder: Ladder) -> str:
    machine = ladder.run.machine
    if ladder.device == "cpu":
        return str(machine["cpu"])
    index = int(ladder.device.partition(":")[2] or 0)
    gpus = machine["gpus"]
    return str(gpus[index] if index < len(gpus) else ladder.device)


def _summary(ladder: Ladder) -> str:
    """The numbers as sentences, for those who cannot see the bars."""
    return " ".join(
        f"{rung.name} on {row.workload}: {scaled(row.texts_per_second, 'texts/s')}."
        for rung in ladder.rungs
        for row in rung.measured
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{classes} text-anchor="{anchor}">{escape(text)}</text>'
