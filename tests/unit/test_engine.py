"""The engine's policy, with a runner that computes nothing: logits are each sequence's first id."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from packhorse.channel.codec import decode_completions, encode_completions
from packhorse.engine.cost_model import CostModel
from packhorse.engine.engine import Engine
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.engine.wider_model import WiderModel
from packhorse.errors import InternalError, NonFiniteOutputError
from packhorse.request import (
    Completions,
    Output,
    Part,
    Sequences,
    answer_of,
    is_token_level,
    parts_of,
)
from tests.unit.test_scheduler import arrivals_of

Forward = Callable[[Sequences, bool], Output]


class ScriptedBatch:
    def __init__(self, run: Callable[[], Output]) -> None:
        self._run = run

    def done(self) -> bool:
        return True

    def output(self) -> Output:
        return self._run()


class ScriptedRunner:
    width = 1
    max_tokens = 1000
    max_sequences = 100
    max_in_flight = 1
    completion_fd = None
    padding_tokens = 0

    def __init__(self, forward: Forward, has_wider: bool = False) -> None:
        self.forward = forward
        self.has_wider = has_wider
        self.launched: list[tuple[int, bool]] = []

    def launch(self, batch: Sequences, *, wider: bool = False) -> ScriptedBatch:
        self.launched.append((len(batch), wider))
        return ScriptedBatch(lambda: self.forward(batch, wider))

    def wider_is_ready(self) -> bool:
        return True

    def memory(self) -> dict[str, int]:
        return {}

    def warm_up_batches(self) -> Iterator[Sequences]:
        return iter(())

    def close(self) -> None:
        pass


def first_ids(batch: Sequences) -> np.ndarray:
    return batch.input_ids[batch.cu_seqlens[:-1]].astype(np.float32)[:, None]


def healthy(batch: Sequences, wider: bool) -> Output:
    return Output(first_ids(batch), np.zeros(len(batch), np.uint8), 0.001)


def engine_with(runner: ScriptedRunner) -> Engine:
    cost = CostModel()
    return Engine(runner, Scheduler(Limits(1000, 100, 10.0), cost), cost)


def answers(engine: Engine) -> dict[tuple[int, int], tuple[float, int]]:
    """(ticket, index) to (logit, code), until nothing is left to do."""
    found: dict[tuple[int, int], tuple[float, int]] = {}
    for _ in range(400):
        for completions in engine.step():
            found |= rows_of(completions)
        if not engine.in_flight:
            return found
    raise AssertionError("the engine does not come to rest")


def rows_of_all(answered: list[Completions]) -> dict[tuple[int, int], tuple[float, int]]:
    return {key: row for completions in answered for key, row in rows_of(completions).items()}


def rows_of(completions: Completions) -> dict[tuple[int, int], tuple[float, int]]:
    rows, row = {}, 0
    for ticket, offset, count in zip(
        completions.tickets.tolist(),
        completions.offsets.tolist(),
        completions.counts.tolist(),
        strict=True,
    ):
        for index in range(offset, offset + count):
            rows[ticket, index] = (float(completions.values[row, 0]), int(completions.codes[row]))
            row += 1
    assert row == len(completions.codes) == len(completions.values)
    return rows


def test_what_is_read_token_by_token_runs_apart_and_comes_back_to_its_request() -> None:
    """A batch has one row a sequence or one row a token; requests of both kinds wait together."""
    shapes: list[bool] = []

    def forward(batch: Sequences, wider: bool) -> Output:
        whole = is_token_level(batch)
        shapes.append(whole)
        codes = np.zeros(len(batch), np.uint8)
        if not whole:
            return Output(first_ids(batch), codes, 0.001)
        values = batch.input_ids.astype(np.float32)[:, None].repeat(3, axis=1)
        return Output(values, codes, 0.001, batch.lengths)

    engine = engine_with(ScriptedRunner(forward))
    engine.add(arrivals_of({7: [2, 3], 9: [4, 2], 11: [5]}))
    whole = arrivals_of({8: [3, 4]})
    flags = np.array([True, True])
    engine.add(replace(whole, sequences=replace(whole.sequences, token_level=flags)))
    parts: dict[int, list[Part]] = {}
    while len(parts) < 4 or engine.in_flight:
        for completions in engine.step():
            for ticket, part in zip(
                completions.tickets.tolist(), parts_of(completions), strict=True
            ):
                parts.setdefault(ticket, []).append(part)
    assert sorted(parts) == [7, 8, 9, 11]
    answers = {ticket: answer_of(own) for ticket, own in parts.items()}
    assert answers[8].values.shape == (7, 3)
    assert answers[8].row_counts is not None
    assert answers[8].row_counts.tolist() == [3, 4]
    assert [answers[ticket].values.shape for ticket in (7, 9, 11)] == [(2, 1), (2, 1), (1, 1)]
    assert set(shapes) == {False, True}


def test_a_sequence_without_rows_fails_alone_among_those_that_are_read_token_by_token() -> None:
    """Hidden states have another width than the head's output, and become one answer."""

    def forward(batch: Sequences, wider: bool) -> Output:
        if (batch.lengths == 4).any():
            raise RuntimeError
        values = batch.input_ids.astype(np.float32)[:, None].repeat(3, axis=1)
        return Output(values, np.zeros(len(batch), np.uint8), 0.001, batch.lengths)

    engine = engine_with(ScriptedRunner(forward))
    arrivals = arrivals_of({8: [3, 4, 2]})
    flags = np.ones(3, np.bool_)
    engine.add(replace(arrivals, sequences=replace(arrivals.sequences, token_level=flags)))
    parts: list[Part] = []
    while engine.in_flight or sum(len(part.codes) for part in parts) < 3:
        for completions in engine.step():
            parts += parts_of(decode_completions(encode_completions(completions)))
    answer = answer_of(parts)
    assert answer.codes.tolist() == [0, InternalError.code, 0]
    assert answer.values.shape == (5, 3)
    assert answer.row_counts is not None
    assert answer.row_counts.tolist() == [3, 0, 2]


def test_answers_come_back_to_their_requests() -> None:
    engine = engine_with(ScriptedRunner(healthy))
    engine.add(arrivals_of({7: [2, 3], 9: [4]}))
    assert answers(engine) == {(7, 0): (0, 0), (7, 1): (2, 0), (9, 0): (5, 0)}


@pytest.mark.case(81)
def test_a_sequence_that_breaks_its_batch_fails_alone() -> None:
    def forward(batch: Sequences, wider: bool) -> Output:
        if 5 in batch.input_ids:
            raise RuntimeError("planted")
        return healthy(batch, wider)

    engine = engine_with(ScriptedRunner(forward))
    engine.add(arrivals_of({i: [1] for i in range(10)}))
    found = answers(engine)
    assert found.pop((5, 0))[1] == InternalError.code
    assert found == {(i, 0): (i, 0) for i in range(10) if i != 5}


def poisoning(bad: int, cured_by_wider: bool) -> Forward:
    """NaN for the bad id and its neighbours; alone, for the bad one only."""

    def forward(batch: Sequences, wider: bool) -> Output:
        output = healthy(batch, wider)
        ids = first_ids(batch)[:, 0]
        if bad in ids and not (wider and cured_by_wider):
            output.codes[np.abs(ids - bad) <= 1] = NonFiniteOutputError.code
        return output

    return forward


@pytest.mark.parametrize(
    ("has_wider", "cured", "code"),
    [(True, True, 0), (True, False, NonFiniteOutputError.code), (False, False, 33)],
)
@pytest.mark.case(71)
def test_an_overflowing_sequence_is_run_alone_and_its_neighbours_are_served(
    has_wider: bool, cured: bool, code: int
) -> None:
    runner = ScriptedRunner(poisoning(5, cured), has_wider)
    engine = engine_with(runner)
    engine.add(arrivals_of({i: [1] for i in range(10)}))
    found = answers(engine)
    assert found.pop((5, 0))[1] == code
    assert found == {(i, 0): (i, 0) for i in range(10) if i != 5}
    assert runner.launched == [(10, False)] + [(1, False)] * 3 + [(1, True)] * has_wider


class LoadingRunner(ScriptedRunner):
    """Loads for as long as ``gate`` is shut, in a thread."""

    def __init__(self, forward: Forward, fault: Exception | None = None) -> None:
        super().__init__(forward, has_wider=True)
        self.gate = threading.Event()
        self.fault = fault
        self.wider_model = WiderModel(self._load)

    def _load(self) -> str:
        assert self.gate.wait(30)
        if self.fault is not None:
            raise self.fault
        return "the model"

    def wider_is_ready(self) -> bool:
        return self.wider_model.is_ready()

    def launch(self, batch: Sequences, *, wider: bool = False) -> ScriptedBatch:
        self.has_wider = not self.wider_model.has_failed
        return super().launch(batch, wider=wider)


def test_others_are_served_while_the_wider_model_is_loaded() -> None:
    runner = LoadingRunner(poisoning(5, cured_by_wider=True))
    engine = engine_with(runner)
    engine.add(arrivals_of({1: [5, 3]}, first_id=5))
    assert answers(engine) == {(1, 1): (10.0, 0)}
    assert engine.is_loading
    engine.add(arrivals_of({2: [2]}, first_id=20))
    assert answers(engine) == {(2, 0): (20.0, 0)}
    assert engine.is_loading
    runner.gate.set()
    runner.wider_model.close()
    assert answers(engine) == {(1, 0): (5.0, 0)}
    assert not engine.is_loading
    assert [wider for _, wider in runner.launched] == [False, False, False, True]


def test_without_a_wider_model_what_waits_for_it_has_failed_and_nothing_else() -> None:
    runner = LoadingRunner(poisoning(5, cured_by_wider=True), MemoryError("planted"))
    engine = engine_with(runner)
    for ticket in (1, 2):  # the second time it is not tried again
        engine.add(arrivals_of({ticket: [5, 3]}, first_id=5))
        runner.gate.set()
        found = answers(engine)
        runner.wider_model.close()
        found |= answers(engine)
        assert found[ticket, 0][1] == NonFiniteOutputError.code
        assert found[ticket, 1] == (10.0, 0)
        assert not engine.is_loading


def test_a_launch_that_raises_loses_nothing() -> None:
    runner = ScriptedRunner(healthy)
    launch, attempts = runner.launch, []

    def fails_once(batch: Sequences, *, wider: bool = False) -> ScriptedBatch:
        attempts.append(len(batch))
        if len(attempts) == 2:
            raise RuntimeError("planted")
        return launch(batch, wider=wider)

    runner.launch = fails_once  # type: ignore[method-assign]
    engine = engine_with(runner)
    engine.add(arrivals_of({1: [1, 1]}))
    found = rows_of_all(engine.step())
    engine.add(arrivals_of({2: [1, 1]}, first_id=50))
    found |= answers(engine)
    assert found == {(1, 0): (0, 0), (1, 1): (1, 0), (2, 0): (50, 0), (2, 1): (51, 0)}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("planted"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory"),
    ],
)
def test_out_of_memory_halves_the_size_of_batches_for_good(error: Exception) -> None:
    sizes: list[int] = []

    def forward(batch: Sequences, wider: bool) -> Output:
        sizes.append(batch.num_tokens)
        if batch.num_tokens > 400:
            raise error
        return healthy(batch, wider)

    runner = ScriptedRunner(forward)
    engine = engine_with(runner)
    for ticket in (1, 2):
        sizes.clear()
        engine.add(arrivals_of({ticket: [10] * 60}))
        assert all(code == 0 for _, code in answers(engine).values())
        assert sum(size for size in sizes if size <= 400) == 600
        assert (max(sizes) > 400) is (ticket == 1)
    assert engine.info["max_batch_tokens"] == 300


def test_what_fails_otherwise_leaves_the_size_of_batches_alone() -> None:
    def forward(batch: Sequences, wider: bool) -> Output:
        if (first_ids(batch) == 0).any():
            raise RuntimeError("planted")
        return healthy(batch, wider)

    engine = engine_with(ScriptedRunner(forward))
    engine.add(arrivals_of({1: [10] * 60}))
    answers(engine)
    assert "max_batch_tokens" not in engine.info


def test_one_bad_list_does_not_hold_up_the_others() -> None:
    def forward(batch: Sequences, wider: bool) -> Output:
        output = healthy(batch, wider)
        output.codes[first_ids(batch)[:, 0] < 100] = NonFiniteOutputError.code
        return output

    engine = engine_with(ScriptedRunner(forward))
    engine.add(arrivals_of({1: [1] * 100}))
    engine.step()
    engine.step()
    engine.add(arrivals_of({2: [1]}, first_id=200))
    early: dict[tuple[int, int], tuple[float, int]] = {}
    for _ in range(4):
        early |= rows_of_all(engine.step())
    assert early[2, 0] == (200, 0)
    late = answers(engine) | early
    assert {code for (ticket, _), (_, code) in late.items() if ticket == 1} == {33}
    assert len(late) == 101


def test_what_was_launched_is_told_once() -> None:
    engine = engine_with(ScriptedRunner(healthy))
    engine.add(arrivals_of({1: [3, 4]}))
    answers(engine)
    assert engine.take_launched() == [(2, 7)]
    assert engine.take_launched() == []


def test_cancelled_requests_get_no_answer() -> None:
    engine = engine_with(ScriptedRunner(healthy))
    engine.add(arrivals_of({1: [1], 2: [1]}))
    engine.cancel(np.array([1], np.uint64))
    assert answers(engine) == {(2, 0): (1, 0)}
