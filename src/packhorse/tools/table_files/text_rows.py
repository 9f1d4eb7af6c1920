"""Text files: one text a line, whatever it holds; an empty line is an empty text."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.tools.table_files.lines import LineReader, decoded
from packhorse.tools.table_files.rows import BadRow, BadRowError, Place, Row, RowBatch, in_batches


class TextReader:
    """Yields every line as a row with one field."""

    rows_known = None

    def __init__(self, lines: LineReader, column: str) -> None:
        self._lines = lines
        self.columns = [column]

    def batches(self, size: int) -> Iterator[RowBatch]:
        return in_batches(self._rows(), self._lines.place, size)

    def go_to(self, place: Place) -> None:
        self._lines.go_to(place)

    def fraction(self) -> float | None:
        return self._lines.fraction()

    def close(self) -> None:
        self._lines.close()

    def _rows(self) -> Iterator[tuple[Row | BadRow, Place]]:
        while (line := self._lines.next_line()) is not None:
            number = self._lines.number
            try:
                text = decoded(line)
                yield Row(number, text, [text]), self._lines.place
            except BadRowError as error:
                yield BadRow(number, str(error)), self._lines.place
