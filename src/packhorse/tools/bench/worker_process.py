"""A worker as its parent sees it: a process that answers one command at a time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from packhorse.tools.bench.worker import Assignment, Command, Ready

Answer = TypeVar("Answer")

PATIENCE = 900
"""Seconds after which a worker that is silent is given up."""

_SHOWN_LINES = 12


class WorkerError(Exception):
    """A worker ended before it answered; the message ends with what it said last."""


class WorkerProcess:
    """Started at once, in a fresh interpreter; ``wait`` until it has loaded.

    ready_seconds  from the start of the process to its first answer
    """

    def __init__(self, name: str, assignment: Assignment, log: Path) -> None:
        self.name = name
        self.ready_seconds = 0.0
        self._log = log
        self._started = time.monotonic()
        threads = str(assignment.place.threads)
        pools = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "packhorse.tools.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | pools | {"HF_HUB_OFFLINE": "1"},
            )
        self._send(assignment)

    def wait(self) -> Ready:
        """Until the program has loaded and answered one text.

        Raises WorkerError when it could not.
        """
        ready = self._answer(Ready)
        self.ready_seconds = time.monotonic() - self._started
        return ready

    def ask(self, command: Command, answer: type[Answer]) -> Answer:
        """Have it do something and wait for the answer.

        Raises WorkerError when it ends instead.
        """
        self._send(command)
        return self._answer(answer)

    def close(self) -> None:
        """Let it end by itself, or end it after a while."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # ``_answer`` finds out why
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def _answer(self, kind: type[Answer]) -> Answer:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self._process.kill()
            raise WorkerError(f"{self.name} gave no answer within {PATIENCE} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.name} ended without an answer:\n{self._last_words()}")
        return msgspec.json.decode(line, type=kind)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:])
