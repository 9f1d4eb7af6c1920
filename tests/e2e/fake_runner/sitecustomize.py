"""Puts a fake device under the real engine, in processes that have this folder on PYTHONPATH.

So scheduling, isolation and everything else of the engine is real, starts without torch, and runs
as fast and breaks as badly as a test wants: FAKE_RUNNER names a JSON file with keys of ``Device``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL_FILE = "FAKE_RUNNER"


@dataclass(frozen=True)
class Device:
    """What the device does from now on; lengths are in tokens, 0 is none.

    seconds           of every batch, the one that runs too
    seconds_a_token   and of each of its tokens
    crash_length      a batch with such a sequence aborts the process
    load_error        loading the model fails with this message
    load_seconds      loading the model takes so long
    shift             added to every logit, so that one can tell models apart; read at the start
    """

    seconds: float = 0.0
    seconds_a_token: float = 0.0
    crash_length: int = 0
    load_error: str = ""
    load_seconds: float = 0.0
    shift: float = 0.0


def device() -> Device:
    path = os.environ.get(CONTROL_FILE)
    if not path or not Path(path).exists():
        return Device()
    return Device(**json.loads(Path(path).read_text()))


class FakeLaunched:
    """A batch that takes its time."""

    def __init__(self, batch: Any, shift: float, width: int) -> None:
        self._batch = batch
        self._shift = shift
        self._width = width
        self._begun = time.monotonic()

    def _seconds(self) -> float:
        wanted = device()
        return wanted.seconds + wanted.seconds_a_token * self._batch.num_tokens

    def done(self) -> bool:
        return time.monotonic() - self._begun >= self._seconds()

    def output(self) -> Any:
        import numpy as np

        from packhorse.request import Output

        while not self.done():
            time.sleep(0.001)
        took = time.monotonic() - self._begun
        count = len(self._batch)
        logits = np.full((count, self._width), self._shift, np.float32)
        logits[:, 0] += self._batch.lengths
        logits[:, 1] += self._batch.input_ids[self._batch.cu_seqlens[1:] - 2]
        return Output(logits, np.zeros(count, np.uint8), took)


class FakeRunner:
    """The interface of ``packhorse.engine.model_runner.ModelRunner``.

    The logits of a sequence are its number of tokens and its last id but one, plus ``shift``.
    """

    max_sequences = 1024
    max_in_flight = 1
    completion_fd = None
    has_wider = False
    padding_tokens = 0

    def __init__(self, width: int, max_tokens: int) -> None:
        self.width = width
        self.max_tokens = max_tokens
        self._shift = device().shift

    def launch(self, batch: Any, *, wider: bool = False) -> FakeLaunched:
        crash = device().crash_length
        if crash and (batch.lengths == crash).any():
            os.abort()
        return FakeLaunched(batch, self._shift, self.width)

    def wider_is_ready(self) -> bool:
        return False

    def memory(self) -> dict[str, int]:
        return {}

    def warm_up_batches(self) -> Iterator[Any]:
        import numpy as np

        from packhorse.request import Sequences

        for count in (1, 8):
            ids = np.full(16 * count, 5, np.int32)
            bounds = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
            yield Sequences(ids, bounds, np.zeros(count, np.bool_))

    def close(self) -> None:
        pass


def load_runner(config: Any, checkpoint: Any, *, notify: bool) -> tuple[FakeRunner, dict[str, Any]]:
    from packhorse.errors import CheckpointError

    time.sleep(device().load_seconds)
    if message := device().load_error:
        raise CheckpointError(message)
    info = {"model_id": checkpoint.model_id, "device": "cpu", "dtype": "float32"}
    return FakeRunner(len(checkpoint.labels), config.engine.max_batch_tokens), info


if os.environ.get(CONTROL_FILE):
    module = types.ModuleType("packhorse.engine.load")
    module.load_runner = load_runner  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
