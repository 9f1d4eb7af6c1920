"""``packhorse rerank``: a file of documents in, the same file with their scores out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.file_verbs.text_columns import two_columns
from packhorse.tools.files.arguments import FileArguments, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, the query, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and the score of its document for its query")
    common.add_input("--query-column", "column of each document's query")
    common.add_output_format()
    common.output.add_argument(
        "--raw-scores", action="store_true", help="logits instead of scores from 0 to 1"
    )
    common.add_name("score")
    common.texts.add_argument("--query", metavar="TEXT", help="one query for all documents")
    common.add_truncation()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Score the file; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.pair_scores import PairScoreTask

    if (arguments.query is None) == (arguments.query_column is None):
        raise ConfigError("say what is asked, with either --query or --query-column")
    texts: tuple[str, ...] = (arguments.text_column,)
    if arguments.query_column is not None:
        texts = two_columns(
            arguments.query_column, arguments.text_column, "--query-column and --text-column"
        )
    return PairScoreTask(
        texts=texts,
        score=arguments.prefix + arguments.score_column,
        query=arguments.query,
        raw_scores=arguments.raw_scores,
        truncate=not arguments.no_truncate,
        direction=arguments.truncation,
    )
