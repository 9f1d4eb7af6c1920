"""Parquet, by way of pyarrow (the optional extra ``packhorse[parquet]``).

A Parquet file cannot be continued once its writer is gone. So each batch of
rows is appended to the partial output as a small Arrow stream of its own,
which can be cut off at any batch, and all streams are poured into one Parquet
file at the end, a row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packhorse.errors import ConfigError, SetupError
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.tools.table_files.rows import (
    BadRow,
    Place,
    RowBatch,
    listed_columns,
)

_BATCH_BYTES = 8_000_000
"""Rows are read in steps of about this size, by the average that the file states."""

_GROUP_ROWS = 65_536
_GROUP_BYTES = 32_000_000
"""A row group of the output is closed at either of these."""


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise SetupError(
            'Parquet needs pyarrow, which is not installed: pip install "packhorse[parquet]"'
        ) from None
    return pyarrow


class ParquetReader:
    """Yields the rows of a Parquet file; a row's number counts from 1.

    Batches never cross row groups, so that reading can go on at any of them
    without reading the groups before it.
    """

    def __init__(self, path: str, columns: Columns) -> None:
        self._arrow = _pyarrow()
        self._path = path
        try:
            self._file = self._arrow.parquet.ParquetFile(path)
        except self._arrow.ArrowException as error:
            raise SetupError(f"{path} cannot be read as Parquet: {error}") from None
        self.schema = self._file.schema_arrow
        self.columns: list[str] = list(self.schema.names)
        self._text_columns = columns.texts
        self._next = 0
        try:
            self._check_columns(columns)
        except BaseException:
            self.close()
            raise

    def go_to(self, place: Place) -> None:
        self._next = place.offset

    def fraction(self) -> float | None:
        rows = self._file.metadata.num_rows
        return self._next / rows if rows else None

    def close(self) -> None:
        self._file.close()

    def batches(self, size: int) -> Iterator[RowBatch]:
        start = 0
        for group in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(group).num_rows
            if self._next < start + rows:
                yield from self._group(group, start, size)
            start += rows

    def _group(self, group: int, start: int, size: int) -> Iterator[RowBatch]:
        """The batches of a row group whose first row is row ``start``."""
        about = self._file.metadata.row_group(group)
        step = max(1, min(size, _BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
        tables = self._file.iter_batches(batch_size=step, row_groups=[group])
        try:
            for table in tables:
                stop = start + table.num_rows
                if self._next < stop:
                    self._next = stop
                    yield self._batch(table, start)
                start = stop
        except (self._arrow.ArrowException, OSError) as error:
            raise SetupError(
                f"{self._path} cannot be read after row {self._next}: {error}"
            ) from None

    def _batch(self, table: Any, start: int) -> RowBatch:
        stop = start + table.num_rows
        batch = RowBatch(after=Place(stop, stop), table=table)
        columns = [_strings(table.column(name)) for name in self._text_columns]
        for index, values in enumerate(zip(*columns, strict=True)):
            number = start + index + 1
            unusable = [
                f"column {name!r} {value.reason}"
                for name, value in zip(self._text_columns, values, strict=True)
                if isinstance(value, _Unusable)
            ]
            if unusable:
                batch.bad.append(BadRow(number, unusable[0]))
            else:
                batch.add(number, values[0] if len(values) == 1 else values, index)
        return batch

    def _check_columns(self, columns: Columns) -> None:
        for name in columns.added:
            if name in self.columns:
                raise ConfigError(columns.taken(self._path, name))
        for name in self._text_columns:
            if self.columns.count(name) != 1:
                raise ConfigError(
                    f"{self._path} has {self.columns.count(name)} columns {name!r} among "
                    f"{listed_columns(self.columns)}; name one {columns.remedy}"
                )
            kind = self.schema.field(name).type
            if not self._is_string(kind):
                raise ConfigError(f"{self._path}: column {name!r} is {kind} instead of string")

    def _is_string(self, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_dictionary(kind):
            return self._is_string(kind.value_type)
        return bool(
            types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        )


class _Unusable:
    """A value that is no text, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _strings(column: Any) -> list[str | _Unusable]:
    """The column's values; one by one where some value is not UTF-8 after all."""
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_string(value) for value in column]
    return [_Unusable("is null") if value is None else value for value in values]


def _string(value: Any) -> str | _Unusable | None:
    try:
        text: str | None = value.as_py()
    except UnicodeDecodeError:
        return _Unusable("has invalid UTF-8")
    return text


class ParquetWriter:
    """Makes one Arrow stream of a batch, and a Parquet file of all streams in the end.

    source   the input's schema; None for an input of strings
    columns  the input's columns, where it has no schema
    added    what is added to each row
    """

    def __init__(self, source: Any, columns: Sequence[str], added: Sequence[AddedColumn]) -> None:
        self._arrow = arrow = _pyarrow()
        if source is None:
            source = arrow.schema([(name, arrow.string()) for name in columns])
        self._source = source
        self._schema = source
        self._added = added
        for column in added:
            self._schema = self._schema.append(arrow.field(column.name, column.arrow_type(arrow)))

    def header(self) -> bytes:
        return b""

    def encode(self, batch: RowBatch, added: Sequence[Any]) -> bytes:
        arrays = [
            column.arrow_array(self._arrow, values)
            for column, values in zip(self._added, added, strict=True)
        ]
        table = self._arrow.RecordBatch.from_arrays(
            [*self._kept(batch), *arrays], schema=self._schema
        )
        sink = self._arrow.BufferOutputStream()
        with self._arrow.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(table)
        return bytes(sink.getvalue())

    def pour(self, partial: Path, target: Path) -> None:
        """Write the streams in ``partial`` to ``target`` as one Parquet file.

        Row groups depend on the batches alone, so the file is the same
        whether or not the run was interrupted.
        """
        parquet = self._arrow.parquet
        with parquet.ParquetWriter(target, self._schema) as writer:
            for group in self._groups(partial):
                self._write_group(writer, group)

    def _kept(self, batch: RowBatch) -> list[Any]:
        """The input's columns for the good rows."""
        kept = batch.kept
        if batch.table is not None:
            table = batch.table
            if len(kept) < table.num_rows:
                table = table.take(self._arrow.array(kept, self._arrow.int64()))
            return list(table.columns)
        by_column = zip(*kept, strict=True) if kept else [()] * len(self._source)
        return [self._arrow.array(list(values), self._arrow.string()) for values in by_column]

    def _groups(self, partial: Path) -> Iterator[list[Any]]:
        """The batches of one row group of the output after the other."""
        group, rows, size = [], 0, 0
        for batch in self._streamed(partial):
            group.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                del batch  # whoever writes the group has the only references
                yield group
                group, rows, size = [], 0, 0
        if group:
            yield group

    def _streamed(self, partial: Path) -> Iterator[Any]:
        size = partial.stat().st_size
        with self._arrow.OSFile(str(partial)) as file:
            while file.tell() < size:
                with self._arrow.ipc.open_stream(file) as stream:
                    yield from stream

    def _write_group(self, writer: Any, group: list[Any]) -> None:
        """Write the batches as they are: in one piece they would be in memory twice.

        What they took is given back at once; else the next group comes on top of it, or not,
        as the allocator's clock has it.
        """
        table = self._arrow.Table.from_batches(group).unify_dictionaries()
        group.clear()
        writer.write_table(table, row_group_size=table.num_rows)
        del table
        self._arrow.default_memory_pool().release_unused()
