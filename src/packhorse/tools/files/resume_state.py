"""How far a run has come, on disk, so that another run can go on from there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from packhorse.checkpoint import Checkpoint
from packhorse.errors import SetupError
from packhorse.tools.table_files.rows import Place

_HASHED_BYTES = 1 << 16


class Counts(msgspec.Struct):
    """rows      written
    skipped   bad rows
    truncated rows among the written whose text was cut
    """

    rows: int = 0
    skipped: int = 0
    truncated: int = 0


class RunState(msgspec.Struct):
    """identity      what was run on what; another run must have the same to go on
    after         where reading goes on
    output_bytes  of the partial output that are complete
    error_bytes   of the list of bad rows that are complete
    complete      whether all input has been read
    """

    identity: dict[str, Any]
    after: Place = Place()
    counts: Counts = msgspec.field(default_factory=Counts)
    output_bytes: int = 0
    error_bytes: int = 0
    complete: bool = False

    @property
    def is_new(self) -> bool:
        """Whether nothing has been committed yet."""
        return self.after == Place()


def load_state(path: Path) -> RunState | None:
    """The state in a file, None if there is no such file.

    Raises SetupError when it cannot be understood.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise SetupError(f"{path} cannot be read; begin again with --restart") from None


def save_state(state: RunState, path: Path) -> None:
    """Replace the file at once, and have it on the disk before returning."""
    following = path.with_name(path.name + ".new")
    with following.open("wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    following.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have renamed and deleted names of a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity_of_input(path: Path) -> dict[str, Any]:
    """Path, size, time and a hash of the first bytes: what changes when the input does."""
    about = path.stat()
    with path.open("rb") as file:
        start = hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()
    return {
        "path": str(path.resolve()),
        "size": about.st_size,
        "modified": about.st_mtime_ns,
        "first bytes": start,
    }


def identity_of_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """The commit of a snapshot; names, sizes and times of the files of another folder."""
    if checkpoint.revision is not None:
        return {"id": checkpoint.model_id, "commit": checkpoint.revision}
    folders = {checkpoint.folder, checkpoint.transformer}
    files = sorted(path for one in folders for path in one.iterdir() if path.is_file())
    about = [(path.name, path.stat()) for path in files]
    return {
        "id": checkpoint.model_id,
        "folder": str(checkpoint.folder.resolve()),
        "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in about],
    }


def differences(before: dict[str, Any], now: dict[str, Any], within: str = "") -> list[str]:
    """Names of what differs between two identities: ["input size", "model commit"]."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{within}{key} ")
        elif old != new:
            found.append(f"{within}{key}")
    return found
