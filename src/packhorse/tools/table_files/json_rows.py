"""JSON Lines: one object a line. The object's own bytes are kept, so nothing in it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.table_files.lines import LineReader, decoded
from packhorse.tools.table_files.rows import (
    BadRow,
    BadRowError,
    Place,
    Ranking,
    Row,
    RowBatch,
    in_batches,
    score_texts,
)

_KINDS = {
    '"': "a string",
    "{": "an object",
    "[": "a list",
    "t": "a boolean",
    "f": "a boolean",
    "n": "null",
}


class JsonReader(LineRowReader):
    """The objects of the lines. Lines of white space alone separate nothing and are passed.

    added  columns that will be added: a row must not have them already
    """

    def __init__(
        self, lines: LineReader, name: str, text_columns: Sequence[str], added: Sequence[str]
    ) -> None:
        super().__init__(lines)
        self._name = name
        self._decode = msgspec.json.Decoder(_fields_read(text_columns, added)).decode
        self._added = added
        self._has_pair = len(text_columns) > 1

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
        try:
            text, pair, *added = msgspec.structs.astuple(self._decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            # msgspec names the column and the kinds of values, never a value.
            raise BadRowError(f"invalid JSON: {error}") from None
        for column, value in zip(self._added, added, strict=True):
            if value is not msgspec.UNSET:
                self._refuse(column)
        batch.add(self.lines.number, (text, pair) if self._has_pair else text, line)

    def _refuse(self, column: str) -> None:
        """A clash in the first line is most likely one in all lines."""
        if self.lines.number == 1:
            raise ConfigError(taken(self._name, column))
        raise BadRowError(f"it already has a column {column!r}")


def _fields_read(text_columns: Sequence[str], added: Sequence[str]) -> type[msgspec.Struct]:
    """What of an object is looked at: the text, its pair, and the columns that must not be there.

    The rest of the object is checked to be JSON and passed over.
    """
    fields: list[Any] = [("text", str), ("pair", str)] if len(text_columns) > 1 else [("text", str), ("pair", None, None)]
    ...


def taken(name: str, column: str) -> str:
    """The message for a column that the input already has."""
    return (
        f"{name} already has a column {column!r}; choose other names with --prefix, "
        "or with --label-column and --score-column"
    )


class JsonWriter:
    """Writes one object a line: the input's fields, then the label and the score.

    columns  the names of the fields where ``Row.kept`` is a list; empty where it is the object
    added    the names of the label and of the score
    several  whether these are lists, best first
    """

    def __init__(
        self, columns: Sequence[str], added: tuple[str, str], labels: Sequence[str], several: bool
    ) -> None:
        self._columns = columns
        self._label, self._score = map(_json, added)
        self._labels = [_json(label) for label in labels]
        self._several = several

    def header(self) -> bytes:
        return b""

    def encode(self, batch: RowBatch, ranking: Ranking) -> bytes:
        per_row = ranking.order.shape[1]
        scores = score_texts(ranking.scores)
        lines = []
        for index, (row, order) in enumerate(zip(batch.rows, ranking.order.tolist(), strict=True)):
            label = ", ".join(self._labels[column] for column in order)
            score = ", ".join(scores[index * per_row : (index + 1) * per_row])
            if self._several:
                label, score = f"[{label}]", f"[{score}]"
            lines.append(f"{self._open(row)}, {self._label}: {label}, {self._score}: {score}}}\n")
        return "".join(lines).encode()

    def _open(self, row: Row) -> str:
        """The row's object without its closing brace. It is never empty: it holds the text."""
        if isinstance(row.kept, str):
            return row.kept[:-1].rstrip()
        return _json(dict(zip(self._columns, row.kept, strict=True)))[:-1]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
