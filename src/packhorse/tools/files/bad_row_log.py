"""Tells of the rows that were skipped: the first few on standard error, all of them in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from packhorse.tools.table_files.rows import BadRow

SHOWN = 20
"""Bad rows told one by one; the rest are only counted."""


class BadRowLog:
    """unit  what a row's number counts: "line" or "row"
    tell  prints one line
    file  where all bad rows are listed, for the message; None if nowhere
    """

    def __init__(self, unit: str, tell: Callable[[str], None], file: Path | None) -> None:
        self._unit = unit
        self._tell = tell
        self._file = file
        self._told = 0

    def add(self, rows: Iterable[BadRow]) -> bytes:
        """Tell of these rows; returns their lines for the file."""
        lines = []
        for row in rows:
            self._told += 1
            if self._told <= SHOWN:
                self._tell(f"{self._unit} {row.number} skipped: {row.reason}")
            lines.append(json.dumps({self._unit: row.number, "reason": row.reason}) + "\n")
        return "".join(lines).encode()

    def close(self) -> None:
        """Count those that were not told one by one."""
        more = self._told - SHOWN
        if more > 0:
            self._tell(f"and {more:,} more skipped")
        if self._told and self._file is not None:
            self._tell(f"all skipped {self._unit}s are listed in {self._file}")
