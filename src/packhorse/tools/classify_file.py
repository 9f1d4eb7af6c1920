"""``packhorse classify``: a file of texts in, the same file with labels out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.option_flags import add_settings, read_settings

if TYPE_CHECKING:
    from packhorse.tools.classify_run import Run
    from packhorse.tools.table_files.opening import Columns

# As text, since naming the formats by their class would import numpy for --help.
_INPUT_FORMATS = ("auto", "text", "csv", "tsv", "jsonl", "parquet")
_OUTPUT_FORMATS = ("auto", "csv", "tsv", "jsonl", "parquet")

EPILOG = """\
Every row of the input is written once, in order, with all its columns, a label and a score.
Rows that cannot be used are skipped: the first 20 are told, all are listed in OUT.errors.jsonl.

An interrupted run leaves OUT.partial and OUT.partial.json; the same command goes on from there,
and the output is what it would have been without the interruption.

exit codes: 0 done; 1 the model or a disk failed, or rows were skipped under --strict;
2 nothing was done, for a reason told in one line; 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, columns, texts, how to run, and the settings of model and engine."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="the input; - for standard input")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the output; - for standard output"
    )
    _add_input_arguments(parser.add_argument_group("input"))
    _add_output_arguments(parser.add_argument_group("output"))
    _add_text_arguments(parser.add_argument_group("texts"))
    _add_run_arguments(parser.add_argument_group("run"))
    add_settings(
        parser,
        ("model", "engine"),
        without=("served_model_name", "max_batch_requests", "max_batch_time"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Classify the file; the exit code.

    Raises SetupError when something does not fit, before anything is written.
    """
    config = read_settings(arguments)
    from packhorse.tools.classify_run import classify_file

    counts = classify_file(_run(arguments), config)
    return 1 if arguments.strict and counts.skipped else 0


def _add_input_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input-format",
        choices=_INPUT_FORMATS,
        default="auto",
        help="auto: by the name (.txt, .csv, .tsv, .jsonl, .parquet, all but the last also "
        "with .gz); standard input is text",
    )
    group.add_argument("--text-column", default="text", metavar="NAME", help="default: text")
    group.add_argument(
        "--pair-column",
        metavar="NAME",
        help="column of a second text, read together with the first",
    )
    group.add_argument(
        "--delimiter", type=_character, metavar="C", help="of a CSV file; default: a comma"
    )
    group.add_argument(
        "--no-quotes",
        action="store_true",
        help="in CSV and TSV, take a quote for a character like any other",
    )


def _add_output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-format",
        choices=_OUTPUT_FORMATS,
        default="auto",
        help="auto: by the name; standard output has the format of the input, jsonl for text",
    )
    group.add_argument(
        "--top-k",
        type=_top_k,
        default=1,
        metavar="N",
        help="labels for each row, best first, or all; default: 1. More than one are lists in "
        "jsonl and parquet, and the columns label_1, score_1, label_2, … in csv and tsv",
    )
    group.add_argument("--raw-scores", action="store_true", help="logits instead of probabilities")
    group.add_argument("--prefix", default="", help="before the names of the added columns")
    group.add_argument("--label-column", metavar="NAME", help="default: label (labels for lists)")
    group.add_argument("--score-column", metavar="NAME", help="default: score (scores for lists)")
    group.add_argument("--overwrite", action="store_true", help="replace an OUT that exists")


def _add_text_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--truncation",
        choices=("right", "left"),
        default="right",
        help="the side that is cut off a text that is too long; default: right",
    )
    group.add_argument(
        "--no-truncate", action="store_true", help="skip a text that is too long instead"
    )


def _add_run_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch",
        type=_positive,
        metavar="ROWS",
        help="rows at once, about as many as an interruption costs; default: 512, on a GPU 8192",
    )
    group.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on from an interrupted run, and note what a later run needs for that; "
        "never for standard input or output",
    )
    group.add_argument(
        "--restart", action="store_true", help="drop what an interrupted run left, and begin again"
    )
    group.add_argument("--strict", action="store_true", help="exit with 1 if a row was skipped")
    group.add_argument("--quiet", "-q", action="store_true", help="no progress bar, no summary")


def _run(arguments: argparse.Namespace) -> Run:
    from packhorse.tools.classify_run import Run
    from packhorse.tools.row_scores import Scoring
    from packhorse.tools.table_files.formats import input_format, output_format
    from packhorse.tools.table_files.opening import Input

    source = Input(
        arguments.file,
        input_format(arguments.file, arguments.input_format),
        arguments.delimiter,
        quoted=not arguments.no_quotes,
    )
    target = output_format(arguments.output, arguments.output_format, source.format)
    return Run(
        source=source,
        out=arguments.output,
        target=target,
        columns=_columns(arguments, target in ("jsonl", "parquet")),
        scoring=Scoring(
            top_k=arguments.top_k,
            raw_scores=arguments.raw_scores,
            truncate=not arguments.no_truncate,
            direction=arguments.truncation,
        ),
        batch=arguments.batch,
        resume=arguments.resume,
        restart=arguments.restart,
        overwrite=arguments.overwrite,
        quiet=arguments.quiet,
    )


def _columns(arguments: argparse.Namespace, has_lists: bool) -> Columns:
    from packhorse.tools.table_files.opening import Columns

    plural = "s" if has_lists and arguments.top_k != 1 else ""
    texts = [arguments.text_column]
    if arguments.pair_column is not None:
        texts.append(arguments.pair_column)
    label = arguments.prefix + (arguments.label_column or f"label{plural}")
    score = arguments.prefix + (arguments.score_column or f"score{plural}")
    if len(set(texts)) < len(texts):
        raise ConfigError("--text-column and --pair-column must be two columns")
    if label == score:
        raise ConfigError("--label-column and --score-column must have two names")
    return Columns(tuple(texts), label, score, arguments.top_k)


def _top_k(text: str) -> int | None:
    return None if text == "all" else _positive(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a whole number of at least 1")
    return int(text)


def _character(text: str) -> str:
    character = "\t" if text == "\\t" else text
    if len(character) != 1 or character in '"\r\n':
        raise argparse.ArgumentTypeError("expected one character")
    return character
