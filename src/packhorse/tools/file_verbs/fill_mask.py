"""``packhorse fill-mask``: a file of texts in, the same file with what fills their masks out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.tools.argument_types import positive
from packhorse.tools.files.arguments import FileArguments, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and the likeliest tokens for each mask")
    common.add_input()
    common.add_output_format()
    common.add_name("fills")
    common.texts.add_argument(
        "--top-k",
        type=positive,
        default=5,
        metavar="N",
        help="tokens for each mask, likeliest first; default: 5",
    )
    common.texts.add_argument(
        "--targets",
        metavar="A,B,…",
        help="only these tokens; what is no token of the vocabulary counts as its first one",
    )
    common.add_truncation()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Fill the masks; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.fills import FillTask

    targets = None
    if arguments.targets is not None:
        targets = tuple(target for target in arguments.targets.split(",") if target)
    return FillTask(
        text=arguments.text_column,
        fills=arguments.prefix + arguments.fills_column,
        top_k=arguments.top_k,
        targets=targets,
        truncate=not arguments.no_truncate,
        direction=arguments.truncation,
    )
