"""A server that is started for one measurement, and what its processes use."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packhorse.errors import ConfigError

START_SECONDS = 300.0
"""A model from the hub may have to be loaded first."""

STOP_SECONDS = 40.0
"""A server finishes what it has before it ends."""

KINDS = ("supervisor", "engine", "front end")
"""Its processes, by the words in their titles."""


class Served:
    """A server of this package: its address, and its processes."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self._process = process

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds of CPU so far by kind of process (Linux)."""
        used = dict.fromkeys(KINDS, 0.0)
        for process, title in self._titles():
            kind = next((kind for kind in KINDS if f"packhorse: {kind}" in title), None)
            if kind is not None:
                used[kind] += _cpu_seconds(process)
        return used

    def resident_bytes(self) -> int:
        """Memory of all its processes; pages that they share count for each."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(
            page * int(Path(f"/proc/{process}/statm").read_text().split()[1])
            for process, _ in self._titles()
        )

    def _titles(self) -> Iterator[tuple[int, str]]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for process in (self._process.pid, *map(int, children.read_text().split())):
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            yield process, command.replace(b"\0", b" ").decode("utf-8", "replace")


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[Served]:
    """``packhorse serve`` with these arguments on a free port, for the duration of a with block.

    Raises ConfigError when it does not start; it has said why on standard error.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse.cli", "serve", "--port", "0", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Served(_url(process), process)
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str]) -> str:
    """What it says when it serves."""
    assert process.stdout is not None
    has_said = select.select([process.stdout], [], [], START_SECONDS)[0]
    line = process.stdout.readline() if has_said else ""
    if not line:
        raise ConfigError("the server did not start; its messages are above")
    return line.split()[-1]


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # the second one means: now
            process.wait()
    process.stdout.close()


def _cpu_seconds(process: int) -> float:
    """Of all its threads, in user and system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
