"""What an engine had on its device is known after its death; what killed it is kept apart."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from packhorse.channel.journal import Journal, fingerprints, on_device
from packhorse.engine.cost_model import CostModel
from packhorse.engine.engine import Engine
from packhorse.engine.quarantine import Quarantine, fingerprint_of
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.errors import QuarantinedError
from packhorse.request import Arrivals, Output, Sequences, bounds_of
from packhorse.suspects import Suspects


def sequences_of(*texts: str, segments: tuple[int, ...] = ()) -> Sequences:
    """Each character is a token."""
    return Sequences(
        np.frombuffer("".join(texts).encode(), np.uint8).astype(np.int32),
        bounds_of(np.array([len(text) for text in texts], np.int32)),
        np.zeros(len(texts), np.bool_),
        np.array(segments, np.int32) if segments else None,
    )


def marks_of(batch: Sequences) -> list[tuple[int, int]]:
    return fingerprints(batch.input_ids, batch.cu_seqlens, batch.segment_starts)


@pytest.fixture
def fd() -> Iterator[int]:
    made = Journal.create()
    yield made
    os.close(made)


def test_what_was_not_struck_out_is_found_once(fd: int) -> None:
    journal = Journal(fd)
    first, second = sequences_of("a", "bcd"), sequences_of("ef", segments=(1,))
    page = journal.enter(first)
    journal.enter(second)
    assert sorted(on_device(fd)) == sorted(marks_of(first) + marks_of(second))
    assert on_device(fd) == []
    journal = Journal(fd)
    page = journal.enter(first)
    journal.strike(page)
    assert on_device(fd) == []


def test_a_new_journal_on_the_same_memory_is_empty(fd: int) -> None:
    Journal(fd).enter(sequences_of("a"))
    Journal(fd)
    assert on_device(fd) == []


def test_a_batch_may_be_larger_than_a_page_was(fd: int) -> None:
    journal = Journal(fd)
    batch = sequences_of(*["abcdefgh" * 64] * 1000)  # 2 MB of ids
    journal.enter(batch)
    found = on_device(fd)
    assert len(found) == 1000
    assert set(found) == {marks_of(batch)[0]}


def test_pages_are_used_again(fd: int) -> None:
    journal = Journal(fd)
    for _ in range(100):
        journal.strike(journal.enter(sequences_of("a")))
    assert on_device(fd) == []


def test_fingerprints_tell_ids_lengths_and_segments_apart() -> None:
    marks = {
        *marks_of(sequences_of("ab", "ba", "abc")),
        *marks_of(sequences_of("ab", segments=(1,))),
    }
    assert len(marks) == 4
    assert marks_of(sequences_of("ab", segments=(2,))) == marks_of(sequences_of("ab"))


def test_what_crashes_an_engine_twice_is_refused_and_its_company_is_not() -> None:
    killer, innocent = marks_of(sequences_of("killer", "innocent"))
    suspects = Suspects()
    suspects.crashed_with([killer, innocent])
    assert set(suspects.suspects) == {killer, innocent}
    suspects.clear(innocent)
    suspects.crashed_with([killer])
    assert suspects.refused == [killer]
    assert suspects.suspects == []
    suspects.crashed_with([innocent])
    assert suspects.refused == [killer]  # the first time that it was alone


class Launched:
    def __init__(self, batch: Sequences) -> None:
        self.batch = batch

    def done(self) -> bool:
        return True

    def output(self) -> Output:
        count = len(self.batch)
        values = self.batch.lengths.astype(np.float32)[:, None]
        return Output(values, np.zeros(count, np.uint8), 0.001)


class Runner:
    """Two batches in flight; keeps what was launched while how many were."""

    width = 1
    max_tokens = max_sequences = 100
    max_in_flight = 2
    completion_fd = None
    has_wider = False

    def __init__(self) -> None:
        self.launched: list[list[int]] = []
        self.engine: Engine | None = None
        self.in_flight: list[int] = []

    def launch(self, batch: Sequences, *, wider: bool = False) -> Launched:
        assert self.engine is not None
        self.launched.append(batch.lengths.tolist())
        self.in_flight.append(len(self.engine._running))
        return Launched(batch)


def engine_with(quarantine: Quarantine, fd: int) -> tuple[Engine, Runner]:
    runner, cost = Runner(), CostModel()
    engine = Engine(runner, Scheduler(Limits(100, 100, 1.0), cost), cost)  # type: ignore[arg-type]
    engine.guard(Journal(fd), quarantine)
    runner.engine = engine
    return engine, runner


def arrivals_of(batch: Sequences) -> Arrivals:
    count = len(batch)
    return Arrivals(
        np.arange(count, dtype=np.uint64),
        np.ones(count, np.int32),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int8),
        np.full(count, np.inf),
        batch,
        0.0,
    )


def test_suspects_run_alone_and_are_cleared_and_what_is_refused_does_not_run(fd: int) -> None:
    batch = sequences_of("x", "killer", "yy", "suspect", "zzz", "zzzz")
    marks = marks_of(batch)
    cleared: deque[tuple[int, int]] = deque()
    quarantine = Quarantine([marks[3]], [marks[1]], cleared.append)
    engine, runner = engine_with(quarantine, fd)
    engine.add(arrivals_of(batch))
    codes: dict[int, int] = {}
    for _ in range(6):
        for done in engine.step():
            codes |= dict(zip(done.tickets.tolist(), done.codes.tolist(), strict=True))
    assert codes == {0: 0, 1: QuarantinedError.code, 2: 0, 3: 0, 4: 0, 5: 0}
    assert runner.launched == [[1, 2, 3, 4], [7]]
    assert runner.in_flight[1] == 0
    assert list(cleared) == [marks[3]]
    assert quarantine.sort(batch) == ([1], [])
    assert on_device(fd) == []


def test_an_equal_length_does_not_make_a_suspect() -> None:
    quarantine = Quarantine([fingerprint_of(sequences_of("killer"))], [], lambda _: None)
    assert quarantine.sort(sequences_of("kitten", "killer")) == ([], [1])
