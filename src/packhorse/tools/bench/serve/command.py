"""What ``packhorse bench serve`` does: start a server or not, put the load on it, tell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bench import machine
from packhorse.tools.bench.serve.arguments import plan_of
from packhorse.tools.bench.serve.crew import run_load
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.report import report_of
from packhorse.tools.bench.serve.served import Served, served
from packhorse.tools.bench.serve.summary import summary
from packhorse.tools.bench.serve.target import target_of
from packhorse.tools.output_files import check_outputs

SECRET_FLAGS = ("--api-key", "--hf-token", "--header")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print, one JSON object on the last line.

    1 when a request had no answer or a wrong one, or none had status 2xx; a
    refusal (429, 503) is an answer. Raises SetupError or GeneratorError.
    """
    if arguments.url is not None and arguments.serve:
        raise ConfigError(
            "with --url no server is started: there is nothing for arguments after --"
        )
    check_outputs(arguments.json)
    with _server(arguments) as (url, server):
        plan = plan_of(arguments, target_of(url, not arguments.insecure))
        deadline = None if arguments.deadline_ms is None else arguments.deadline_ms / 1000
        report = measure(plan, deadline, server)
    report |= {
        "url": arguments.url,
        "serve_arguments": without_secrets(arguments.serve),
        "command": " ".join(["packhorse", *without_secrets(sys.argv[1:])]),
        "commit": machine.commit(),
        "machine": machine.description(detect().cpus),
        "versions": machine.versions(),
    }
    print(summary(report))
    write(report, arguments.json)
    return 1 if report["errors"] or not report["answered_2xx"] else 0


def measure(
    plan: Plan, deadline: float | None = None, server: Served | None = None
) -> dict[str, Any]:
    """Put a load on a server; the report.

    With a server of ours also the CPU seconds of its processes while measuring.
    Raises ConfigError or GeneratorError.
    """
    used: list[dict[str, float]] = []

    def look() -> None:
        if server is not None:
            used.append(server.cpu_seconds())

    shares, measured = run_load(plan, look, look)
    report = report_of(plan, shares, measured, deadline)
    report["server"] = None
    if server is not None:
        before, after = used
        report["server"] = {
            "cpu_seconds": {kind: after[kind] - before[kind] for kind in after},
            "resident_bytes": server.resident_bytes(),
        }
    return report


def without_secrets(words: Sequence[str]) -> list[str]:
    """Arguments with the values of keys, tokens and headers masked: reports are passed on."""
    shown, is_secret = [], False
    for word in words:
        flag, equals, _ = word.partition("=")
        if is_secret:
            shown.append("***")
        elif flag in SECRET_FLAGS and equals:
            shown.append(f"{flag}=***")
        else:
            shown.append(word)
        is_secret = not is_secret and word in SECRET_FLAGS
    return shown


def write(report: dict[str, Any], file: Path | None) -> None:
    """The report as one line on standard output, and to a file if one is given."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report), flush=True)


@contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[tuple[str, Served | None]]:
    if arguments.url is not None:
        yield arguments.url, None
        return
    with served(arguments.serve) as server:
        yield server.url, server
