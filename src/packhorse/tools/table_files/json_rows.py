"""JSON Lines: one object a line. The object's own bytes are kept, so nothing in it changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.tools.table_files.line_rows import LineRowReader
from packhorse.tools.table_files.lines import LineReader, checked
from packhorse.tools.table_files.rows import BadRow, BadRowError, RowBatch


class JsonReader(LineRowReader):
    """The objects of the lines. Lines of white space alone separate nothing and are passed."""

    def __init__(self, lines: LineReader, name: str, columns: Columns) -> None:
        super().__init__(lines)
        self._name = name
        self._columns = columns
        self._has_pair = len(columns.texts) > 1
        self._added = [f"added{number}" for number in range(len(columns.added))]
        self._decode = msgspec.json.Decoder(_row_type(columns, self._added)).decode

    def read_row(self, batch: RowBatch) -> bool:
        line = self.lines.next_line()
        if line is None:
            return False
        try:
            line = checked(line).strip(b" \t\r")
            if line:
                self._add(batch, line)
        except BadRowError as error:
            batch.bad.append(BadRow(self.lines.number, str(error)))
        return True

    def _add(self, batch: RowBatch, line: bytes) -> None:
        row = self._parsed(line)
        for field, column in zip(self._added, self._columns.added, strict=True):
            if getattr(row, field) is not msgspec.UNSET:
                self._refuse(column)
        text = (row.text, row.pair) if self._has_pair else row.text
        batch.add(self.lines.number, text, line)

    def _parsed(self, line: bytes) -> Any:
        """The fields of ``_row_type``. msgspec's messages name columns and kinds, never a value."""
        try:
            return self._decode(line)
        except msgspec.ValidationError as error:
            raise BadRowError(str(error)) from None
        except msgspec.DecodeError as error:
            raise BadRowError(f"invalid JSON: {error}") from None
        except RecursionError:
            raise BadRowError("invalid JSON: nested too deeply") from None

    def _refuse(self, column: str) -> None:
        """A clash in the first line is most likely one in all lines."""
        if self.lines.number == 1:
            raise ConfigError(self._columns.taken(self._name, column))
        raise BadRowError(f"it already has a column {column!r}")


def _row_type(columns: Columns, added: Sequence[str]) -> type[msgspec.Struct]:
    """What of an object is looked at: the text, its pair, and the columns that must not be there.

    The rest of the object is checked to be JSON and passed over.
    """
    names = dict(zip(("text", "pair"), columns.texts, strict=False))
    fields: list[Any] = [(name, str) for name in names]
    fields += [(name, Any, msgspec.UNSET) for name in added]
    names |= dict(zip(added, columns.added, strict=True))
    return msgspec.defstruct("Row", fields, rename=names)


class JsonWriter:
    """Writes one object a line: the input's fields, then those that are added.

    columns  the names of the fields where a row is kept as a list; empty where it is the object
    """

    def __init__(self, columns: Sequence[str], added: Sequence[AddedColumn]) -> None:
        self._names = [f"{_json(name)}: ".encode() for name in columns]
        self._added = added
        self._keys = [_json(column.name) for column in added]

    def header(self) -> bytes:
        return b""

    def encode(self, batch: RowBatch, added: Sequence[Any]) -> bytes:
        spelled = [column.json(values) for column, values in zip(self._added, added, strict=True)]
        lines = []
        for kept, *values in zip(batch.kept, *spelled, strict=True):
            pairs = [f", {key}: {value}" for key, value in zip(self._keys, values, strict=True)]
            lines.append(self._unclosed(kept) + f"{''.join(pairs)}}}\n".encode())
        return b"".join(lines)

    def _unclosed(self, kept: Any) -> bytes:
        """The row's object without its closing brace. It is never empty: it holds the text."""
        if isinstance(kept, bytes):
            return kept[:-1].rstrip()
        fields = zip(self._names, map(msgspec.json.encode, kept), strict=True)
        return b"{" + b", ".join([name + value for name, value in fields])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
