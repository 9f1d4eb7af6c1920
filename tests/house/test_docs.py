"""The documents say what is true: their code runs, their tables are those of the code.

``python tests/house/test_docs.py`` writes what is generated in them: the
settings of docs/server.md, and the figures whose JSON files are there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import select
import shlex
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cli_page
import pytest

from packhorse import cli, metrics
from packhorse.channel.board import Board
from packhorse.config import default_of, flag_of, load_config, options, variables_of
from packhorse.errors import SERVED_ERRORS
from packhorse.tools.bench.units import digits
from packhorse.tools.option_flags import read_settings

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/packhorse")
RESULTS = ROOT / "benchmarks/results"
PAGES = sorted(
    [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")], key=lambda p: (len(p.parts), p)
)
TRANSLATED = [
    ("README.md", "README.zh-CN.md"),
    *(
        (f"docs/{name}.md", f"docs/zh-CN/{name}.md")
        for name in (
            *("library", "server", "security", "metrics", "command-line", "benchmarks"),
            *("exactness", "tasks", "tuning-lab", "under-load"),
            *("index", "quick-start", "concepts", "tuning", "deployment", "moving-from-tei"),
            "moving-from-vllm",
            *("errors", "adding-a-family", "cli"),
        )
    ),
]

SAMPLES = {
    "masked.txt": "The film was [MASK].\nIt was a [MASK] and [MASK] evening.\n",
    "texts.txt": "This product is amazing and I love it!\nTerrible service.\n",
    "reviews.csv": "id,text\n1,This product is amazing and I love it!\n2,Terrible service.\n",
    "reviews.jsonl": '{"id": 1, "text": "Great!"}\n{"id": 2, "text": "Awful."}\n',
    "questions.tsv": "question\tanswer\nIs it good?\tIt is the best I ever had.\n",
}
"""The files that examples read."""


@dataclass(frozen=True)
class Block:
    """One fenced block. ``answer`` is the json block that comes right after it."""

    page: Path
    line: int
    language: str
    text: str
    is_run: bool
    answer: str | None = None
    task: str | None = None  # of a small model that stands for the one it names

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Lines of a shell, continuations joined."""
        joined = self.text.replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip()]


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = -1
    for match in re.finditer(r"^```(\w*)\n(.*?)^```\n", text, re.M | re.S):
        before = text[: match.start()].rstrip()
        follows = end >= 0 and not text[end : match.start()].strip()
        if follows and match[1] == "json" and found:
            last = found[-1]
            found[-1] = replace(last, answer=match[2])
        not_run = re.search(r"<!-- not run: [^>]+ -->$", before) is not None
        task = re.search(r"<!-- small model: (\w+) -->$", before)
        line = text.count("\n", 0, match.start()) + 1
        named = None if task is None else task[1]
        found.append(Block(page, line, match[1], match[2], not not_run, task=named))
        end = match.end()
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def unique(language: str) -> list[Block]:
    """Blocks to run: translations repeat them, so each text counts once."""
    found: dict[str, Block] = {}
    for block in BLOCKS:
        if block.language == language and block.is_run and block.task is None:
            found.setdefault(block.text, block)
    return list(found.values())


SHELL = {line: block for block in reversed(unique("bash")) for line in block.commands}
IN_ONE_PROCESS = [
    line
    for line in SHELL
    if re.match(r"packhorse (classify|info|doctor|profile)|python examples/", line)
]

ASKING = ROOT / "examples/request.py"

_RUNNER = r"""
import contextlib, io, json, os, runpy, shlex, sys, traceback
from packhorse import cli

def run(kind, where, text):
    if kind == "python":
        exec(compile(text, where, "exec"), {"__name__": "__main__"})
    elif kind == "script":
        sys.argv = shlex.split(text)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        words, _, read = text.partition(" < ")
        os.dup2(os.open(read or os.devnull, os.O_RDONLY), 0)
        code = cli.main(shlex.split(words)[1:])
        assert code == 0, f"exit code {code}"

results = []
for kind, where, text in json.load(sys.stdin):
    said, fault = io.TextIOWrapper(io.BytesIO(), "utf-8"), None
    with contextlib.redirect_stdout(said):
        try:
            run(kind, where, text)
        except BaseException:
            fault = traceback.format_exc()
    said.flush()
    results.append([where, text, said.buffer.getvalue().decode(), fault])
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that examples read."""
    folder = tmp_path_factory.mktemp("docs")
    for name, text in SAMPLES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for block in unique("toml"):
        (folder / "packhorse.toml").write_text(block.text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def starting() -> Iterator[subprocess.Popen[str]]:
    """A server on a free port, started once; it loads while other tests run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse.cli", "serve", "--port", "0", "--front-ends", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    yield process
    process.terminate()
    process.wait(60)
    process.stdout.close()


@pytest.fixture(scope="module")
def server(starting: subprocess.Popen[str]) -> str:
    """Its address, when it serves."""
    assert starting.stdout is not None
    assert select.select([starting.stdout], [], [], 200)[0], "the server did not start"
    return starting.stdout.readline().split()[-1]


@pytest.mark.long
@pytest.mark.usefixtures("starting")
def test_python_of_the_documents_and_the_examples_runs(samples: Path) -> None:
    pieces = [("python", block.where, block.text) for block in unique("python")]
    for path in sorted(ROOT.glob("examples/*.py")):
        if path != ASKING:
            pieces.append(("script", path.name, str(path)))
    for line in IN_ONE_PROCESS:
        command = line.removeprefix("python ").replace("examples/", f"{ROOT}/examples/")
        kind = "script" if line.startswith("python ") else "packhorse"
        pieces.append((kind, SHELL[line].where, command))
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(pieces),
        capture_output=True,
        text=True,
        cwd=samples,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    for where, text, said, fault in json.loads(done.stdout):
        assert fault is None, f"{where}: {text}\n{fault}"
        promised = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.M)
        assert not promised or said.splitlines() == promised, f"{where} prints\n{said}"
    written = (samples / "reviews-labelled.csv").read_text(encoding="utf-8")
    shown = next(b for b in BLOCKS if b.language == "text" and b.text.startswith("id,text"))
    assert re.sub(r"\.\d+", "", written) == re.sub(r"\.\d+", "", shown.text)


def test_the_example_that_asks_a_server_runs(server: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ASKING), server], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split() == ["POSITIVE", "NEGATIVE"], done.stderr


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("curl ")])
def test_a_request_is_answered_as_shown(line: str, server: str) -> None:
    status, answer = curl(line, server)
    shown = SHELL[line].answer
    if shown is None:
        assert status == 200, answer
    else:
        assert shape(json.loads(answer)) == shape(json.loads(shown)), SHELL[line].where


def curl(line: str, server: str) -> tuple[int, str]:
    """Do what this command does; status and body."""
    parser = argparse.ArgumentParser()
    for flag in ("-s", "-i", "-I"):
        parser.add_argument(flag, action="store_true", dest=flag)
    parser.add_argument("-H", action="append", default=[], dest="headers")
    parser.add_argument("-d", dest="data")
    parser.add_argument("url")
    given = parser.parse_args(shlex.split(line)[1:])
    assert given.url.startswith("localhost:8000/")
    request = urllib.request.Request(
        given.url.replace("localhost:8000", server),
        data=given.data.encode() if given.data else None,
        headers=dict(header.split(": ", 1) for header in given.headers),
        method="HEAD" if getattr(given, "-I") else None,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def shape(value: Any) -> Any:
    """A JSON value with every number forgotten."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value]
    return "number" if isinstance(value, int | float) else value


@pytest.mark.parametrize(
    "line",
    sorted({line for b in BLOCKS if b.language == "bash" for line in b.commands}),
)
def test_a_command_exists(line: str, monkeypatch: pytest.MonkeyPatch, samples: Path) -> None:
    """Its flags are those of the command, its targets those of the Makefile, its extras ours."""
    words = shlex.split(line)
    while "=" in words[0]:  # variables of the environment come first
        words.pop(0)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert next(word for word in words[1:] if "=" not in word) in targets
    elif words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = re.findall(r"\[([a-z,]+)\]", line)
        assert set(",".join(named).split(",")) <= {"", *extras["optional-dependencies"]}
    elif words[0] == "packhorse":
        monkeypatch.chdir(samples)
        _parse(words[1 : words.index("<")] if "<" in words else words[1:], monkeypatch)
    else:
        assert words[0] in ("curl", "python", "git", "cd", "kill", "docker"), line


def _parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for command in cli.COMMANDS:
        has_settings = command.name not in ("bench", "report")

        def run(arguments: argparse.Namespace, has_settings: bool = has_settings) -> int:
            if has_settings:
                read_settings(arguments)
            return 0

        monkeypatch.setattr(importlib.import_module(command.module), "run", run)
    assert cli.main(words) == 0


def test_the_config_file_is_accepted(samples: Path) -> None:
    assert load_config({}, {}, samples / "packhorse.toml") != load_config({}, {})


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED)
def test_a_translation_has_the_same_parts(english: str, chinese: str) -> None:
    first, second = ROOT / english, ROOT / chinese
    assert headings(first) == headings(second)
    assert table_shapes(first) == table_shapes(second)
    assert [(b.language, b.text, b.is_run) for b in blocks_of(first)] == [
        (b.language, b.text, b.is_run) for b in blocks_of(second)
    ]
    assert FIGURE.findall(first.read_text("utf-8")) == FIGURE.findall(second.read_text("utf-8"))


def headings(page: Path) -> list[int]:
    """Their levels, in order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", _without_code(page), re.M)]


def table_shapes(page: Path) -> list[tuple[int, int]]:
    """Rows and columns of each table."""
    tables = re.findall(r"(?:^\|.*\|\n)+", _without_code(page), re.M)
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1, f"{page}:\n{table}"
    return [(table.count("\n"), table.partition("\n")[0].count("|") - 1) for table in tables]


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```\n", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", _without_code(page)):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_architecture_names_every_source_file() -> None:
    tree = next(b for b in blocks_of(ROOT / "docs/architecture.md") if "src/packhorse/" in b.text)
    assert sorted(named_in(tree.text)) == sorted(
        str(path.relative_to(ROOT / SOURCE)) for path in (ROOT / SOURCE).rglob("*.py")
    )


def named_in(tree: str) -> Iterator[str]:
    """The files of an indented tree; a folder stands for its __init__.py."""
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        if name.endswith("/"):
            folders[depth:] = [name] if depth else [""]
            if "no code" not in line:
                yield "".join(folders) + "__init__.py"
        else:
            yield "".join(folders[:depth]) + name


SETTINGS = "<!-- settings: written by python tests/house/test_docs.py -->\n"


def settings_rows() -> list[tuple[str, ...]]:
    """Flag, the variable that it shares with text-embeddings-inference, default, meaning."""
    return [
        (
            f"`{flag_of(setting)}`",
            "".join(f"`{name}`" for name in variables_of(setting)[1:]),
            _shown(default_of(setting)),
            setting.metadata["help"],
        )
        for _, setting in options()
    ]


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def settings_table(heading: str) -> str:
    """The table of docs/server.md, below the heading that is there."""
    return heading + "".join(f"| {' | '.join(row)} |\n" for row in settings_rows())


def _settings_in(page: str) -> tuple[str, list[tuple[str, ...]]]:
    """The heading with its rule, and the rows."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(SETTINGS)[2]
    lines = [line + "\n" for line in text.partition("\n\n")[0].splitlines()]
    rows = [tuple(cell.strip() for cell in line.strip("|\n").split("|")) for line in lines[2:]]
    return "".join(lines[:2]), rows


def test_the_settings_are_those_of_the_code() -> None:
    assert _settings_in("docs/server.md")[1] == settings_rows()
    chinese = _settings_in("docs/zh-CN/server.md")[1]
    assert [row[:3] for row in chinese] == [row[:3] for row in settings_rows()]


METRICS = "<!-- metrics: written by python tests/house/test_docs.py -->\n"

UNITS = ("seconds", "bytes", "tokens_per_second", "tokens", "sequences", "connections")


def metric_rows() -> list[tuple[str, ...]]:
    """Name, type, labels, unit, meaning, of all that a server shows."""
    return [
        (
            f"`{family.name}`",
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            _unit_of(family.name.removesuffix("_total").removeprefix("packhorse_")),
            family.help_text,
        )
        for family in metrics.families()
    ]


def _unit_of(name: str) -> str:
    """By the last words of the name; what is counted where it has no unit of its own."""
    unit = next((u for u in UNITS if name == u or name.endswith("_" + u)), None)
    return {"tokens_per_second": "tokens/s", None: name.rpartition("_")[2]}.get(unit, unit or "")


def _rows_after(mark: str, page: str) -> list[tuple[str, ...]]:
    """The rows of the table there, without the heading and its rule."""
    table = (ROOT / page).read_text(encoding="utf-8").partition(mark)[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def test_the_metrics_are_those_that_a_server_shows() -> None:
    assert _rows_after(METRICS, "docs/metrics.md") == metric_rows()
    chinese = _rows_after(METRICS, "docs/zh-CN/metrics.md")
    assert [row[:4] for row in chinese] == [row[:4] for row in metric_rows()]
    shown = metrics.exposition(Board.create(1, metrics.words()), {"model": "m"})
    types = re.findall(r"^# TYPE (\S+) (\S+)$", shown, re.M)
    assert types[0] == ("packhorse_info", "gauge")
    assert types[1:] == [(row[0].strip("`"), row[1]) for row in metric_rows()]


ERRORS = "<!-- errors: written by python tests/house/test_docs.py -->\n"


def error_rows() -> list[tuple[str, ...]]:
    """Status, error_type, class and meaning of every error that a client can get."""
    return [
        (
            str(error.status),
            f"`{error.error_type}`",
            f"`{error.__name__}`",
            (error.__doc__ or "").partition("\n")[0],
        )
        for error in sorted(SERVED_ERRORS.values(), key=lambda error: (error.status, error.code))
    ]


def test_the_errors_are_those_of_the_code() -> None:
    rows = _rows_after(ERRORS, "docs/errors.md")
    chinese = _rows_after(ERRORS, "docs/zh-CN/errors.md")
    assert [row[:4] for row in rows] == error_rows()
    assert [row[:3] for row in chinese] == [row[:3] for row in error_rows()]
    assert all(row[-1] for row in rows + chinese)  # what to do is written by hand


@pytest.mark.parametrize("name", cli_page.PAGES)
def test_the_commands_and_flags_are_those_of_the_parsers(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == cli_page.page(cli_page.PAGES[name]), "python tests/house/test_docs.py"


def test_the_site_has_every_page() -> None:
    named = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_a_metric_that_is_named_exists() -> None:
    known = {family.name for family in metrics.families()} | {"packhorse_info"}
    for page in PAGES:
        for name in re.findall(r"`(packhorse_\w+)`", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.relative_to(ROOT)}: {name}"


FIGURE = re.compile(r"(<!-- figure: (\S+\.json) (\S+)( %)? -->)(.*?)(<!-- end -->)")
"""A number from a file of benchmarks/results, by its path there; %: as a percentage."""

NOT_MEASURED = "…"


def figure(file: str, path: str, percent: str) -> str:
    """What belongs there; an ellipsis while the file is not there."""
    if not (RESULTS / file).exists():
        return NOT_MEASURED
    value: Any = json.loads((RESULTS / file).read_bytes())
    for key in path.split("."):
        if isinstance(value, list):
            value = next(
                v for v in value if key in map(v.get, ("name", "workload", "load", "rival"))
            )
        else:
            value = value[key]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{100 * value:.0f}%" if percent else digits(value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_are_those_of_the_results(page: Path) -> None:
    for _, file, path, percent, shown, _ in FIGURE.findall(page.read_text(encoding="utf-8")):
        assert shown == figure(file, path, percent), f"{page.relative_to(ROOT)}: {file} {path}"


def write_generated() -> None:
    """Bring what is generated up to date."""
    page = ROOT / "docs/server.md"
    text = page.read_text(encoding="utf-8")
    before, _, after = text.partition(SETTINGS)
    _, end, rest = after.partition("\n\n")
    heading, _ = _settings_in("docs/server.md")
    table = settings_table(heading)
    page.write_text(before + SETTINGS + table + ("\n" + rest if end else ""), encoding="utf-8")
    page = ROOT / "docs/metrics.md"
    before, _, after = page.read_text(encoding="utf-8").partition(METRICS)
    table, _, rest = after.partition("\n\n")
    lines = [*table.splitlines()[:2], *("| " + " | ".join(row) + " |" for row in metric_rows())]
    page.write_text(before + METRICS + "\n".join(lines) + "\n\n" + rest, encoding="utf-8")
    page = ROOT / "docs/errors.md"
    before, _, after = page.read_text(encoding="utf-8").partition(ERRORS)
    table, _, rest = after.partition("\n\n")
    advice = {row[2]: row[-1] for row in _rows_after(ERRORS, "docs/errors.md")}
    errors = [(*row, advice.get(row[2], "")) for row in error_rows()]
    lines = [*table.splitlines()[:2], *("| " + " | ".join(row) + " |" for row in errors)]
    page.write_text(before + ERRORS + "\n".join(lines) + "\n\n" + rest, encoding="utf-8")
    for name, words in cli_page.PAGES.items():
        (ROOT / name).write_text(cli_page.page(words), encoding="utf-8")
    for each in PAGES:
        text = each.read_text(encoding="utf-8")
        filled = FIGURE.sub(lambda m: m[1] + figure(m[2], m[3], m[4]) + m[6], text)
        if filled != text:
            each.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    write_generated()
