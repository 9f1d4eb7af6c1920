"""What the commands over files have in common: their arguments, and the run that these make."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.argument_types import positive
from packhorse.tools.option_flags import add_settings, read_settings

if TYPE_CHECKING:
    from packhorse.tools.files.row_task import RowTask

# As text, since naming the formats by their class would import numpy for --help.
_INPUT_FORMATS = ("auto", "text", "csv", "tsv", "jsonl", "parquet")
_OUTPUT_FORMATS = ("auto", "csv", "tsv", "jsonl", "parquet")

_EPILOG = """\
Every row of the input is written once, in order, with all its columns{added}.
Rows that cannot be used are skipped: the first 20 are told, all are listed in OUT.errors.jsonl.

An interrupted run leaves OUT.partial and OUT.partial.json; the same command goes on from there,
and the output is what it would have been without the interruption.

exit codes: 0 done; 1 the model or a disk failed, or rows were skipped under --strict;
2 nothing was done, for a reason told in one line; 130 interrupted.
"""


class FileArguments:
    """The groups of arguments of a command over files, to be filled up with its own.

    parser  of the command
    added   the columns that a row gets, for the help: " and …", or ", … and …"
    """

    def __init__(self, parser: argparse.ArgumentParser, added: str) -> None:
        self._parser = parser
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG.format(added=added)
        parser.add_argument("file", metavar="FILE", help="the input; - for standard input")
        parser.add_argument(
            "-o", "--output", required=True, metavar="OUT", help="the output; - for standard output"
        )
        self.input = parser.add_argument_group("input")
        self.output = parser.add_argument_group("output")
        self.texts = parser.add_argument_group("texts")
        self._run = parser.add_argument_group("run")

    def add_input(self, pair: str | None = None, pair_help: str = "") -> None:
        """Format and text column, and the flag of a second column if there is one."""
        self.input.add_argument(
            "--input-format",
            choices=_INPUT_FORMATS,
            default="auto",
            help="auto: by the name (.txt, .csv, .tsv, .jsonl, .parquet, all but the last also "
            "with .gz); standard input is text",
        )
        self.input.add_argument(
            "--text-column", default="text", metavar="NAME", help="default: text"
        )
        if pair is not None:
            self.input.add_argument(pair, metavar="NAME", help=pair_help)
        self.input.add_argument(
            "--delimiter", type=_character, metavar="C", help="of a CSV file; default: a comma"
        )
        self.input.add_argument(
            "--no-quotes",
            action="store_true",
            help="in CSV and TSV, take a quote for a character like any other",
        )

    def add_output_format(self) -> None:
        self.output.add_argument(
            "--output-format",
            choices=_OUTPUT_FORMATS,
            default="auto",
            help="auto: by the name; standard output has the format of the input, jsonl for text",
        )

    def add_top_k(self) -> None:
        self.output.add_argument(
            "--top-k",
            type=_top_k,
            default=1,
            metavar="N",
            help="labels for each row, best first, or all; default: 1. More than one are lists in "
            "jsonl and parquet, and the columns label_1, score_1, label_2, … in csv and tsv",
        )

    def add_label_names(self) -> None:
        self.add_prefix()
        self.output.add_argument(
            "--label-column", metavar="NAME", help="default: label (labels for lists)"
        )
        self.output.add_argument(
            "--score-column", metavar="NAME", help="default: score (scores for lists)"
        )

    def add_name(self, name: str) -> None:
        """The flags that change the name of the one column that is added."""
        self.add_prefix()
        self.output.add_argument(
            f"--{name}-column", default=name, metavar="NAME", help=f"default: {name}"
        )

    def add_prefix(self) -> None:
        self.output.add_argument(
            "--prefix", default="", help="before the names of the added columns"
        )

    def add_prompt(self) -> None:
        """What goes before each text; ``checked_prompt`` reads it."""
        self.add_prompt_name()
        self.texts.add_argument("--prompt", metavar="TEXT", help="a text to put there instead")

    def add_prompt_name(self) -> None:
        self.texts.add_argument(
            "--prompt-name",
            metavar="NAME",
            help="which of the model's prompts goes before each text; "
            "default: the model's own choice",
        )

    def add_truncation(self, side: bool = True) -> None:
        """What becomes of texts that are too long; ``side``: whether either end may be cut."""
        if side:
            self.texts.add_argument(
                "--truncation",
                choices=("right", "left"),
                help="the side that is cut off a text that is too long; default: as the "
                "tokenizer's files say, mostly right",
            )
        self.texts.add_argument(
            "--no-truncate", action="store_true", help="skip a text that is too long instead"
        )

    def add_windows(self) -> None:
        """--stride: how a text that is too long may be read whole."""
        self.texts.add_argument(
            "--stride",
            type=_stride,
            metavar="TOKENS",
            help="read a text that is too long in windows that share so many tokens, and do not "
            "cut it",
        )

    def add_run(self) -> None:
        """How to run, and the settings of model and engine: what comes last."""
        self.output.add_argument(
            "--overwrite", action="store_true", help="replace an OUT that exists"
        )
        self._run.add_argument(
            "--batch",
            type=positive,
            metavar="ROWS",
            help="rows at once, about as many as an interruption costs; default: 512 texts for the "
            "model, on a GPU 8192",
        )
        self._run.add_argument(
            "--resume",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="go on from an interrupted run, and note what a later run needs for that; "
            "never for standard input or output",
        )
        self._run.add_argument(
            "--restart",
            action="store_true",
            help="drop what an interrupted run left, and begin again",
        )
        self._run.add_argument(
            "--strict", action="store_true", help="exit with 1 if a row was skipped"
        )
        self._run.add_argument(
            "--quiet", "-q", action="store_true", help="no progress bar, no summary"
        )
        add_settings(
            self._parser,
            ("model", "engine"),
            without=("served_model_name", "max_batch_requests", "max_batch_time"),
        )


def run_task(
    arguments: argparse.Namespace, make_task: Callable[[argparse.Namespace, bool], RowTask]
) -> int:
    """Take the file through ``make_task(arguments, whether the output has lists)``; the exit code.

    Raises SetupError when something does not fit, before anything is written.
    """
    config = read_settings(arguments)
    from packhorse.tools.files.run import Run, run_file
    from packhorse.tools.table_files.formats import input_format, output_format
    from packhorse.tools.table_files.opening import LISTS, Input

    source = Input(
        arguments.file,
        input_format(arguments.file, arguments.input_format),
        arguments.delimiter,
        quoted=not arguments.no_quotes,
    )
    target = output_format(arguments.output, arguments.output_format, source.format)
    run = Run(
        source=source,
        out=arguments.output,
        target=target,
        task=make_task(arguments, target in LISTS),
        batch=arguments.batch,
        resume=arguments.resume,
        restart=arguments.restart,
        overwrite=arguments.overwrite,
        quiet=arguments.quiet,
    )
    counts = run_file(run, config)
    return 1 if arguments.strict and counts.skipped else 0


def checked_prompt(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """--prompt-name and --prompt. Raises ConfigError where both are given."""
    if arguments.prompt is not None and arguments.prompt_name is not None:
        raise ConfigError("--prompt and --prompt-name were both given")
    return arguments.prompt_name, arguments.prompt


def checked_stride(arguments: argparse.Namespace) -> int | None:
    """--stride. Raises ConfigError where long texts are to be skipped, or cut on the left."""
    stride: int | None = arguments.stride
    if stride is not None and (
        arguments.no_truncate or getattr(arguments, "truncation", None) == "left"
    ):
        raise ConfigError(
            "--stride reads all of a long text: it does not go with --no-truncate or --truncation"
        )
    return stride


def _stride(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("expected a whole number of at least 0")
    return int(text)


def _top_k(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _character(text: str) -> str:
    character = "\t" if text == "\\t" else text
    if len(character) != 1 or character in '"\r\n':
        raise argparse.ArgumentTypeError("expected one character")
    return character
