"""``packhorse classify``: a file of texts in, the same file with labels out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.tools.file_verbs.ranking import ranked_labels
from packhorse.tools.file_verbs.text_columns import two_columns
from packhorse.tools.files.arguments import FileArguments, checked_stride, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, texts, how to run, and the settings of model and engine."""
    common = FileArguments(parser, ", a label and a score")
    common.add_input("--pair-column", "column of a second text, read together with the first")
    common.add_output_format()
    common.add_top_k()
    common.output.add_argument(
        "--raw-scores", action="store_true", help="logits instead of probabilities"
    )
    common.add_label_names()
    common.add_truncation()
    common.add_windows()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Classify the file; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.labels import LabelTask

    first, second = arguments.text_column, arguments.pair_column
    texts: tuple[str, ...] = (first,)
    if second is not None:
        texts = two_columns(first, second, "--text-column and --pair-column")
    return LabelTask(
        texts=texts,
        ranked=ranked_labels(arguments, has_lists),
        raw_scores=arguments.raw_scores,
        truncate=not arguments.no_truncate,
        direction=arguments.truncation,
        stride=checked_stride(arguments),
    )
