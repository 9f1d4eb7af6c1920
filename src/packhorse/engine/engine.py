"""The engine: requests in, answers out, one batch after the other.

    add       arrivals wait in the scheduler
    step      what is done is collected, what fits is launched; it never blocks
    answers   leave as Completions, in parts as their batches finish

One thread calls everything. What waits between steps (a socket, a queue) is
the caller's business: the engine process and the library each have their own.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.channel.journal import Journal
from packhorse.checkpoint import Checkpoint
from packhorse.config import AUTO, Config, EngineOptions
from packhorse.engine.batch import Batch
from packhorse.engine.cost_model import CostModel
from packhorse.engine.load import load_runner
from packhorse.engine.model_runner import Launched, ModelRunner, is_out_of_memory
from packhorse.engine.quarantine import Quarantine
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.errors import InternalError, NonFiniteOutputError, QuarantinedError
from packhorse.request import Arrivals, Completions, Output, is_token_level

logger = logging.getLogger(__name__)

CPU_SECONDS = 0.05, 0.8
"""Longest predicted time of a batch on a CPU, and what it may grow to."""

FEWEST_TOKENS = 256
"""To this an engine out of memory lowers the size of its batches, and no further."""

MANY = 32
"""A batch larger than this whose every row is bad is halved, not run row by row."""

MOST_SLOWNESS = 4.0
"""A batch that took longer than that many times its prediction is taken for a hiccup."""

PENDING = 255
"""In an Output: this row is computed again and is not answered yet. No error has this code."""


@dataclass(slots=True)
class _Work:
    """A batch to launch.

    wider  in a type with a wider range
    alone  with nothing else on the device: it is one sequence that may crash the engine
    """

    batch: Batch
    wider: bool = False
    alone: bool = False


@dataclass(slots=True)
class _Running:
    work: _Work
    launched: Launched
    started: float
    page: int | None  # of the journal


_Finished = tuple[_Work, float, Output | None]
"""A batch, when it was started, and its output; None when it runs again in other batches."""


class Engine:
    """Scheduler and runner of one model on one device."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, cost: CostModel) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._cost = cost
        self._running: deque[_Running] = deque()
        self._suspects_turn = False
        self._slowness = 1.0
        self._last_done = 0.0
        self._launched: list[tuple[int, int]] = []
        self._suspects: deque[_Work] = deque()  # to be run apart: mostly what failed in company
        self._overflowed: list[_Work] = []  # waits for the model in a wider type to be loaded
        self._journal: Journal | None = None
        self._quarantine: Quarantine | None = None
        self.info: dict[str, Any] = {}

    def guard(self, journal: Journal, quarantine: Quarantine) -> None:
        """Write down what is on the device, and keep apart what an engine died with."""
        self._journal = journal
        self._quarantine = quarantine

    @classmethod
    def load(cls, config: Config, checkpoint: Checkpoint, *, notify: bool = False) -> Engine:
        """The engine for a resolved config; with ``notify`` it has a completion_fd on any device.

        Raises CheckpointError or DeviceError.
        """
        runner, info = load_runner(config, checkpoint, notify=notify)
        cost = CostModel()
        limits = Limits(runner.max_tokens, runner.max_sequences, *_seconds(config.engine))
        scheduler = Scheduler(limits, cost, checkpoint.architecture.first_position)
        engine = cls(runner, scheduler, cost)
        engine.info = info | {
            "max_batch_time": limits.max_seconds * 1000,
            "most_batch_time": max(limits.max_seconds, limits.most_seconds) * 1000,
        }
        return engine

    @property
    def in_flight(self) -> bool:
        """Whether a batch is on the device."""
        return bool(self._running)

    @property
    def is_ahead(self) -> bool:
        """Whether the device has a batch to go on with when the one that runs is done."""
        return len(self._running) > 1

    @property
    def is_loading(self) -> bool:
        """Whether something waits for a model that is being loaded: call ``step`` now and then."""
        return bool(self._overflowed)

    @property
    def completion_fd(self) -> int | None:
        """Readable when a batch is done; None: call ``step`` while ``in_flight``."""
        return self._runner.completion_fd

    def queued(self) -> tuple[int, int]:
        """Sequences and tokens that wait."""
        return self._scheduler.num_sequences, self._scheduler.num_tokens

    def outlook(self) -> tuple[int, float]:
        """Clients that wait, and tokens a second that are predicted to be worked off."""
        return self._scheduler.num_clients, self._scheduler.rate / self._slowness

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
        finished: list[_Finished] = []
        while self._running and self._running[0].launched.done():
            run = self._running.popleft()
            finished.append((run.work, run.started, self._collect(run)))
        if self._overflowed:
            self._resume_overflowed(finished)
        self._launch_waiting(finished)
        return [
            completions
            for work, started, output in finished
            if output is not None
            and (completions := _completions(work.batch, started, output)) is not None
        ]

    def take_launched(self) -> list[tuple[int, int]]:
        """(sequences, tokens) of every batch launched since the last call."""
        launched, self._launched = self._launched, []
        return launched

    @property
    def padding_tokens(self) -> int:
        """Tokens that were added so far to fill batches up."""
        return self._runner.padding_tokens

    def memory(self) -> dict[str, int]:
        """Device memory in bytes, by name."""
        return self._runner.memory()

    def close(self) -> None:
        """Give the device back; what is in flight is lost."""
        self._runner.close()

    def _resume_overflowed(self, finished: list[_Finished]) -> None:
        """Queue what waits for the wider model once that is there; without it, it has failed."""
        try:
            if not self._runner.wider_is_ready():
                return
        except Exception:
            logger.exception("the model could not be loaded in a wider type")
            now, width = time.monotonic(), self._runner.width
            for work in self._overflowed:
                output = _failed_output(work.batch, width, NonFiniteOutputError.code)
                finished.append((work, now, output))
        else:
            self._suspects.extend(self._overflowed)
        self._overflowed.clear()

    def _launch_waiting(self, finished: list[_Finished]) -> None:
        """Fill the device; a batch that cannot be launched is split, or ends in ``finished``."""
        while len(self._running) < self._runner.max_in_flight and not self._must_wait():
            work = self._next_work()
            if work is None:
                return
            if self._quarantine is not None and not work.alone:
                work = self._screened(self._quarantine, work, finished)
            if work is not None:
                self._launch(work, finished)

    def _launch(self, work: _Work, finished: list[_Finished]) -> None:
        sequences, started = work.batch.sequences, time.monotonic()
        page = None if self._journal is None else self._journal.enter(sequences)
        try:
            launched = self._runner.launch(sequences, wider=work.wider)
        except Exception as error:
            finished.append((work, started, self._failed(work, error)))
            self._strike(page)
            return
        self._launched.append((len(sequences), sequences.num_tokens))
        self._running.append(_Running(work, launched, started, page))

    def _strike(self, page: int | None) -> None:
        if self._journal is not None and page is not None:
            self._journal.strike(page)

    def _must_wait(self) -> bool:
        """Whether what runs, or comes next, must have the device to itself."""
        if not self._running:
            return False
        return self._running[0].work.alone or bool(self._suspects and self._suspects[0].alone)

    def _screened(
        self, quarantine: Quarantine, work: _Work, finished: list[_Finished]
    ) -> _Work | None:
        """What of a batch runs now: not what is refused, nor what must run alone."""
        batch = work.batch
        refused, suspected = quarantine.sort(batch.sequences)
        if not refused and not suspected:
            return work
        now = time.monotonic()
        for row in refused:
            alone = batch.alone(row)
            output = _failed_output(alone, self._runner.width, QuarantinedError.code)
            finished.append((_Work(alone), now, output))
        self._suspects.extend(_Work(batch.alone(row), work.wider, True) for row in suspected)
        apart = np.array(refused + suspected, np.intp)
        return _Work(batch.rest(apart), work.wider) if len(apart) < len(batch.sequences) else None

    def _next_work(self) -> _Work | None:
        """Suspects and what waits take turns, so that one bad list does not hold up the others."""
        self._suspects_turn = not self._suspects_turn
        if self._suspects and self._suspects_turn:
            return self._suspects.popleft()
        batch = self._scheduler.next_batch()
        if batch is not None:
            first, *others = batch.alike()
            self._suspects.extendleft(_Work(other) for other in reversed(others))
            return _Work(first)
        return self._suspects.popleft() if self._suspects else None

    def _collect(self, run: _Running) -> Output | None:
        """The output; None when the batch failed and its halves were queued instead."""
        try:
            output = run.launched.output()
        except Exception as error:
            return self._failed(run.work, error)
        finally:
            self._strike(run.page)
            if run.work.alone and self._quarantine is not None:
                self._quarantine.clear(run.work.batch.sequences)
        self._note_slowness(run, time.monotonic())
        if not run.work.wider:
            self._cost.observe(run.work.batch.sequences.num_tokens, output.seconds)
        if np.count_nonzero(output.codes):
            self._isolate_non_finite(run.work, output)
        return output

    def _note_slowness(self, run: _Running, now: float) -> None:
        """Learn how much longer a batch takes from launch to answer than on the device.

        On a busy machine the loop itself waits for a core, which the cost model does not see.
        """
        predicted = self._cost.predict(run.work.batch.sequences.num_tokens)
        took, self._last_done = now - max(run.started, self._last_done), now
        if predicted > 0:
            ratio = min(max(took / predicted, 1.0), MOST_SLOWNESS)
            self._slowness += 0.1 * (ratio - self._slowness)

    def _failed(self, work: _Work, error: Exception) -> Output | None:
        """What a batch that raised ends in: its halves, or the error of its only sequence."""
        # The traceback goes to the log, never the texts: a batch holds ids only.
        logger.exception("a batch of %d sequences failed", len(work.batch.sequences))
        if len(work.batch.sequences) > 1:
            if is_out_of_memory(error):
                self._lower_budget(max(FEWEST_TOKENS, work.batch.sequences.num_tokens // 2))
            self._suspects.extend(_Work(half, work.wider) for half in work.batch.halves())
            return None
        return _failed_output(work.batch, self._runner.width)

    def _lower_budget(self, max_tokens: int) -> None:
        """What did not fit once would fail, and be halved, again and again."""
        if max_tokens < self.info.get("max_batch_tokens", math.inf):
            logger.warning("out of memory: batches of at most %d tokens from now on", max_tokens)
            self.info |= {"max_batch_tokens": max_tokens}
            self._scheduler.bound(max_tokens)

    def _isolate_non_finite(self, work: _Work, output: Output) -> None:
        """Queue sequences whose output is not finite to run apart from their neighbours.

        An overflowing sequence can poison those that share a tile with it, so
        each runs alone first, and in a wider type only if it fails alone. A
        large batch that is bad from end to end is halved instead. In ``output``
        the code of what runs again becomes PENDING: no answer yet.
        """
        bad = np.flatnonzero(output.codes == NonFiniteOutputError.code)
        if not len(bad) or work.wider:
            return
        alone = len(output.codes) == 1
        if alone and not self._runner.has_wider:
            return
        if alone:
            self._overflowed.append(_Work(work.batch, wider=True))
        elif len(bad) == len(output.codes) > MANY:
            self._suspects.extend(_Work(half) for half in work.batch.halves())
        else:
            self._suspects.extend(_Work(work.batch.alone(row)) for row in bad.tolist())
        output.codes[bad] = PENDING


def _seconds(options: EngineOptions) -> tuple[float, float]:
    """Longest time of a batch, and what it may grow to: ``max_seconds`` and ``most_seconds``."""
    if options.max_batch_time == AUTO:
        return CPU_SECONDS
    return float(options.max_batch_time) / 1000, 0.0


def _failed_output(batch: Batch, width: int, code: int = InternalError.code) -> Output:
    """The output of one sequence that has none: its forward pass raised, or it was refused.

    One that asked for a row for each token has no row: those have another width than the head's.
    """
    if is_token_level(batch.sequences):
        no_rows = np.zeros((0, width), np.float32)
        return Output(no_rows, np.array([code], np.uint8), 0.0, np.zeros(1, np.int32))
    return Output(np.zeros((1, width), np.float32), np.array([code], np.uint8), 0.0)


def _completions(batch: Batch, started: float, output: Output) -> Completions | None:
    """The answers of a batch; None when every row of it runs again."""
    tickets, offsets, counts, arrived = batch.tickets, batch.offsets, batch.counts, batch.arrived
    values, codes, row_counts = output.values, output.codes, output.row_counts
    if np.count_nonzero(codes) and len(pending := np.flatnonzero(codes == PENDING)):
        tickets, offsets, counts, arrived = batch.without(pending)
        kept = codes != PENDING
        values = values[kept if row_counts is None else np.repeat(kept, row_counts)]
        codes, row_counts = codes[kept], None if row_counts is None else row_counts[kept]
    if not len(codes):
        return None
    return Completions(
        tickets=tickets,
        offsets=offsets,
        counts=counts,
        codes=codes,
        values=values,
        queue_wait=(started - arrived).astype(np.float32),
        inference=time.monotonic() - started,
        row_counts=row_counts,
    )
