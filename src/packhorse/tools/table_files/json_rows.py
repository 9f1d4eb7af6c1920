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


class JsonReader:
    """Yields the objects of the lines. Lines of white space alone separate nothing and are passed.

    added  columns that will be added: a row must not have them already
    """

    rows_known = None

    def __init__(
        self, lines: LineReader, name: str, text_columns: Sequence[str], added: Sequence[str]
    ) -> None:
        self._lines = lines
        self._name = name
        self._text_columns = text_columns
        self._added = added
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self.columns: list[str] = []

    def go_to(self, place: Place) -> None:
        self._lines.go_to(place)

    def batches(self, size: int) -> Iterator[RowBatch]:
        return in_batches(self._rows(), self._lines.place, size)

    def fraction(self) -> float | None:
        return self._lines.fraction()

    def close(self) -> None:
        self._lines.close()

    def _rows(self) -> Iterator[tuple[Row | BadRow, Place]]:
        while (line := self._lines.next_line()) is not None:
            number = self._lines.number
            try:
                text = decoded(line).strip(" \t\r")
                if not text:
                    continue
                row = self._row(number, text)
            except BadRowError as error:
                yield BadRow(number, str(error)), self._lines.place
            else:
                yield row, self._lines.place

    def _row(self, number: int, line: str) -> Row:
        fields = self._parsed(line)
        for column in self._added:
            if column in fields:
                self._refuse(column, number)
        texts = [_string(fields, column) for column in self._text_columns]
        return Row(number, texts[0] if len(texts) == 1 else (texts[0], texts[1]), line)

    def _parsed(self, line: str) -> Mapping[str, msgspec.Raw]:
        if not line.startswith("{"):
            raise BadRowError("not a JSON object")
        try:
            return self._decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRowError(f"invalid JSON: {error}") from None

    def _refuse(self, column: str, number: int) -> None:
        """A clash in the first line is most likely one in all lines."""
        if number == 1:
            raise ConfigError(taken(self._name, column))
        raise BadRowError(f"it already has a column {column!r}")


def _string(fields: Mapping[str, msgspec.Raw], column: str) -> str:
    if column not in fields:
        raise BadRowError(f"it has no column {column!r}")
    raw = fields[column]
    first = bytes(memoryview(raw)[:1]).decode()
    if first != '"':
        kind = _KINDS.get(first, "a number")
        raise BadRowError(f"column {column!r} is {kind} instead of a string")
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError as error:
        raise BadRowError(f"invalid JSON in column {column!r}: {error}") from None


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
