"""The right reader for an input, the right writer for an output."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.errors import ConfigError
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.tools.table_files.csv_rows import CsvReader, CsvWriter, Dialect
from packhorse.tools.table_files.formats import Format
from packhorse.tools.table_files.json_rows import JsonReader, JsonWriter
from packhorse.tools.table_files.lines import STDIN, LineReader
from packhorse.tools.table_files.parquet_rows import ParquetReader, ParquetWriter
from packhorse.tools.table_files.rows import RowBatch, RowReader, RowWriter
from packhorse.tools.table_files.text_rows import TextReader


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
        return ParquetReader(source.path, columns)
    lines = LineReader(source.path)
    try:
        reader = _line_reader(lines, source, columns)
        _check_added(reader, source.name, columns, target)
    except BaseException:
        lines.close()
        raise
    return reader


def _line_reader(lines: LineReader, source: Input, columns: Columns) -> RowReader:
    if source.format is Format.TEXT:
        if len(columns.texts) > 1:
            raise ConfigError(
                f"a text file has one text a line; {columns.texts_told_by[-1]} needs a table"
            )
        return TextReader(lines, columns.texts[0])
    if source.format is Format.JSONL:
        return JsonReader(lines, source.name, columns)
    return CsvReader(lines, source.name, source.dialect(), columns)


def _check_added(reader: RowReader, name: str, columns: Columns, target: Format) -> None:
    for column in columns.added:
        if column in reader.columns or column in columns.texts:
            raise ConfigError(columns.taken(name, column))
    if target in LISTS and len(set(reader.columns)) < len(reader.columns):
        raise ConfigError(f"{name} has two columns of the same name, which {target} cannot have")


class _GzipWriter:
    """Another writer's bytes, compressed: a gzip file may be cut off between its members."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer

    def header(self) -> bytes:
        return gzip.compress(self._writer.header(), mtime=0)

    def encode(self, batch: RowBatch, added: Sequence[Any]) -> bytes:
        return gzip.compress(self._writer.encode(batch, added), mtime=0)


def make_writer(
    source: Input,
    reader: RowReader,
    columns: Columns,
    target: Format,
    added: Sequence[AddedColumn],
    compressed: bool = False,
) -> RowWriter:
    """The writer of the reader's rows with the columns that are ``added``.

    Raises ConfigError where one of these is there already.
    """
    for column in added:
        if column.name in reader.columns:
            raise ConfigError(columns.taken(source.name, column.name))
    writer = _plain_writer(source, reader, target, added)
    return _GzipWriter(writer) if compressed else writer


def _plain_writer(
    source: Input, reader: RowReader, target: Format, added: Sequence[AddedColumn]
) -> RowWriter:
    if target is Format.JSONL:
        return JsonWriter(reader.columns, added)
    if target is Format.PARQUET:
        schema = reader.schema if isinstance(reader, ParquetReader) else None
        return ParquetWriter(schema, reader.columns, added)
    return CsvWriter(reader.columns, added, source.dialect(target))
