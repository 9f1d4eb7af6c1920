"""Ends ``packhorse classify`` at each of its steps to the disk in turn, and lets it go on.

    python -m tests.crash_points OUT EXPECTED classify FILE -o OUT …

The steps are those that reach the disk: a sync, a rename, a deletion. For each
of them a process dies right before it, what was not synced by then becomes
rubbish, and the same command is run again. OUT must be EXPECTED every time.
Prints the number of steps.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packhorse import cli
from packhorse.tools.files import model, run
from tests.fake_encoder import FakeModel

CRASHED = 99


class Steps:
    """Counts steps, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if self._left == 0:
                os._exit(CRASHED)
            self._left -= 1
            return function(*arguments, **options)

        return step

    def install(self) -> None:
        os.fsync = self.counting(os.fsync)
        for name in ("replace", "unlink"):
            setattr(Path, name, self.counting(getattr(Path, name)))


def run_in_fork(argv: list[str], last_step: int | None) -> int:
    """The exit code of the command line in a forked process."""
    child = os.fork()
    if child == 0:
        if last_step is not None:
            Steps(last_step).install()
        vars(model)["load"] = FakeModel
        code = cli.main(argv)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def spoil(out: Path) -> None:
    """What a power cut may do: bytes that were written but not synced are anything."""
    state_path = out.with_name(out.name + ".partial.json")
    state = json.loads(state_path.read_text()) if state_path.exists() else {}
    for suffix, key in ((".partial", "output_bytes"), (".errors.jsonl", "error_bytes")):
        path = out.with_name(out.name + suffix)
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(state.get(key, 0))
                file.seek(0, os.SEEK_END)
                file.write(b"\0rubbish\xff\n" * 7)


def main(out: Path, expected: Path, argv: list[str]) -> int:
    assert run  # imported here, so that no fork has to
    if out.suffix == ".parquet":
        importlib.import_module("pyarrow.parquet")
    wanted = {suffix: read(expected, suffix) for suffix in ("", ".errors.jsonl")}
    step = 0
    while run_in_fork(argv, step) == CRASHED:
        if not out.exists():
            spoil(out)
        code = run_in_fork(argv, None)
        for suffix, content in wanted.items():
            assert read(out, suffix) == content, f"step {step}: OUT{suffix} differs"
        assert code == 0, f"step {step}: code {code}"
        names = {path.name for path in out.parent.iterdir() if path.name.startswith(out.name)}
        assert names <= {out.name, f"{out.name}.errors.jsonl"}, f"step {step}: {names} are left"
        for name in names:
            (out.parent / name).unlink()
        step += 1
    print(step)
    return 0


def read(out: Path, suffix: str) -> bytes | None:
    path = out.with_name(out.name + suffix)
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
