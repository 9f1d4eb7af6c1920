"""What the readers of line after line have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from packhorse.tools.table_files.lines import LineReader
from packhorse.tools.table_files.rows import Place, RowBatch

MAX_BATCH_CHARACTERS = 1 << 21
"""A batch ends once its texts have this many characters: memory stays bounded."""


class LineRowReader(ABC):
    """A row reader over a LineReader; a format only has to read one row."""

    def __init__(self, lines: LineReader) -> None:
        self.lines = lines
        self.columns: list[str] = []

    @abstractmethod
    def read_row(self, batch: RowBatch) -> bool:
        """Add the next row, good or bad, or none for lines without one; False at the end."""

    def batches(self, size: int) -> Iterator[RowBatch]:
        """Batches of ``size`` rows, or fewer long ones.

        Where they end depends on the input alone, so it is the same after a restart.
        """
        more = True
        while more:
            batch = RowBatch()
            while len(batch) + len(batch.bad) < size and batch.characters < MAX_BATCH_CHARACTERS:
                more = self.read_row(batch)
                if not more:
                    break
            batch.after = self.lines.place
            if len(batch) or batch.bad:
                yield batch

    def go_to(self, place: Place) -> None:
        self.lines.go_to(place)

    def fraction(self) -> float | None:
        return self.lines.fraction()

    def close(self) -> None:
        self.lines.close()
