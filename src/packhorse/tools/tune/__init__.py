"""``packhorse tune``: settings for a latency or throughput target, found by measuring.

It starts a real server for each setting that it tries, puts it under more and
more load, and writes the best settings to a file that ``serve --config`` reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.config import SECTIONS
from packhorse.tools.argument_types import above_zero
from packhorse.tools.option_flags import add_model_argument, add_settings
from packhorse.tools.tune.knobs import CHOSEN_HERE

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The target, the texts, the files; settings that are given stay as they are."""
    add_model_argument(parser)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--p99-ms", type=above_zero, metavar="MS", help="most texts/s within this p99"
    )
    target.add_argument("--throughput", action="store_true", help="most texts/s, whatever latency")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="your texts, one a line; ours without it"
    )
    parser.add_argument("--route", default="/predict", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=above_zero, default=2.0, metavar="S",
        help="of each load (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--sweep", action="store_true", help="try every combination of settings")
    parser.add_argument(
        "--try", dest="tried", action="append", default=[], metavar="SETTING=VALUE,VALUE",
        help="try these values of a setting, and of no setting that has no --try",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the settings found, for --config"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    add_settings(parser, SECTIONS, without=CHOSEN_HERE)


def run(arguments: argparse.Namespace) -> int:
    """Search, print, write; 1 when no setting keeps the target.

    Raises SetupError for settings or texts that cannot be used.
    """
    from packhorse.tools.tune.command import tune

    return tune(arguments)
