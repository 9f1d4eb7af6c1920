"""``packhorse zero-shot``: a file of texts in, the same file with labels of the user's own out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.file_verbs.ranking import ranked_labels
from packhorse.tools.files.arguments import FileArguments, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, labels, how to run, and the settings of model and engine."""
    common = FileArguments(parser, ", a label and a score")
    common.add_input()
    common.add_output_format()
    common.add_top_k()
    common.add_label_names()
    common.texts.add_argument(
        "--labels", metavar="A,B,…", help="the labels to choose from, separated by commas"
    )
    common.texts.add_argument(
        "--label",
        action="append",
        metavar="LABEL",
        help="one more, which may hold commas; to be repeated",
    )
    common.texts.add_argument(
        "--hypothesis-template",
        metavar="TEXT",
        help="a sentence with {} where a label is put; default: This example is {}.",
    )
    common.texts.add_argument(
        "--multi-label",
        action="store_true",
        help="each label by itself: a text may have several, or none",
    )
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Label the file; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.zero_shot import ZeroShotTask
    from packhorse.zero_shot import TEMPLATE

    template = arguments.hypothesis_template
    return ZeroShotTask(
        text=arguments.text_column,
        ranked=ranked_labels(arguments, has_lists),
        labels=_labels(arguments),
        template=TEMPLATE if template is None else template,
        multi_label=arguments.multi_label,
    )


def _labels(arguments: argparse.Namespace) -> tuple[str, ...]:
    named = [label.strip() for label in (arguments.labels or "").split(",")]
    labels = tuple(label for label in [*named, *(arguments.label or ())] if label)
    if not labels:
        raise ConfigError("say with --labels which labels there are to choose from")
    if len(set(labels)) < len(labels):
        raise ConfigError("--labels names a label twice")
    return labels
