"""One HTML file that asks nobody for anything: a section for each result, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from packhorse.tools.bench.results import Ladder
from packhorse.tools.doctor.findings import Examination
from packhorse.tools.profiler.roofline import Profile
from packhorse.tools.report.inputs import Result
from packhorse.tools.report.sections import (
    doctor_section,
    ladder_section,
    profile_section,
    tune_section,
)

STYLE = """\
:root { color-scheme: light dark; --ink: #1f2328; --muted: #59636e; --paper: #fff;
  --line: #d1d9e0; --accent: #0969da; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --ink: #f0f6fc; --muted: #9198a1; --paper: #0d1117;
  --line: #3d444d; --accent: #4493f8; --bad: #ff7b72 } }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
h3 { margin-bottom: 0.25rem; color: var(--bad) }
figure { margin: 1rem 0; overflow-x: auto }
svg { display: block; width: 100%; min-width: 40rem; height: auto }
.scroll { overflow-x: auto } .muted, dt { color: var(--muted) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: 0.25rem 0.75rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }
th:first-child, td:first-child { text-align: left }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.15rem 1rem;
  margin: 0 }
dd { margin: 0; overflow-wrap: anywhere } code { font: 0.9em ui-monospace, monospace }
"""


def page(sections: Sequence[str]) -> str:
    """The whole file; sections in the order in which they are given."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Nothing outside of this file is asked for, whatever a text in it says.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Packhorse report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
            "<h1>Packhorse report</h1>",
            *sections,
            "</main>\n</body>\n</html>\n",
        ]
    )


def section(result: Result, number: int) -> str:
    """One result; ``number`` keeps its ids apart from those of the others."""
    if isinstance(result, Ladder):
        title, body = f"The ladder: {result.model}", ladder_section(result, number)
    elif isinstance(result, Examination):
        title, body = f"Doctor: {result.subject}", doctor_section(result)
    elif isinstance(result, Profile):
        title, body = f"Profile: {result.subject['model']}", profile_section(result)
    else:
        title, body = f"Tuning: {result.model}", tune_section(result)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"
