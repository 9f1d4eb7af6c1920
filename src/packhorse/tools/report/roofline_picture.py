"""The roofline as a picture: FLOP/s against FLOPs a byte, both logarithmic; SVG by hand."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from packhorse.tools.bench.units import scaled
from packhorse.tools.profiler.roofline import Operation, Profile

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 96, 24, 24, 52
LINE = 15
"""Between two names, one below the other."""

STYLE = """\
.roof text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.roof .muted { fill: #59636e }
.roof .paper { fill: #ffffff }
.roof .grid { stroke: #d1d9e0 }
.roof .ceiling { fill: none; stroke: #0969da; stroke-width: 2 }
.roof .dot { fill: #bf8700 }
@media (prefers-color-scheme: dark) {
  .roof text { fill: #f0f6fc }
  .roof .muted { fill: #9198a1 }
  .roof .paper { fill: #0d1117 }
  .roof .grid { stroke: #3d444d }
  .roof .ceiling { stroke: #4493f8 }
  .roof .dot { fill: #d29922 }
}"""


def roofline_picture(profile: Profile) -> str:
    """A dot for each operation that multiplies, its area by its time, below the measured roof."""
    shown = [each for each in profile.operations if each.flops and each.seconds > 0]
    if not shown:
        return ""
    roof = profile.ceilings
    ridge = roof.flops / roof.bytes
    intensities = [each.flops / each.bytes for each in shown] + [ridge]
    rates = [each.flops / each.seconds for each in shown] + [roof.flops]
    across = _Axis(intensities, LEFT, WIDTH - RIGHT)
    up = _Axis(rates, HEIGHT - BOTTOM, TOP)
    low, high = 10.0**across.low, 10.0**across.high
    corners = [(low, min(low * roof.bytes, roof.flops)), (ridge, roof.flops), (high, roof.flops)]
    floor = 10.0**up.low
    if corners[0][1] < floor:  # the slope leaves the picture at its lower edge
        corners[0] = (floor / roof.bytes, floor)
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in corners)
    names = "; ".join(f"{each.name} {each.roofline:.0%}" for each in shown)
    return "\n".join(
        [
            f'<svg class="roof" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<title>Operations below the roofline</title>",
            f"<desc>Share of the roofline: {escape(names)}.</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            *(_vertical(across, e) for e in range(across.low, across.high + 1)),
            *(_horizontal(up, e) for e in range(up.low, up.high + 1)),
            f'<polyline class="ceiling" points="{line}"/>',
            *(_dot(each, across, up, profile.seconds) for each in shown),
            *_labels(shown, across, up, profile.seconds),
            f'<text class="muted" x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">'
            "FLOPs a byte; FLOP/s upwards; area: share of the time</text>",
            "</svg>\n",
        ]
    )


class _Axis:
    """Whole powers of ten around some values, from pixel ``start`` to ``end``."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        exponents = [math.log10(value) for value in values]
        self.low = math.floor(min(exponents))
        self.high = max(self.low + 1, math.ceil(max(exponents)))
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)


def _vertical(axis: _Axis, exponent: int) -> str:
    x = axis(10.0**exponent)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="muted" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
        f"{10.0**exponent:,g}</text>"
    )


def _horizontal(axis: _Axis, exponent: int) -> str:
    y = axis(10.0**exponent)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="muted" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
        f"{scaled(10.0**exponent, 'FLOP/s')}</text>"
    )


def _dot(operation: Operation, across: _Axis, up: _Axis, total: float) -> str:
    x, y, radius = _place(operation, across, up, total)
    return (
        f'<circle class="dot" fill-opacity="0.6" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        f"<title>{escape(operation.name)}</title></circle>"
    )


def _place(
    operation: Operation, across: _Axis, up: _Axis, total: float
) -> tuple[float, float, float]:
    """Middle and radius of its dot, in pixels."""
    x = across(operation.flops / operation.bytes)
    y = up(operation.flops / operation.seconds)
    return x, y, 3 + 22 * math.sqrt(operation.seconds / total)


def _labels(shown: list[Operation], across: _Axis, up: _Axis, total: float) -> list[str]:
    """Names beside their dots; one that would lie on another goes down until it does not.

    Dots of the right half have them on their left, the others on their right.
    """
    parts = []
    reached = {True: 0.0, False: 0.0}  # where the lowest name of each half lies
    for operation in sorted(shown, key=lambda each: _place(each, across, up, total)[1]):
        x, y, radius = _place(operation, across, up, total)
        is_right = x > WIDTH / 2
        base = reached[is_right] = max(y + 4, reached[is_right] + LINE)
        end = x - radius - 4 if is_right else x + radius + 4
        parts.append(
            f'<text x="{end:.1f}" y="{base:.1f}" '
            f'text-anchor="{"end" if is_right else "start"}">{escape(operation.name)}</text>'
        )
    return parts
