"""Puts a fake in the place of the engine, in processes that have this folder on PYTHONPATH.

So the processes of the service are real, start without torch, and break on
demand: FAKE_ENGINE names a JSON file with any of the keys of ``Control``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL_FILE = "FAKE_ENGINE"


@dataclass(frozen=True)
class Control:
    """What goes wrong. Lengths are in tokens, special tokens included; 0 is none.

    seconds           how long a batch takes
    nan_length        sequences of this length give NaN
    fail_length       batches with such a sequence raise
    kill_length       such a sequence ends the process at once
    hang              no batch ever ends
    broken            every batch raises, also those of warm-up
    load_error        loading the model fails with this message
    load_seconds      loading the model takes so long
    """

    seconds: float = 0.0
    nan_length: int = 0
    fail_length: int = 0
    kill_length: int = 0
    hang: bool = False
    broken: bool = False
    load_error: str = ""
    load_seconds: float = 0.0


def control() -> Control:
    path = os.environ.get(CONTROL_FILE)
    if not path or not Path(path).exists():
        return Control()
    return Control(**json.loads(Path(path).read_text()))


class FakeEngine:
    """The interface of ``packhorse.engine.engine.Engine``; one batch at a time.

    The logits of a sequence are its number of tokens and its last id but one, so a test can tell
    whether an answer is the right one.
    """

    completion_fd = None
    is_loading = False
    padding_tokens = 0

    def __init__(self, config: Any, checkpoint: Any) -> None:
        self._num_labels = len(checkpoint.labels)
        self._waiting: deque[Any] = deque()
        self._running: Any = None
        self._started = 0.0
        self._launched: list[tuple[int, int]] = []
        self.info = {"model_id": checkpoint.model_id, "device": "cpu", "dtype": "float32"}
        self.info |= {"max_batch_tokens": 4096, "max_batch_requests": 1024}

    @classmethod
    def load(cls, config: Any, checkpoint: Any) -> FakeEngine:
        from packhorse.errors import CheckpointError

        begun = time.monotonic()
        while time.monotonic() - begun < control().load_seconds:
            time.sleep(0.02)
        if message := control().load_error:
            raise CheckpointError(message)
        return cls(config, checkpoint)

    @property
    def in_flight(self) -> bool:
        return self._running is not None

    def queued(self) -> tuple[int, int]:
        waiting = [arrivals.sequences for arrivals in self._waiting]
        return sum(map(len, waiting)), sum(s.num_tokens for s in waiting)

    def guard(self, journal: Any, quarantine: Any) -> None:
        pass

    def outlook(self) -> tuple[int, float]:
        return len(self._waiting), 0.0

    def memory(self) -> dict[str, int]:
        return {"device_memory_used": 3, "device_memory_total": 7}

    def add(self, arrivals: Any) -> None:
        self._waiting.append(arrivals)

    def cancel(self, tickets: Any) -> None:
        gone = set(tickets.tolist())
        self._waiting = deque(a for a in self._waiting if not gone.issuperset(a.tickets.tolist()))

    def warm_up(self) -> None:
        if control().broken:
            raise RuntimeError("the fake device is broken")

    def close(self) -> None:
        pass

    def step(self) -> list[Any]:
        wanted = control()
        done = []
        took = time.monotonic() - self._started
        if self._running is not None and not wanted.hang and took >= wanted.seconds:
            done.append(self._answer(self._running, wanted))
            self._running = None
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._started = time.monotonic()
            sequences = self._running.sequences
            self._launched.append((len(sequences), sequences.num_tokens))
            if not wanted.seconds and not wanted.hang:
                done += self.step()
        return done

    def take_launched(self) -> list[tuple[int, int]]:
        launched, self._launched = self._launched, []
        return launched

    def _answer(self, arrivals: Any, wanted: Control) -> Any:
        import numpy as np

        from packhorse.errors import InternalError, NonFiniteOutputError
        from packhorse.request import Completions

        sequences = arrivals.sequences
        lengths = sequences.lengths
        if wanted.kill_length and (lengths == wanted.kill_length).any():
            os._exit(9)
        logits = np.zeros((len(sequences), self._num_labels), np.float32)
        logits[:, 0] = lengths
        logits[:, 1] = sequences.input_ids[sequences.cu_seqlens[1:] - 2]
        codes = np.zeros(len(sequences), np.uint8)
        codes[lengths == wanted.nan_length] = NonFiniteOutputError.code
        codes[lengths == wanted.fail_length] = InternalError.code
        if wanted.broken:
            codes[:] = InternalError.code
        logits[codes != 0] = np.nan
        return Completions(
            tickets=arrivals.tickets,
            offsets=np.zeros(len(arrivals.tickets), np.int32),
            counts=arrivals.counts,
            codes=codes,
            values=logits,
            queue_wait=np.full(len(arrivals.tickets), self._started - arrivals.arrived, np.float32),
            inference=time.monotonic() - self._started,
        )


if os.environ.get(CONTROL_FILE):
    module = types.ModuleType("packhorse.engine.engine")
    module.Engine = FakeEngine  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
