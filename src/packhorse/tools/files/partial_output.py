"""The output while it grows: nothing is called OUT before it is whole.

    OUT.partial        what has been written; its committed bytes never change
    OUT.partial.json   the state that says how many bytes those are
    OUT.errors.jsonl   the bad rows, by number and reason

A commit has the data on the disk before the state that counts it, so after a
crash at any moment the state is true and what lies behind it is cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from packhorse.errors import SetupError
from packhorse.tools.files.resume_state import (
    Counts,
    RunState,
    differences,
    load_state,
    save_state,
    sync_folder,
)
from packhorse.tools.table_files.rows import Place

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Pour = Callable[[Path, Path], None]
"""Makes the final file out of the partial one, where they differ (Parquet)."""


class Output(Protocol):
    """Where rows go."""

    def write(self, data: bytes) -> None: ...

    def write_errors(self, data: bytes) -> None: ...

    def commit(self, after: Place, counts: Counts) -> None:
        """What was written belongs to the input up to ``after``; keep it through a crash."""

    def finish(self, pour: Pour | None) -> None:
        """All is written and committed: give it its name."""

    def close(self) -> None: ...


def added_to(path: Path, suffix: str) -> Path:
    """The file beside it whose name goes on with ``suffix``."""
    return path.with_name(path.name + suffix)


def errors_path(out: Path) -> Path:
    """Where the bad rows are listed."""
    return added_to(out, ".errors.jsonl")


def files_of(out: Path) -> list[Path]:
    """Every file that may be written for OUT."""
    suffixes = (".partial", ".partial.json", ".partial.json.new", ".whole")
    return [out, errors_path(out), *(added_to(out, suffix) for suffix in suffixes)]


class PartialOutput:
    """An output file that appears when it is whole.

    state  where to go on; a new one begins at byte 0
    keeps  whether commits write the state, so that a later run can go on
    """

    def __init__(self, out: Path, state: RunState, keeps: bool) -> None:
        self._out = out
        self._partial = added_to(out, ".partial")
        self._state_path = added_to(out, ".partial.json")
        self._state = state
        self._keeps = keeps
        self._file = _open_at(self._partial, state.output_bytes)
        if state.is_new:
            self._state_path.unlink(missing_ok=True)  # of an earlier run; now that we have the lock
        self._errors: BinaryIO | None = None
        if state.error_bytes:
            self._errors = _open_at(errors_path(out), state.error_bytes)
        elif errors_path(out).exists():
            errors_path(out).unlink()

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def write_errors(self, data: bytes) -> None:
        if self._errors is None:
            self._errors = _open_at(errors_path(self._out), 0)
        self._errors.write(data)

    def commit(self, after: Place, counts: Counts) -> None:
        self._state.after = after
        self._state.counts = counts
        self._commit()

    def finish(self, pour: Pour | None) -> None:
        self._state.complete = True
        self._commit()
        whole = self._partial
        if pour is not None:
            whole = added_to(self._out, ".whole")
            pour(self._partial, whole)
            with whole.open("rb") as file:
                os.fsync(file.fileno())
        whole.replace(self._out)
        sync_folder(self._out.parent)
        self._partial.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)

    def close(self) -> None:
        # What matters was committed; bytes that a full disk did not take fail once more here.
        with suppress(OSError):
            self._file.close()
        if self._errors is not None:
            with suppress(OSError):
                self._errors.close()

    def _commit(self) -> None:
        self._state.output_bytes = _synced(self._file)
        if self._errors is not None:
            self._state.error_bytes = _synced(self._errors)
        if self._keeps:
            save_state(self._state, self._state_path)


class StandardOutput:
    """Standard output: what is written is gone, and bad rows are only told."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def write_errors(self, data: bytes) -> None:
        pass

    def commit(self, after: Place, counts: Counts) -> None:
        self._file.flush()

    def finish(self, pour: Pour | None) -> None:
        self._file.flush()

    def close(self) -> None:
        pass


def has_state(out: Path) -> bool:
    """Whether an interrupted run left something to go on from."""
    return added_to(out, ".partial.json").exists()


def earlier_state(out: Path, identity: dict[str, Any]) -> RunState | None:
    """The state that an interrupted run of the same kind left, if one did.

    Raises SetupError when one was left by a run that differs, or without its output.
    """
    path = added_to(out, ".partial.json")
    state = load_state(path)
    if state is None:
        return None
    changed = differences(state.identity, identity)
    if changed:
        raise SetupError(
            f"an interrupted run left {added_to(out, '.partial')}, but since then changed: "
            f"{', '.join(changed)}; begin again with --restart"
        )
    partial = added_to(out, ".partial")
    if not partial.exists() and state.complete and out.exists():
        return state
    if not partial.exists() or partial.stat().st_size < state.output_bytes:
        raise SetupError(f"{partial} is gone or shorter than {path} says; begin with --restart")
    return state


def is_finished(out: Path, state: RunState) -> bool:
    """Whether that run ended between giving the output its name and deleting its state."""
    return state.complete and not added_to(out, ".partial").exists()


def forget(out: Path) -> None:
    """Delete the state of a finished run."""
    added_to(out, ".partial.json").unlink(missing_ok=True)


def _open_at(path: Path, offset: int) -> BinaryIO:
    """Open for writing at ``offset``, which cuts off what lies behind.

    Raises SetupError while another process writes it.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        _lock(file)
    except BlockingIOError:
        file.close()
        raise SetupError(f"another process is writing {path}") from None
    except OSError:
        pass  # a file system without locks
    file.truncate(offset)
    file.seek(offset)
    return file


def _lock(file: BinaryIO) -> None:
    """Raises BlockingIOError where another process has it; no lock on systems without flock."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _synced(file: BinaryIO) -> int:
    """Have the file on the disk; returns its size."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
