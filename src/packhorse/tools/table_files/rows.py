"""What a reader yields: rows, rows that cannot be used, and batches of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.request import Float32Array, TextOrPair

MAX_BATCH_CHARACTERS = 1 << 20
"""A batch is closed early once its texts have this many characters: memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading goes on.

    offset  bytes into the (decompressed) input; rows into a Parquet file
    number  lines read so far; the same as offset for Parquet
    """

    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One input with its place in the file and whatever its writer keeps of it.

    number  the line on which the row starts, from 1; the row for Parquet
    kept    list of fields (text, CSV, TSV), the line of the object (JSON Lines),
            or the row's index in the batch's table (Parquet)
    """

    number: int
    text: TextOrPair
    kept: Any


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that is skipped, and why. ``reason`` never quotes the row."""

    number: int
    reason: str


class BadRowError(Exception):
    """Raised within a reader for the row at hand; ``str(error)`` is the reason."""


@dataclass(slots=True)
class RowBatch:
    """Rows in the order of the input. ``after`` is the place behind the last of them."""

    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    after: Place = Place()
    table: Any = None

    def add(self, row: Row | BadRow) -> None:
        if isinstance(row, Row):
            self.rows.append(row)
        else:
            self.bad.append(row)

    @property
    def texts(self) -> list[TextOrPair]:
        return [row.text for row in self.rows]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best k labels of N rows, best first.

    order   intp (N, k)     columns of the model's labels
    scores  float32 (N, k)
    """

    order: NDArray[np.intp]
    scores: Float32Array


class RowReader(Protocol):
    """A file of rows. Making one reads the header and raises SetupError if it does not fit.

    columns      names of the input's columns; empty where every row has its own (JSON Lines)
    rows_known   number of rows if the file says so
    go_to        read on from the ``after`` of a batch of an earlier run
    fraction     how much of the input has been read, from 0 to 1; None if unknown
    """

    columns: list[str]
    rows_known: int | None

    def go_to(self, place: Place) -> None: ...

    def batches(self, size: int) -> Iterator[RowBatch]: ...

    def fraction(self) -> float | None: ...

    def close(self) -> None: ...


class RowWriter(Protocol):
    """Turns rows and their ranking into bytes that are appended to the output."""

    def header(self) -> bytes: ...

    def encode(self, batch: RowBatch, ranking: Ranking) -> bytes: ...


def in_batches(
    rows: Iterable[tuple[Row | BadRow, Place]], start: Place, size: int
) -> Iterator[RowBatch]:
    """Group rows, each with the place after it, into batches.

    A batch ends after ``size`` rows, good or bad, or MAX_BATCH_CHARACTERS:
    so batches depend on the input alone and are the same after a restart.
    """
    batch, count, characters = RowBatch(after=start), 0, 0
    for row, after in rows:
        batch.add(row)
        batch.after = after
        count += 1
        if isinstance(row, Row):
            characters += _characters(row.text)
        if count >= size or characters >= MAX_BATCH_CHARACTERS:
            yield batch
            batch, count, characters = RowBatch(after=after), 0, 0
    if count:
        yield batch


def _characters(text: TextOrPair) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def score_texts(scores: Float32Array) -> list[str]:
    """Each score in the fewest digits that read back as the same float32."""
    return [str(score) for score in scores.ravel()]


def listed_columns(columns: Sequence[str]) -> str:
    """The columns for a message: by name, unless they look like a row of texts.

    The first line of a file without a header is data, which no message may show.
    """
    names = [name for name in columns if len(name) <= 32 and name.replace("-", "_").isidentifier()]
    if len(names) != len(columns) or len(names) > 30:
        return f"{len(columns)} columns"
    return f"the columns {', '.join(names)}"
