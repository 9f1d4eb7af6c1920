"""The engine: requests in, answers out, one batch after the other.

    add       arrivals wait in the scheduler
    step      what is done is collected, what fits is launched; it never blocks
    answers   leave as Completions, in parts as their batches finish

One thread calls everything. What waits between steps (a socket, a queue) is
the caller's business: the engine process and the library each have their own.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config
from packhorse.engine.batch import Batch
from packhorse.engine.cost_model import CostModel
from packhorse.engine.load import load_runner
from packhorse.engine.model_runner import Launched, ModelRunner
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.errors import InternalError, NonFiniteOutputError
from packhorse.request import Arrivals, Completions, Output

logger = logging.getLogger(__name__)

PENDING = 255
"""In an Output: this row is computed again and is not answered yet. No error has this code."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A batch to launch; ``wider`` asks for a type with a wider range."""

    batch: Batch
    wider: bool = False


@dataclass(frozen=True, slots=True)
class _Running:
    work: _Work
    launched: Launched
    started: float


class Engine:
    """Scheduler and runner of one model on one device."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, cost: CostModel) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._cost = cost
        self._running: deque[_Running] = deque()
        self._suspects: deque[_Work] = deque()  # what failed in company, to be run apart
        self.info: dict[str, Any] = {}

    @classmethod
    def load(cls, config: Config, checkpoint: Checkpoint, *, notify: bool = False) -> Engine:
        """The engine for a resolved config; with ``notify`` it has a completion_fd on any device.

        Raises CheckpointError or DeviceError.
        """
        runner, info = load_runner(config, checkpoint, notify=notify)
        cost = CostModel()
        limits = Limits(
            runner.max_tokens, runner.max_sequences, float(config.engine.max_batch_time) / 1000
        )
        scheduler = Scheduler(limits, cost, checkpoint.architecture.first_position)
        engine = cls(runner, scheduler, cost)
        engine.info = info
        return engine

    @property
    def in_flight(self) -> bool:
        """Whether a batch is on the device."""
        return bool(self._running)

    @property
    def completion_fd(self) -> int | None:
        """Readable when a batch is done; None: call ``step`` while ``in_flight``."""
        return self._runner.completion_fd

    def queued(self) -> tuple[int, int]:
        """Sequences and tokens that wait."""
        return self._scheduler.num_sequences, self._scheduler.num_tokens

    def add(self, arrivals: Arrivals) -> None:
        """Queue requests."""
        self._scheduler.add(arrivals)

    def warm_up(self) -> None:
        """Run batches of several sizes, so that the first request meets warm caches.

        The scheduler's cost model learns from them.
        """
        for batch in self._runner.warm_up_batches():
            launched = self._runner.launch(batch)
            self._cost.observe(batch.num_tokens, launched.output().seconds)
        self.info |= self.memory()

    def cancel(self, tickets: NDArray[np.uint64]) -> None:
        """Drop what still waits of these requests; no answer is given for it."""
        self._scheduler.cancel(tickets)

    def step(self) -> list[Completions]:
        """Collect what is done, launch what fits, return the answers."""
        finished = []
        while self._running and self._running[0].launched.done():
            run = self._running.popleft()
            finished.append((run, self._collect(run)))
        self._launch_waiting()
        return [
            completions
            for run, output in finished
            if output is not None and (completions := _completions(run, output)) is not None
        ]

    def memory(self) -> dict[str, int]:
        """Device memory in bytes, by name."""
        return self._runner.memory()

    def close(self) -> None:
        """Give the device back; what is in flight is lost."""
        self._runner.close()

    def _launch_waiting(self) -> None:
        while len(self._running) < self._runner.max_in_flight:
            work = self._suspects.popleft() if self._suspects else self._next_work()
            if work is None:
                return
            launched = self._runner.launch(work.batch.sequences, wider=work.wider)
            self._running.append(_Running(work, launched, time.monotonic()))

    def _next_work(self) -> _Work | None:
        batch = self._scheduler.next_batch()
        return None if batch is None else _Work(batch)

    def _collect(self, run: _Running) -> Output | None:
        """The output; None when the batch failed and its halves were queued instead."""
        batch = run.work.batch
        try:
            output = run.launched.output()
        except Exception:
            # The traceback goes to the log, never the texts: a batch holds ids only.
            logger.exception("a batch of %d sequences failed", len(batch.sequences))
            if len(batch.sequences) > 1:
                self._suspects.extend(_Work(half, run.work.wider) for half in batch.halves())
                return None
            return _failed_output(self._runner.num_labels)
        if not run.work.wider:
            self._cost.observe(batch.sequences.num_tokens, output.seconds)
            self._isolate_non_finite(batch, output)
        return output

    def _isolate_non_finite(self, batch: Batch, output: Output) -> None:
        """Queue sequences whose output is not finite to run apart from their neighbours.

        An overflowing sequence can poison those that share a tile with it, so
        each runs alone first, and in a wider type only if it fails alone. In
        ``output`` their code becomes PENDING: no answer yet.
        """
        bad = np.flatnonzero(output.codes == NonFiniteOutputError.code)
        if not len(bad):
            return
        alone = len(batch.sequences) == 1
        if alone and not self._runner.has_wider:
            return
        self._suspects.extend(_Work(batch.alone(row), wider=alone) for row in bad.tolist())
        output.codes[bad] = PENDING


def _failed_output(num_labels: int) -> Output:
    """The output of one sequence whose forward pass raised."""
    return Output(
        np.zeros((1, num_labels), np.float32), np.array([InternalError.code], np.uint8), 0.0
    )


def _completions(run: _Running, output: Output) -> Completions | None:
    """The answers of a batch; None when every row of it runs again."""
    batch = run.work.batch
    tickets, offsets, counts, arrived = batch.tickets, batch.offsets, batch.counts, batch.arrived
    logits, codes = output.logits, output.codes
    pending = np.flatnonzero(codes == PENDING)
    if len(pending):
        tickets, offsets, counts, arrived = batch.without(pending)
        logits, codes = np.delete(logits, pending, axis=0), np.delete(codes, pending)
    if not len(codes):
        return None
    return Completions(
        tickets=tickets,
        offsets=offsets,
        counts=counts,
        codes=codes,
        logits=logits,
        queue_wait=(run.started - arrived).astype(np.float32),
        inference=time.monotonic() - run.started,
    )
