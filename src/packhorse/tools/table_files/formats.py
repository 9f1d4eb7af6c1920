"""Which format a file has: by its name unless told."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePath

from packhorse.errors import ConfigError
from packhorse.tools.table_files.lines import STDIN


class Format(StrEnum):
    """How rows are laid out in a file; text has one column without a name."""

    TEXT = "text"
    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    PARQUET = "parquet"


AUTO = "auto"

_BY_SUFFIX = {
    ".txt": Format.TEXT,
    ".text": Format.TEXT,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
}


def input_format(path: str, told: str) -> Format:
    """The input's format.

    Raises ConfigError where the name does not tell it.
    """
    if told != AUTO:
        chosen = Format(told)
    else:
        chosen = Format.TEXT if path == STDIN else _by_name(path, "--input-format")
    if chosen is Format.PARQUET and path == STDIN:
        raise ConfigError("parquet cannot be read from standard input")
    return chosen


def output_format(path: str, told: str, source: Format) -> Format:
    """The output's format. Standard output has the input's, and JSON Lines for text.

    Raises ConfigError where the name does not tell it, or rows of ``source`` do not fit it.
    """
    if told != AUTO:
        chosen = Format(told)
    elif path == STDIN:
        chosen = Format.JSONL if source is Format.TEXT else source
    else:
        chosen = _by_name(path, "--output-format")
    if chosen is Format.TEXT:
        raise ConfigError(
            "a text file has no place for more columns; write csv, tsv, jsonl or parquet"
        )
    # Objects need not have the same fields, and Parquet's types have no exact spelling in text.
    if source in (Format.JSONL, Format.PARQUET) and chosen is not source:
        raise ConfigError(f"rows of {source} are written as {source} only, not as {chosen}")
    if chosen is Format.PARQUET and path == STDIN:
        raise ConfigError("parquet cannot be written to standard output")
    return chosen


def _by_name(path: str, flag: str) -> Format:
    name = PurePath(path.removesuffix(".gz"))
    found = _BY_SUFFIX.get(name.suffix.lower())
    if found is None:
        raise ConfigError(f"the name {path} does not tell its format; say it with {flag}")
    if found is Format.PARQUET and path.endswith(".gz"):
        raise ConfigError(f"{path}: parquet is compressed in itself, not with gzip")
    return found
