"""The sections of the report: pictures, tables and findings as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from packhorse.tools.bench import picture as ladder_picture
from packhorse.tools.bench.results import Ladder
from packhorse.tools.bench.units import digits, scaled
from packhorse.tools.doctor.diagnosis import cost, seen_lines
from packhorse.tools.doctor.findings import IDS, Examination, Finding
from packhorse.tools.profiler.roofline import Profile
from packhorse.tools.profiler.table import HEADINGS, row
from packhorse.tools.report.doctor_picture import doctor_picture
from packhorse.tools.report.roofline_picture import roofline_picture
from packhorse.tools.tune.picture import picture as tune_picture
from packhorse.tools.tune.results import Trial, Tuning


def ladder_section(ladder: Ladder, number: int) -> str:
    """The picture, and a table of what was measured."""
    headings = ("rung", "workload", "ms per 1000 texts", "texts/s", "vs naive", "peak memory")
    rows = [
        (
            rung.name,
            each.workload,
            digits(each.ms_per_1000),
            digits(each.texts_per_second),
            "-" if each.vs_naive is None else f"{digits(each.vs_naive)}×",
            "-" if each.peak_bytes is None else scaled(each.peak_bytes, "B"),
        )
        for rung in ladder.rungs
        for each in rung.measured
    ]
    return figure(_scoped(ladder_picture.picture(ladder), number)) + table(headings, rows)


def doctor_section(examination: Examination) -> str:
    """What was seen, what each remedy brings, and each finding with figure, cost and remedy."""
    head = "".join(f"<p>{escape(line)}</p>" for line in seen_lines(examination)[1:])
    head += figure(doctor_picture(examination))
    findings = [_finding(each, examination.texts_per_second) for each in examination.findings]
    skipped = [f'<p class="muted">Not examined: {escape(e)}</p>' for e in examination.not_examined]
    return "\n".join([head, *(findings or ["<p>Nothing found.</p>"]), *skipped])


def profile_section(profile: Profile) -> str:
    """The roofline, and the table of operations."""
    note = (
        f"<p>{profile.subject['tokens']:,} tokens in {digits(profile.seconds * 1000)} ms on "
        f"{escape(str(profile.subject['device']))} in {escape(str(profile.subject['dtype']))}; the "
        f"operations' times add up to {profile.accounted:.0%} of the pass.</p>"
    )
    rows = [row(each, profile.seconds) for each in profile.operations]
    return note + figure(roofline_picture(profile)) + table(HEADINGS, rows)


def tune_section(tuning: Tuning) -> str:
    """Throughput against p99, and what each setting reached."""
    best = tuning.best.best(tuning.p99_ms)
    shown = "" if best is None else figure(tune_picture(tuning))
    headings = ("settings", "texts/s", "p99 ms", "connections")
    rows = []
    for trial in sorted(tuning.trials, key=lambda trial: -trial.score(tuning.p99_ms)):
        point = trial.best(tuning.p99_ms)
        numbers = (
            ("-", "-", "-")
            if point is None
            else (digits(point.texts_per_second), digits(point.p99_ms), str(point.connections))
        )
        rows.append((_changes(trial, tuning.trials[0]), *numbers))
    return shown + table(headings, rows)


def _changes(trial: Trial, first: Trial) -> str:
    """The settings that are not those of the first trial."""
    changed = {k: v for k, v in trial.settings.items() if first.settings.get(k) != v}
    return ", ".join(f"{key} {value}" for key, value in changed.items()) or "as at the start"


def figure(svg: str) -> str:
    """A picture, inline; on a narrow screen it is moved with the arrow keys, too."""
    return f'<figure tabindex="0">\n{svg}</figure>\n'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is the name of its row."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _finding(finding: Finding, texts_per_second: float) -> str:
    parts = {
        "measured": finding.measured,
        "costs": cost(finding, texts_per_second),
        "change": finding.change,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in parts.items())
    if finding.where:
        lines = "<br>".join(f"<code>{escape(line)}</code>" for line in finding.where)
        rows += f"<dt>where</dt><dd>{lines}</dd>"
    what = IDS.get(finding.id, "")
    return f"<h3>{escape(finding.id)}</h3>\n<p>{escape(what)}</p>\n<dl>{rows}</dl>"


def _scoped(svg: str, number: int) -> str:
    """The ladder's picture, whose rules and ids are those of a file of its own, for a page."""
    style = re.sub(r"^(\s*)(\.?\w+) \{", r"\1.ladder \2 {", ladder_picture.STYLE, flags=re.M)
    svg = svg.replace(ladder_picture.STYLE, style).replace("<svg ", '<svg class="ladder" ', 1)
    for name in ("title", "summary"):
        svg = svg.replace(f'id="{name}"', f'id="{name}{number}"')
    return svg.replace('"title summary"', f'"title{number} summary{number}"')
