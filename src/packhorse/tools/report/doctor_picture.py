"""Texts a second as a program is, and without each fault that was found: bars; SVG by hand."""

from __future__ import annotations

from xml.sax.saxutils import escape

from packhorse.tools.bench.units import digits
from packhorse.tools.doctor.findings import Examination

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 760, 210, 120, 8, 30, 18
"""Of the picture, the names' room, the numbers' room, above; of a row and of its bar."""

STYLE = """\
.doctor text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.doctor .paper { fill: #ffffff }
.doctor .now { fill: #8c959f }
.doctor .without { fill: #0969da }
@media (prefers-color-scheme: dark) {
  .doctor text { fill: #f0f6fc }
  .doctor .paper { fill: #0d1117 }
  .doctor .now { fill: #656c76 }
  .doctor .without { fill: #4493f8 }
}"""


def doctor_picture(examination: Examination) -> str:
    """A bar for now, and one for each finding: what its remedy alone would bring."""
    now = examination.texts_per_second
    rows = [("now", "as it is", now)]
    rows += [("without", f"without {f.id}", now + f.costs) for f in examination.findings]
    most = max(rate for _, _, rate in rows)
    height = 2 * TOP + ROW * len(rows)
    said = "; ".join(f"{name}: {digits(rate)} texts/s" for _, name, rate in rows)
    return "\n".join(
        [
            f'<svg class="doctor" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
            "<title>Texts a second as it is, and without each fault alone</title>",
            f"<desc>{escape(said)}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            *(_bar(*row, place, most) for place, row in enumerate(rows)),
            "</svg>\n",
        ]
    )


def _bar(kind: str, name: str, rate: float, place: int, most: float) -> str:
    top = TOP + ROW * place
    width = max(1.0, rate / most * (WIDTH - LEFT - RIGHT))
    base = top + ROW / 2 + 5
    return (
        f'<text x="{LEFT - 10}" y="{base}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{top + (ROW - BAR) / 2}" width="{width:.1f}" '
        f'height="{BAR}" rx="2"/>'
        f'<text x="{LEFT + width + 8:.1f}" y="{base}">{digits(rate)} texts/s</text>'
    )
