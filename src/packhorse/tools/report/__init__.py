"""``packhorse report``: results of ladder, doctor, profile and tune as one HTML page with plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.errors import ConfigError
from packhorse.tools.output_files import check_outputs

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

    Raises ConfigError for a file that is missing, of none of these commands, or makes no sense.
    """
    from packhorse.tools.report.page import page

    check_outputs(arguments.output)
    sections = [_section(file, number) for number, file in enumerate(arguments.files)]
    arguments.output.write_text(page(sections), encoding="utf-8")
    print(arguments.output)
    return 0


def _section(file: Path, number: int) -> str:
    from packhorse.tools.report.inputs import read
    from packhorse.tools.report.page import section

    result = read(file)
    try:
        return section(result, number)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file} has the keys of a result and cannot be shown "
            f"({type(error).__name__}: {error}); give it as packhorse wrote it"
        ) from error
