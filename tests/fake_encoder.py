"""A stand-in for a loaded model without torch, and the command line run with it.

    python -m tests.fake_encoder classify FILE -o OUT …

A text's logits follow from its characters alone. Some words make trouble:
UNTOKENISABLE, NONFINITE and BROKEN in a text are errors, after DEAD nothing works any more,
and there are the variables FAKE_DELAY
(seconds a batch) and FAKE_PEAK (a file to write the peak memory to, in KiB).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse import cli
from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import Config
from packhorse.errors import (
    InternalError,
    NonFiniteOutputError,
    ServedError,
    TokenizationError,
    ValidationError,
)
from packhorse.request import Answer, Float32Array, Sequences, TextOrPair
from packhorse.tools.files import model

MAX_CHARACTERS = 1000
"""Longer texts are truncated."""

_NONFINITE, _BROKEN, _DEAD = -1, -2, -3


class FakeEncoder:
    """Logits without a model."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.labels = (checkpoint or load_checkpoint()).labels
        self._dead = False
        self._delay = float(os.environ.get("FAKE_DELAY", "0"))

    def encode(
        self,
        inputs: Sequence[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: str = "right",
    ) -> Sequences:
        """Sequences of one token each: a hash of the text, or a mark of trouble."""
        texts = [text if isinstance(text, str) else "\x1f".join(text) for text in inputs]
        truncated = np.array([len(text) > MAX_CHARACTERS for text in texts], np.bool_)
        for index, text in enumerate(texts):
            if "UNTOKENISABLE" in text:
                raise TokenizationError(f"input {index} is not Unicode")
            if truncated[index] and not truncate:
                raise ValidationError(f"input {index} is too long")
        if truncation_direction == "left":
            texts = [text[-MAX_CHARACTERS:] for text in texts]
        texts = [text[:MAX_CHARACTERS] for text in texts]
        ids = np.array([_token(text) for text in texts], np.int32)
        return Sequences(ids, np.arange(len(texts) + 1, dtype=np.int32), truncated)

    def logits(self, sequences: Sequences) -> Float32Array:
        time.sleep(self._delay)
        ids = sequences.input_ids
        self._dead = self._dead or (ids == _DEAD).any()
        if self._dead or (ids == _BROKEN).any():
            raise InternalError("input 0 has no answer: a device fault")
        if (ids == _NONFINITE).any():
            raise NonFiniteOutputError("input 0 has no answer: not finite")
        columns = np.arange(1, len(self.labels) + 1)
        return np.sin(ids[:, np.newaxis] * columns).astype(np.float32) * 4


class FakeModel:
    """Has what ``packhorse classify`` asks of ``packhorse.loaded.Loaded``: is its tokenizer and
    its engine, too."""

    truncation_side = "right"

    def __init__(
        self, config: Config | None, checkpoint: Checkpoint, encoder: FakeEncoder | None = None
    ) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self._encoder = encoder or FakeEncoder(checkpoint)
        self.tokenizer = self.engine = self

    def encode(
        self,
        inputs: Sequence[TextOrPair],
        *,
        truncate: bool = True,
        direction: str | None = None,
    ) -> Sequences:
        direction = direction or self.truncation_side
        return self._encoder.encode(inputs, truncate=truncate, truncation_direction=direction)

    def submit(self, sequences: Sequences) -> Future[Answer]:
        done: Future[Answer] = Future()
        try:
            values = self._encoder.logits(sequences)
        except ServedError as error:
            done.set_exception(error)
        else:
            done.set_result(Answer(values, np.zeros(len(sequences), np.uint8)))
        return done

    def close(self) -> None:
        pass


def _token(text: str) -> int:
    if "NONFINITE" in text:
        return _NONFINITE
    if "BROKEN" in text:
        return _BROKEN
    if "DEAD" in text:
        return _DEAD
    return zlib.crc32(text.encode()) & 0xFFFFFF


@dataclass(frozen=True)
class Outcome:
    """Exit code and standard error of a run in this process."""

    code: int
    err: str


class Classify:
    """Runs ``packhorse classify`` in this process, with the stand-in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(model, "load", FakeModel)
        self._capsys = capsys
        self.out = ""

    def __call__(self, *arguments: str | Path) -> Outcome:
        code = cli.main(["classify", *map(str, arguments)])
        self.out, err = self._capsys.readouterr()
        return Outcome(code, err)


def command(*arguments: str | Path) -> list[str]:
    """The command line of a process with the stand-in."""
    return [sys.executable, "-m", "tests.fake_encoder", *map(str, arguments)]


def run(
    *arguments: str | Path, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; ``environment`` is on top of this process's."""
    return subprocess.run(
        command(*arguments),
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


def main() -> int:
    vars(model)["load"] = FakeModel
    code = cli.main()
    if peak := os.environ.get("FAKE_PEAK"):
        Path(peak).write_text(str(peak_memory()))
    return code


def peak_memory() -> int:
    """Of this process, in KiB. getrusage's figure would start at that of the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    sys.exit(main())
