"""``packhorse token-classify``: a file of texts in, the same file with their entities out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.files.arguments import FileArguments, checked_stride, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask

# Those of packhorse.entities, which would import numpy for --help.
_AGGREGATIONS = ("none", "simple", "first", "average", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, entities, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and the list of its entities")
    common.add_input()
    common.add_output_format()
    common.add_name("entities")
    common.texts.add_argument(
        "--aggregation-strategy",
        choices=_AGGREGATIONS,
        default="simple",
        help="how tokens become entities; default: simple",
    )
    common.texts.add_argument(
        "--ignore-labels",
        default="O",
        metavar="A,B,…",
        help="labels of entities that are left out; default: O",
    )
    common.add_windows()
    common.add_truncation(side=False)
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Find the entities; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.entities import EntityTask

    if arguments.stride is not None and arguments.aggregation_strategy == "none":
        raise ConfigError("--stride needs an --aggregation-strategy other than none")
    return EntityTask(
        text=arguments.text_column,
        entities=arguments.prefix + arguments.entities_column,
        aggregation=arguments.aggregation_strategy,
        ignored=tuple(label for label in arguments.ignore_labels.split(",") if label),
        stride=checked_stride(arguments),
        truncate=not arguments.no_truncate,
    )
