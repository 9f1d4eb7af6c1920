"""CSV and TSV: RFC 4180 quoting, line feeds within fields included, or no quoting at all."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.errors import ConfigError, SetupError
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.tools.table_files.line_rows import LineRowReader
from packhorse.tools.table_files.lines import MAX_LINE_BYTES, Line, LineReader, LongLine
from packhorse.tools.table_files.rows import BadRow, BadRowError, RowBatch, listed_columns


@dataclass(frozen=True, slots=True)
class Dialect:
    """How fields are told apart. Without ``quoted`` a quote is a character like any other."""

    delimiter: str
    quoted: bool = True


class CsvReader(LineRowReader):
    """Yields the records after the header line.

    A record that breaks the quoting rules costs its first line alone: reading
    goes on with the line after it, so that a stray quote does not swallow the
    rows up to the next one.
    """

    def __init__(self, lines: LineReader, name: str, dialect: Dialect, columns: Columns) -> None:
        super().__init__(lines)
        self._dialect = dialect
        self._record = _RecordLines(lines)
        self._fields = self._new_reader()
        self.columns = self._read_header(name)
        self._texts = [_position(column, columns, self.columns, name) for column in columns.texts]

    def read_row(self, batch: RowBatch) -> bool:
        number = self.lines.number + 1
        try:
            fields = self._next_record()
            if fields is None:
                return False
            if not fields and len(self.columns) > 1:
                return True  # an empty line separates nothing
            self._add(batch, number, fields)
        except BadRowError as error:
            batch.bad.append(BadRow(number, str(error)))
        return True

    def _new_reader(self) -> Iterator[list[str]]:
        csv.field_size_limit(MAX_LINE_BYTES)
        if self._dialect.quoted:
            return csv.reader(self._record, delimiter=self._dialect.delimiter, strict=True)
        return csv.reader(
            self._record, delimiter=self._dialect.delimiter, quoting=csv.QUOTE_NONE, strict=True
        )

    def _read_header(self, name: str) -> list[str]:
        try:
            header = self._next_record()
        except BadRowError as error:
            raise SetupError(f"{name}: the header cannot be read: {error}") from None
        if not header:
            raise SetupError(f"{name} has no header line with the names of its columns")
        return header

    def _next_record(self) -> list[str] | None:
        """The fields of the next record, [] for an empty line, None at the end."""
        self._record.start()
        try:
            fields = next(self._fields, None)
        except (csv.Error, BadRowError) as error:
            self.lines.give_back(self._record.taken[1:])
            self._fields = self._new_reader()
            # csv's own messages go on with advice on Python's open().
            raise BadRowError(str(error).partition(" - ")[0]) from None
        if self._record.fault:
            raise BadRowError(self._record.fault)
        return fields

    def _add(self, batch: RowBatch, number: int, fields: list[str]) -> None:
        fields = fields or [""]  # an empty line is the one empty field of a single column
        if len(fields) != len(self.columns):
            raise BadRowError(f"number of fields: {len(fields)} instead of {len(self.columns)}")
        text = fields[self._texts[0]]
        if len(self._texts) == 1:
            batch.add(number, text, fields)
        else:
            batch.add(number, (text, fields[self._texts[1]]), fields)


class _RecordLines:
    """The source that csv.reader pulls lines from; it notes which lines made the record."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines
        self.start()

    def start(self) -> None:
        self.taken: list[Line] = []
        self.fault: str | None = None
        self._size = 0

    def __iter__(self) -> _RecordLines:
        return self

    def __next__(self) -> str:
        line = self._lines.next_line()
        if line is None:
            raise StopIteration
        self.taken.append(line)
        self._size += len(line)
        if isinstance(line, LongLine) or self._size > MAX_LINE_BYTES:
            raise BadRowError(f"the record is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            # Read on all the same, to find where the record ends.
            self.fault = "invalid UTF-8"
            return line.decode("utf-8", "replace")


def _position(column: str, columns: Columns, header: list[str], name: str) -> int:
    count = header.count(column)
    if count == 1:
        return header.index(column)
    if count:
        raise ConfigError(f"{name} has {count} columns {column!r}; rename all but one")
    remedy = f"name the right one {columns.remedy}"
    if len(header) == 1:
        remedy += ", or say with --delimiter what separates columns"
    raise ConfigError(f"{name} has no column {column!r} but {listed_columns(header)}; {remedy}")


class CsvWriter:
    """Writes a header and one record a row: the input's fields, then those that are added."""

    def __init__(
        self, columns: Sequence[str], added: Sequence[AddedColumn], dialect: Dialect
    ) -> None:
        self._added = added
        self._columns = [*columns, *(column.name for column in added)]
        self._dialect = dialect
        marks = () if dialect.quoted else (dialect.delimiter, "\n", "\r")
        for column in added:
            if any(mark in column.name or column.may_hold(mark) for mark in marks):
                raise ConfigError(
                    f"column {column.name!r} may hold the delimiter, which cannot be written "
                    "unquoted"
                )

    def header(self) -> bytes:
        return self._records([self._columns])

    def encode(self, batch: RowBatch, added: Sequence[Any]) -> bytes:
        plain = [column.plain(values) for column, values in zip(self._added, added, strict=True)]
        return self._records(
            [[*fields, *more] for fields, *more in zip(batch.kept, *plain, strict=True)]
        )

    def _records(self, records: list[list[str]]) -> bytes:
        delimiter = self._dialect.delimiter
        if self._dialect.quoted:
            records = [[_quoted(field, delimiter) for field in record] for record in records]
        return "".join([f"{delimiter.join(record)}\n" for record in records]).encode()


def _quoted(field: str, delimiter: str) -> str:
    """The field with quotes around it if it needs them.

    csv.writer looks up every character by itself, which takes ten times as
    long, and leaves a carriage return unquoted where lines end in a line feed.
    """
    if delimiter in field or '"' in field or "\n" in field or "\r" in field:
        return '"' + field.replace('"', '""') + '"'
    return field
