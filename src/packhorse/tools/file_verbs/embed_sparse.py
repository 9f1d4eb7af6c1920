"""``packhorse embed-sparse``: a file of texts in, the same file with SPLADE's weights out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.tools.files.arguments import FileArguments, checked_prompt, run_task

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and the weights of tokens of the vocabulary")
    common.add_input()
    common.add_output_format()
    common.add_name("embedding")
    common.add_prompt()
    common.add_truncation()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Embed the file; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.sparse_vectors import SparseVectorTask

    prompt_name, prompt = checked_prompt(arguments)
    return SparseVectorTask(
        text=arguments.text_column,
        embedding=arguments.prefix + arguments.embedding_column,
        prompt_name=prompt_name,
        prompt=prompt,
        truncate=not arguments.no_truncate,
        direction=arguments.truncation,
    )
