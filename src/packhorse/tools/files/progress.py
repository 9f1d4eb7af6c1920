"""How a run is doing: a bar while it runs, one line when it is over."""

from __future__ import annotations

import sys
import time
from typing import Any

from packhorse.tools.files.resume_state import Counts


class Progress:
    """Writes to standard error. The bar is there only if that is a terminal.

    done   rows of an earlier run
    quiet  no bar and no summary; bad rows and errors are told all the same
    """

    def __init__(self, done: int, quiet: bool) -> None:
        self._done = done
        self._quiet = quiet
        self._started = time.monotonic()
        self._bar: Any = None

    def start(self, message: str) -> None:
        """The model is ready, as ``message`` says: the clock runs from here."""
        self.note(message)
        self._started = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(initial=self._done, unit=" texts", unit_scale=True, smoothing=0.05)

    def advance(self, counts: Counts, fraction: float | None) -> None:
        """``fraction`` of the input lies behind, from which the total is estimated."""
        if self._bar is None:
            return
        done = counts.rows + counts.skipped
        if fraction:
            self._bar.total = max(done, round(done / fraction))
        self._bar.update(done - self._bar.n)

    def tell(self, message: str) -> None:
        """One line for the user, above the bar."""
        line = f"packhorse: {message}"
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.write(line, file=sys.stderr)

    def note(self, message: str) -> None:
        """A line that ``quiet`` leaves out."""
        if not self._quiet:
            self.tell(message)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def summarise(self, counts: Counts, source: str) -> None:
        seconds = time.monotonic() - self._started
        here = counts.rows + counts.skipped - self._done
        resumed = f", {self._done:,} of them by an earlier run" if self._done else ""
        self.note(
            f"{source}: {counts.rows:,} rows{resumed}, {counts.skipped:,} skipped, "
            f"{counts.truncated:,} truncated; {seconds:.1f} s, "
            f"{here / max(seconds, 1e-6):,.0f} texts/s"
        )
