"""`packhorse report`: one page of all results, that asks nobody for anything."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from packhorse.errors import ConfigError
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.doctor.findings import Examination, Finding
from packhorse.tools.profiler.roofline import Operation, Profile
from packhorse.tools.report import add_arguments, run
from packhorse.tools.tune.results import Point, Trial, Tuning

LADDER = Path("benchmarks/results/ladder-cpu-minilm-l6.json")

EVIL = '<script src="https://example.com/x.js"></script>'

EXAMINATION = Examination(
    f"{EVIL}.py:predict",
    64,
    10.0,
    {},
    [Finding("fixed-padding", "80% is padding", 0.8, "share", 12.5, "Pad less.", ["a.py:1 in f"])],
    [f"memory {EVIL}"],
)
PROFILE = Profile(
    {"model": "demo", "device": "cpu", "dtype": "float32", "tokens": 1024},
    0.1,
    0.09,
    0.97,
    Ceiling(1e11, 1e10),
    [
        Operation("dense 384→1152", 3, 0.06, 3 * 10**9, 24 * 10**6, "compute", 0.5),
        Operation("embed", 1, 0.01, 0, 6 * 10**6, "memory", 0.06),
        Operation("attention", 3, 0.03, 10**8, 19 * 10**6, "memory", 0.06),
    ],
)
BEST = Trial({"threads": "2"}, [Point(1, 100, 5, 9), Point(4, 300, 9, 30)])
TUNING = Tuning("demo", 50, {}, [Trial({"threads": "1"}, [Point(1, 90, 5, 60)]), BEST], BEST)


class Reader(HTMLParser):
    """Tags that are open, ids, and everything that an attribute asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.asked: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.asked += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def reported(folder: Path, *results: object) -> str:
    files = []
    for number, result in enumerate(results):
        file = folder / f"{number}.json"
        file.write_bytes(
            result.read_bytes() if isinstance(result, Path) else msgspec.json.encode(result)
        )
        files.append(str(file))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args([*files, "-o", str(folder / "page/report.html")])) == 0
    return (folder / "page/report.html").read_text(encoding="utf-8")


def test_a_page_has_a_section_and_a_picture_for_each_result(tmp_path: Path) -> None:
    html = reported(tmp_path, LADDER, EXAMINATION, PROFILE, TUNING, LADDER)
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert len(set(reader.ids)) == len(reader.ids), "two ladders, and no id twice"
    assert html.count("<section>") == 5
    assert html.count("<svg ") == 5
    assert "without fixed-padding" in html
    for text in ("fixed-padding", "12.5 texts/s", "a.py:1 in f", "dense 384→1152", "threads 2"):
        assert text in html
    assert html.count("as at the start") == 1, "one trial has the settings that all began with"
    assert html.count("prefers-color-scheme: dark") >= 4


def test_a_page_asks_nobody_for_anything_whatever_a_result_says(tmp_path: Path) -> None:
    html = reported(tmp_path, LADDER, EXAMINATION, PROFILE, TUNING)
    reader = Reader()
    reader.feed(html)
    assert not reader.asked
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not re.search(r"url\(|@import", html)
    assert "default-src 'none'" in html


def test_the_rules_of_the_ladders_picture_hold_for_it_alone(tmp_path: Path) -> None:
    html = reported(tmp_path, LADDER)
    assert ".ladder text {" in html
    assert not re.search(r"^\s*text \{", html, re.M)


def test_a_profile_whose_operations_are_slow_stays_within_its_picture(tmp_path: Path) -> None:
    html = reported(tmp_path, PROFILE)
    points = re.search(r'class="ceiling" points="([^"]+)"', html)
    assert points is not None
    for place in points[1].split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= 760
        assert 0 <= y <= 420


def test_names_in_the_roofline_do_not_lie_on_one_another(tmp_path: Path) -> None:
    alike = [Operation(f"dense {i}", 1, 0.05, 10**9, 10**7, "compute", 0.5) for i in range(4)]
    html = reported(tmp_path, replace(PROFILE, operations=alike))
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="end">dense', html))
    assert len(heights) == 4
    assert all(below - above >= 13 for above, below in pairwise(heights))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "is none of what"),
        ("[1]", "is none of what"),
        ("3", "is none of what"),
        (json.dumps({"findings": 3}), "another version"),
    ],
)
def test_what_is_no_result_is_refused_with_its_name(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        run(argparse.Namespace(files=[file], output=tmp_path / "b.html"))
    assert "a.json" in str(caught.value)
    assert not (tmp_path / "b.html").exists()


@pytest.mark.parametrize(
    "result",
    [
        replace(PROFILE, subject={"model": "demo"}),
        replace(PROFILE, seconds=0.0),
        replace(EXAMINATION, seen={"forward_passes": 3}),
        replace(EXAMINATION, texts_per_second=0.0, findings=[]),
    ],
    ids=["no tokens", "no time", "half of what was seen", "no texts"],
)
def test_a_result_that_makes_no_sense_is_refused_with_its_name(
    tmp_path: Path, result: object
) -> None:
    with pytest.raises(ConfigError, match=r"0\.json has the keys of a result and cannot be shown"):
        reported(tmp_path, result)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        run(argparse.Namespace(files=[tmp_path / "a.json"], output=tmp_path / "b.html"))
