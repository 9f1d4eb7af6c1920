"""Text files: one text a line, whatever it holds; an empty line is an empty text."""

from __future__ import annotations

from packhorse.tools.table_files.line_rows import LineRowReader
from packhorse.tools.table_files.lines import LineReader, checked
from packhorse.tools.table_files.rows import BadRow, BadRowError, RowBatch


class TextReader(LineRowReader):
    """Every line is a row with one field."""

    def __init__(self, lines: LineReader, column: str) -> None:
        super().__init__(lines)
        self.columns = [column]

    def read_row(self, batch: RowBatch) -> bool:
        line = self.lines.next_line()
        if line is None:
            return False
        try:
            text = checked(line).decode()
            batch.add(self.lines.number, text, (text,))
        except BadRowError as error:
            batch.bad.append(BadRow(self.lines.number, str(error)))
        return True
