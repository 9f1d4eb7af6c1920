"""JSON Lines: one object a line. The object's own bytes are kept, so nothing in it changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.table_files.line_rows import LineRowReader
from packhorse.tools.table_files.lines import LineReader, checked
from packhorse.tools.table_files.rows import BadRow, BadRowError, Ranking, RowBatch, score_texts


class JsonReader(LineRowReader):
    """The objects of the lines. Lines of white space alone separate nothing and are passed.

    added  names of the label and of the score: a row must not have them already
    """

    def __init__(
        self,
        lines: LineReader,
        name: str,
        text_columns: Sequence[str],
        added: tuple[str, str],
    ) -> None:
        super().__init__(lines)
        self._name = name
        self._added = added
        self._has_pair = len(text_columns) > 1
        self._decode = msgspec.json.Decoder(_row_type(text_columns, added)).decode

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
        if row.label is not msgspec.UNSET or row.score is not msgspec.UNSET:
            self._refuse(self._added[row.label is msgspec.UNSET])
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
            raise ConfigError(taken(self._name, column))
        raise BadRowError(f"it already has a column {column!r}")


def _row_type(text_columns: Sequence[str], added: tuple[str, str]) -> type[msgspec.Struct]:
    """What of an object is looked at: the text, its pair, and the columns that must not be there.

    The rest of the object is checked to be JSON and passed over.
    """
    unset = msgspec.UNSET
    names = dict(zip(("text", "pair"), text_columns, strict=False))
    fields: list[Any] = [*((name, str) for name in names), ("label", Any, unset)]
    fields.append(("score", Any, unset))
    names |= {"label": added[0], "score": added[1]}
    return msgspec.defstruct("Row", fields, rename=names)


def taken(name: str, column: str) -> str:
    """The message for a column that the input already has."""
    return (
        f"{name} already has a column {column!r}; choose other names with --prefix, "
        "or with --label-column and --score-column"
    )


class JsonWriter:
    """Writes one object a line: the input's fields, then the label and the score.

    columns  the names of the fields where a row is kept as a list; empty where it is the object
    added    the names of the label and of the score
    several  whether these are lists, best first
    """

    def __init__(
        self, columns: Sequence[str], added: tuple[str, str], labels: Sequence[str], several: bool
    ) -> None:
        self._names = [f"{_json(name)}: ".encode() for name in columns]
        self._label, self._score = (_json(name) for name in added)
        self._labels = [_json(label) for label in labels]
        self._several = several

    def header(self) -> bytes:
        return b""

    def encode(self, batch: RowBatch, ranking: Ranking) -> bytes:
        lines = []
        values = self._listed(ranking) if self._several else self._best(ranking)
        for kept, (label, score) in zip(batch.kept, values, strict=True):
            added = f", {self._label}: {label}, {self._score}: {score}}}\n"
            lines.append(self._unclosed(kept) + added.encode())
        return b"".join(lines)

    def _best(self, ranking: Ranking) -> list[tuple[str, str]]:
        labels = [self._labels[column] for column in ranking.order[:, 0].tolist()]
        return list(zip(labels, score_texts(ranking.scores), strict=True))

    def _listed(self, ranking: Ranking) -> list[tuple[str, str]]:
        scores = iter(score_texts(ranking.scores))
        return [
            (
                f"[{', '.join(self._labels[column] for column in order)}]",
                f"[{', '.join(next(scores) for _ in order)}]",
            )
            for order in ranking.order.tolist()
        ]

    def _unclosed(self, kept: Any) -> bytes:
        """The row's object without its closing brace. It is never empty: it holds the text."""
        if isinstance(kept, bytes):
            return kept[:-1].rstrip()
        fields = zip(self._names, map(msgspec.json.encode, kept), strict=True)
        return b"{" + b", ".join([name + value for name, value in fields])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
