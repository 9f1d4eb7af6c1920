"""``packhorse embed``: a file of texts in, the same file with their vectors out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.tools.argument_types import positive
from packhorse.tools.files.arguments import (
    FileArguments,
    checked_prompt,
    checked_stride,
    run_task,
)

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask

# Those of packhorse.vectors, which would import numpy for --help.
_TYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, vectors, how to run, and the settings of model and engine."""
    common = FileArguments(parser, " and its embedding")
    common.add_input()
    common.add_output_format()
    common.add_name("embedding")
    common.output.add_argument(
        "--dimensions",
        type=positive,
        metavar="N",
        help="the first so many numbers, normalized again if they were; default: all",
    )
    common.output.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="whether vectors have length 1; default: as the model's folder says",
    )
    common.output.add_argument(
        "--output-type",
        choices=_TYPES,
        default="float32",
        help="of the numbers; int8 and uint8: 256 steps over -1 to 1; binary and ubinary: eight "
        "signs to a byte; default: float32",
    )
    common.add_prompt()
    common.add_truncation()
    common.add_windows()
    common.add_run()


def run(arguments: argparse.Namespace) -> int:
    """Embed the file; the exit code. Raises SetupError before anything is written."""
    return run_task(arguments, _task)


def _task(arguments: argparse.Namespace, has_lists: bool) -> RowTask:
    from packhorse.tools.files.tasks.vectors import VectorTask

    prompt_name, prompt = checked_prompt(arguments)
    return VectorTask(
        text=arguments.text_column,
        embedding=arguments.prefix + arguments.embedding_column,
        prompt_name=prompt_name,
        prompt=prompt,
        normalize=arguments.normalize,
        dimensions=arguments.dimensions,
        output_type=arguments.output_type,
        truncate=not arguments.no_truncate,
        direction=arguments.truncation,
        stride=checked_stride(arguments),
    )
