"""``packhorse similarity``: a file of texts in, the same file with how alike they are out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.file_verbs.text_columns import two_columns
from packhorse.tools.files.arguments import FileArguments, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, the sentence, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and the cosine of two embeddings")
    common.add_input("--pair-column", "column of the text that each text is compared with")
    common.add_output_format()
    common.add_name("score")
    common.texts.add_argument(
        "--source-sentence", metavar="TEXT", help="one text that all are compared with"
    )
    common.add_prompt_name()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Compare the texts; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.similarities import SimilarityTask

    if (arguments.source_sentence is None) == (arguments.pair_column is None):
        raise ConfigError(
            "say what texts are compared with, with either --source-sentence or --pair-column"
        )
    first, second = arguments.text_column, arguments.pair_column
    texts: tuple[str, ...] = (first,)
    if second is not None:
        texts = two_columns(first, second, "--text-column and --pair-column")
    return SimilarityTask(
        texts=texts,
        score=arguments.prefix + arguments.score_column,
        source_sentence=arguments.source_sentence,
        prompt_name=arguments.prompt_name,
    )
