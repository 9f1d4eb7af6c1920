"""Throughput against p99, a line for each trial: SVG by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from packhorse.tools.bench.units import digits
from packhorse.tools.tune.results import Point, Trial, Tuning

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 64, 56
"""Room around the axes."""

STYLE = """\
.tune text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.tune .title { font-size: 16px; font-weight: 600 }
.tune .muted { fill: #59636e }
.tune .paper { fill: #ffffff }
.tune .grid { stroke: #d1d9e0 }
.tune .limit { stroke: #cf222e; stroke-dasharray: 5 4 }
.tune .trial { fill: none; stroke: #8c959f; stroke-width: 1.2 }
.tune .dot { fill: #8c959f }
.tune .best { fill: none; stroke: #0969da; stroke-width: 2.5 }
.tune .bestdot { fill: #0969da }
@media (prefers-color-scheme: dark) {
  .tune text { fill: #f0f6fc }
  .tune .muted { fill: #9198a1 }
  .tune .paper { fill: #0d1117 }
  .tune .grid { stroke: #3d444d }
  .tune .limit { stroke: #ff7b72 }
  .tune .trial { stroke: #656c76 }
  .tune .dot { fill: #656c76 }
  .tune .best { stroke: #4493f8 }
  .tune .bestdot { fill: #4493f8 }
}"""


def picture(tuning: Tuning) -> str:
    """The SVG file's text; readable on light and on dark pages, and without seeing it."""
    limit = tuning.p99_ms
    points = [p for trial in tuning.trials for p in trial.lower(limit) if not p.errors]
    axes = _Axes(points, tuning.p99_ms)
    title = f"Texts a second against p99: {tuning.model}, {len(tuning.trials)} settings tried"
    others = [trial for trial in tuning.trials if trial != tuning.best]
    return "\n".join(
        [
            f'<svg class="tune" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(_sentence(tuning))}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>',
            f'<text class="muted" x="{LEFT}" y="48">{escape(_sentence(tuning))}</text>',
            axes.grid(),
            *(_line(trial, limit, axes, "trial", "dot") for trial in others),
            _line(tuning.best, limit, axes, "best", "bestdot"),
            "</svg>\n",
        ]
    )


class _Axes:
    """p99 in ms on a logarithmic axis, texts a second on a plain one from 0."""

    def __init__(self, points: Sequence[Point], p99_ms: float | None) -> None:
        values = [max(point.p99_ms, 0.01) for point in points] + ([p99_ms] if p99_ms else [])
        self._low = math.floor(math.log10(min(values)) * 2) / 2
        self._high = max(self._low + 0.5, math.ceil(math.log10(max(values)) * 2) / 2)
        most = max((point.texts_per_second for point in points), default=1.0)
        self._step = _round_step(most / 4)
        self._most = self._step * math.ceil(1.02 * most / self._step)
        self._limit = p99_ms

    def x(self, milliseconds: float) -> float:
        share = (math.log10(max(milliseconds, 0.01)) - self._low) / (self._high - self._low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - rate / self._most * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> str:
        parts = []
        for half in range(round(2 * self._low), round(2 * self._high) + 1):
            value = 10.0 ** (half / 2) if half % 2 == 0 else 3 * 10.0 ** ((half - 1) / 2)
            x = self.x(value)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'<text class="muted" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" '
                f'text-anchor="middle">{digits(value)} ms</text>'
            )
        for part in range(round(self._most / self._step) + 1):
            rate = self._step * part
            y = self.y(rate)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="muted" x="{LEFT - 8}" y="{y + 4:.1f}" '
                f'text-anchor="end">{_tick(rate, self._step)}</text>'
            )
        if self._limit is not None:
            x = self.x(self._limit)
            parts.append(
                f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'<text class="muted" x="{x + 6:.1f}" y="{HEIGHT - BOTTOM - 8}">limit '
                f"{digits(self._limit)} ms</text>"
            )
        parts.append(
            f'<text class="muted" x="{WIDTH - RIGHT}" y="{HEIGHT - 14}" text-anchor="end">'
            "p99 latency, logarithmic; texts a second upwards</text>"
        )
        return "\n".join(parts)


def _round_step(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)


def _tick(rate: float, step: float) -> str:
    """Whole where the steps are."""
    return f"{rate:,.0f}" if step >= 1 else f"{rate:g}"


def _line(trial: Trial, p99_ms: float | None, axes: _Axes, line: str, dot: str) -> str:
    points = sorted((p for p in trial.lower(p99_ms) if not p.errors), key=lambda p: p.connections)
    places = [(axes.x(p.p99_ms), axes.y(p.texts_per_second)) for p in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    name = ", ".join(f"{key} {value}" for key, value in trial.settings.items())
    dots = "".join(f'<circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return f'<g><title>{escape(name)}</title><polyline class="{line}" points="{path}"/>{dots}</g>'


def _sentence(tuning: Tuning) -> str:
    best = tuning.best.best(tuning.p99_ms)
    assert best is not None
    limit = "" if tuning.p99_ms is None else f" within {digits(tuning.p99_ms)} ms"
    return (
        f"Best{limit}: {digits(best.texts_per_second)} texts/s, p99 {digits(best.p99_ms)} ms, "
        f"{best.connections} connections"
    )
