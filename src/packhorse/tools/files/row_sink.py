"""Where answered batches end: written, counted, told of and committed."""

from __future__ import annotations

import threading

from packhorse.tools.files.bad_row_log import BadRowLog
from packhorse.tools.files.partial_output import Output
from packhorse.tools.files.progress import Progress
from packhorse.tools.files.resume_state import Counts
from packhorse.tools.files.row_answers import Answered
from packhorse.tools.table_files.parquet_rows import ParquetWriter
from packhorse.tools.table_files.rows import Place, RowReader, RowWriter


class RowSink:
    """Takes answered batches to the output, and commits when there is nothing else to write.

    On a CPU that is after each batch. Where batches come faster than the disk
    can confirm them, one commit covers several.
    """

    def __init__(
        self,
        reader: RowReader,
        writer: RowWriter,
        output: Output,
        counts: Counts,
        progress: Progress,
        bad_rows: BadRowLog,
    ) -> None:
        self.counts = counts
        self._reader = reader
        self._writer = writer
        self._output = output
        self._progress = progress
        self._bad_rows = bad_rows
        self._after: Place | None = None
        # A second Ctrl-C ends the wait for the writing thread: then both may be in here.
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Write what stands before the first row."""
        self._output.write(self._writer.header())

    def take(self, answered: Answered, more_waiting: bool) -> None:
        """Write one batch; commit it too unless more are waiting."""
        batch = answered.batch
        with self._lock:
            self._after = None  # should writing fail half-way, nothing is committed any more
            if len(batch):
                self._output.write(self._writer.encode(batch, answered.added))
            if batch.bad:
                self._output.write_errors(self._bad_rows.add(batch.bad))
            self.counts.rows += len(batch)
            self.counts.skipped += len(batch.bad)
            self.counts.truncated += answered.truncated
            self._after = batch.after
            if not more_waiting:
                self._commit()
        self._progress.advance(self.counts, self._reader.fraction())

    def __enter__(self) -> RowSink:
        return self

    def __exit__(self, *exception: object) -> None:
        """Commit what is whole, also after an error or an interruption."""
        with self._lock:
            self._commit()
        self._bad_rows.close()

    def finish(self) -> None:
        """Give the output its name."""
        pour = self._writer.pour if isinstance(self._writer, ParquetWriter) else None
        self._output.finish(pour)

    def _commit(self) -> None:
        if self._after is not None:
            self._output.commit(self._after, self.counts)
