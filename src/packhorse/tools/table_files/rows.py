"""What a reader yields: rows, rows that cannot be used, and batches of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from packhorse.request import TextOrPair


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading goes on.

    offset  bytes into the (decompressed) input; rows into a Parquet file
    number  lines read so far; the same as offset for Parquet
    """

    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that is skipped, and why. ``reason`` never quotes the row."""

    number: int
    reason: str


class BadRowError(Exception):
    """Raised within a reader for the row at hand; ``str(error)`` is the reason."""


@dataclass(slots=True)
class RowBatch:
    """N rows in the order of the input, columnar: at 100,000 a second an object each is too slow.

    numbers     the line on which each row starts, from 1; the row for Parquet
    texts       what the model reads
    kept        what the writer needs of each row: its fields (text, CSV, TSV), the bytes
                of its object (JSON Lines), or its index in ``table`` (Parquet)
    bad         rows that are skipped, in their order
    after       the place behind the last of all these
    characters  in all texts
    """

    numbers: list[int] = field(default_factory=list)
    texts: list[TextOrPair] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    after: Place = Place()
    characters: int = 0
    table: Any = None

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, text: TextOrPair, kept: Any) -> None:
        self.numbers.append(number)
        self.texts.append(text)
        self.kept.append(kept)
        self.characters += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])

    def without(self, faults: Mapping[int, str]) -> RowBatch:
        """The batch with some of its rows, by index, turned into bad rows."""
        if not faults:
            return self
        good = [index for index in range(len(self)) if index not in faults]
        bad = [BadRow(self.numbers[index], reason) for index, reason in faults.items()]
        return replace(
            self,
            numbers=[self.numbers[index] for index in good],
            texts=[self.texts[index] for index in good],
            kept=[self.kept[index] for index in good],
            bad=sorted([*self.bad, *bad], key=lambda row: row.number),
        )


class RowReader(Protocol):
    """A file of rows. Making one reads the header and raises SetupError if it does not fit.

    columns      names of the input's columns; empty where every row has its own (JSON Lines)
    go_to        read on from the ``after`` of a batch of an earlier run
    fraction     how much of the input has been read, from 0 to 1; None if unknown
    """

    columns: list[str]

    def go_to(self, place: Place) -> None: ...

    def batches(self, size: int) -> Iterator[RowBatch]: ...

    def fraction(self) -> float | None: ...

    def close(self) -> None: ...


class RowWriter(Protocol):
    """Turns rows into bytes that are appended to the output.

    ``added`` are the values of each added column, in their order.
    """

    def header(self) -> bytes: ...

    def encode(self, batch: RowBatch, added: Sequence[Any]) -> bytes: ...


def listed_columns(columns: Sequence[str]) -> str:
    """The columns for a message: by name, unless they look like a row of texts.

    The first line of a file without a header is data, which no message may show.
    """
    names = [name for name in columns if len(name) <= 32 and name.replace("-", "_").isidentifier()]
    if len(names) != len(columns) or len(names) > 30:
        return f"{len(columns)} columns"
    return f"the columns {', '.join(names)}"
