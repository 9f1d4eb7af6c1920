"""The right reader for an input, the right writer for an output."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass

from packhorse.errors import ConfigError
from packhorse.tools.table_files.csv_rows import CsvReader, CsvWriter, Dialect
from packhorse.tools.table_files.formats import Format
from packhorse.tools.table_files.json_rows import JsonReader, JsonWriter, taken
from packhorse.tools.table_files.lines import STDIN, LineReader
from packhorse.tools.table_files.parquet_rows import ParquetReader, ParquetWriter
from packhorse.tools.table_files.rows import Ranking, RowBatch, RowReader, RowWriter
from packhorse.tools.table_files.text_rows import TextReader


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns: of the text (and its pair) in the input, of what is added in the output.

    top_k  how many labels a row gets; None for all
    """

    texts: tuple[str, ...]
    label: str
    score: str
    top_k: int | None = 1

    @property
    def several(self) -> bool:
        """Whether a row gets a list of labels."""
        return self.top_k != 1

    def added(self, target: Format, num_labels: int = 1) -> list[str]:
        """What is added to each row. CSV has no lists: label_1, score_1, label_2, …"""
        if not self.several or target in LISTS:
            return [self.label, self.score]
        ranks = range(1, min(self.top_k or num_labels, num_labels) + 1)
        return [f"{name}_{rank}" for rank in ranks for name in (self.label, self.score)]


@dataclass(frozen=True, slots=True)
class Input:
    """Which file, and how to read it. ``delimiter`` is None for the format's own."""

    path: str
    format: Format
    delimiter: str | None = None
    quoted: bool = True

    @property
    def unit(self) -> str:
        """What the number of a row counts."""
        return "row" if self.format is Format.PARQUET else "line"

    @property
    def name(self) -> str:
        return "standard input" if self.path == STDIN else self.path

    def dialect(self, target: Format | None = None) -> Dialect:
        """How fields are separated here, or in an output of the format ``target``."""
        own = self.delimiter or _DELIMITERS.get(self.format, "")
        if target is None or target is self.format:
            return Dialect(own, self.quoted)
        return Dialect(_DELIMITERS[target])


LISTS = (Format.JSONL, Format.PARQUET)
"""Formats that have lists, and names that must differ."""

_DELIMITERS = {Format.CSV: ",", Format.TSV: "\t"}


def open_reader(source: Input, columns: Columns, target: Format) -> RowReader:
    """Open the input and check that its columns fit.

    Raises SetupError where they do not, or the file cannot be opened.
    """
    if source.format is Format.PARQUET:
        return ParquetReader(source.path, columns.texts, columns.added(target))
    lines = LineReader(source.path)
    try:
        reader = _line_reader(lines, source, columns, target)
        _check_added(reader, source.name, columns, target)
    except BaseException:
        lines.close()
        raise
    return reader


def _line_reader(lines: LineReader, source: Input, columns: Columns, target: Format) -> RowReader:
    if source.format is Format.TEXT:
        if len(columns.texts) > 1:
            raise ConfigError("a text file has one text a line; --pair-column needs a table")
        return TextReader(lines, columns.texts[0])
    if source.format is Format.JSONL:
        return JsonReader(lines, source.name, columns.texts, (columns.label, columns.score))
    return CsvReader(lines, source.name, source.dialect(), columns.texts)


def _check_added(reader: RowReader, name: str, columns: Columns, target: Format) -> None:
    for column in columns.added(target):
        if column in reader.columns or column in columns.texts:
            raise ConfigError(taken(name, column))
    if target in LISTS and len(set(reader.columns)) < len(reader.columns):
        raise ConfigError(f"{name} has two columns of the same name, which {target} cannot have")


class _GzipWriter:
    """Another writer's bytes, compressed: a gzip file may be cut off between its members."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer

    def header(self) -> bytes:
        return gzip.compress(self._writer.header(), mtime=0)

    def encode(self, batch: RowBatch, ranking: Ranking) -> bytes:
        return gzip.compress(self._writer.encode(batch, ranking), mtime=0)


def make_writer(
    source: Input,
    reader: RowReader,
    columns: Columns,
    target: Format,
    labels: Sequence[str],
    compressed: bool = False,
) -> RowWriter:
    """The writer of the reader's rows with their best labels.

    Raises ConfigError where a column that is added is there already.
    """
    writer = _plain_writer(source, reader, columns, target, labels)
    return _GzipWriter(writer) if compressed else writer


def _plain_writer(
    source: Input, reader: RowReader, columns: Columns, target: Format, labels: Sequence[str]
) -> RowWriter:
    added = columns.added(target, len(labels))
    for column in added:
        if column in reader.columns:
            raise ConfigError(taken(source.name, column))
    pair = (columns.label, columns.score)
    if target is Format.JSONL:
        return JsonWriter(reader.columns, pair, labels, columns.several)
    if target is Format.PARQUET:
        schema = reader.schema if isinstance(reader, ParquetReader) else None
        return ParquetWriter(schema, reader.columns, pair, labels, columns.several)
    return CsvWriter(reader.columns, added, labels, source.dialect(target))
