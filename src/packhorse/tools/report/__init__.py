"""``packhorse report``: results of ladder, doctor, profile and tune as one HTML page with plots."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The JSON files, and the page."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="JSON",
        help="written by bench ladder --json, doctor --json, profile -o, tune --json",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the HTML page"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page.

    Raises ConfigError for a file that is missing or of none of these commands.
    """
    from packhorse.tools.report.inputs import read
    from packhorse.tools.report.page import page

    results = [read(file) for file in arguments.files]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(page(results), encoding="utf-8")
    print(arguments.output)
    return 0
