"""The engine's loop and the front end's link, over real sockets, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.channel import codec, listener
from packhorse.channel.board import Board
from packhorse.channel.channel import Channel
from packhorse.channel.vitals import SILENCE_SECONDS, Vitals
from packhorse.engine import loop as engine_loop
from packhorse.engine.loop import NAP_SECONDS, READ_SECONDS, DeviceBrokenError, EngineLoop
from packhorse.engine.shares import shares_of
from packhorse.errors import NonFiniteOutputError, OverloadedError, UnavailableError
from packhorse.launch import SLOT_WORDS
from packhorse.metrics import BATCH_SEQUENCES, BATCH_TOKENS, FAILED_BATCHES, QUEUED_SEQUENCES
from packhorse.request import Arrivals, Completions, Output, Sequences, bounds_of
from packhorse.server.engine_client import EngineLink
from packhorse.server.pending import Pending
from packhorse.server.terms import ANYONE, Terms
from tests.e2e.fake_engine.sitecustomize import CONTROL_FILE, FakeEngine
from tests.unit.test_engine import (
    LoadingRunner,
    ScriptedBatch,
    ScriptedRunner,
    engine_with,
    healthy,
)
from tests.unit.test_scheduler import arrivals_of


class FakeCheckpoint:
    model_id = "fake"
    labels = ("a", "b", "c")


class Rig:
    """A listening socket and engine processes, one after the other, each in a thread."""

    def __init__(self, control_file: Path) -> None:
        self._control_file = control_file
        self.board = Board.create(3, SLOT_WORDS)
        self.vitals = Vitals(self.board, 1)
        self.listening = listener.listen()
        self.address = listener.address_of(self.listening)
        self.process: EngineLoop | None = None
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def control(self, **values: Any) -> None:
        new = self._control_file.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.rename(self._control_file)  # the engine's thread must not read half of it

    def start(self) -> None:
        engine = FakeEngine.load(None, FakeCheckpoint())
        process = EngineLoop(engine, self.listening, self.board.slots[1], self.vitals)  # type: ignore[arg-type]

        def run() -> None:
            try:
                process.run()
            except BaseException as error:
                self.error = error
            for front_end in process._front_ends.values():
                front_end.channel.close()

        self.process = process
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.process is not None and self.thread is not None:
            self.process.end()
            self.thread.join(10)
            self.vitals.clear()

    def word(self, word: int) -> float:
        return self.board.slots[1][word]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    path = tmp_path / "control.json"
    monkeypatch.setenv(CONTROL_FILE, str(path))
    rig = Rig(path)
    yield rig
    rig.stop()
    rig.listening.close()


def sequences_of(*lengths: int) -> Sequences:
    bounds = bounds_of(np.array(lengths, np.int32))
    return Sequences(
        np.arange(bounds[-1], dtype=np.int32), bounds, np.zeros(len(lengths), np.bool_)
    )


def send(link: EngineLink, *lengths: int, terms: Terms = ANYONE) -> Pending:
    sequences = sequences_of(*lengths)
    future = asyncio.get_running_loop().create_future()
    pending = Pending(["x"] * len(lengths), 1, True, "right", sequences.num_tokens, future, terms)
    link.send([pending], sequences)
    return pending


def first_logits(pending: Pending) -> list[float]:
    """The fake's first logit of each sequence: its length."""
    return [
        float(value)
        for block, _, row, count in sorted(pending.parts, key=lambda part: part[1])
        for value in block.completions.values[row : row + count, 0]
    ]


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


async def ready_link(rig: Rig) -> EngineLink:
    link = EngineLink(rig.address, rig.vitals)
    link.connect()
    await until(lambda: link.fault is None)
    return link


def test_requests_of_two_front_ends_come_back_to_their_senders(rig: Rig) -> None:
    async def main() -> None:
        links = [await ready_link(rig) for _ in range(2)]
        assert links[0].info == rig.process._engine.info  # type: ignore[union-attr]
        asked = [
            (link, lengths, send(link, *lengths))
            for turn in range(20)
            for link, lengths in ((links[0], (turn + 1,)), (links[1], (30 + turn, 3)))
        ]
        for _, lengths, pending in asked:
            await asyncio.wait_for(pending.future, 10)
            assert first_logits(pending) == list(map(float, lengths))
        assert [link.tokens for link in links] == [0, 0]
        for link in links:
            link.close()

    rig.start()
    asyncio.run(main())
    assert sum(rig.board.slots[1][BATCH_SEQUENCES.first + i] for i in range(17)) > 0
    assert rig.word(BATCH_TOKENS.first + BATCH_TOKENS.words - 1) == sum(range(1, 21)) + sum(
        33 + turn for turn in range(20)
    )


def test_a_large_request_and_its_answer_pass(rig: Rig) -> None:
    async def main() -> None:
        link = await ready_link(rig)
        lengths = [1 + n % 500 for n in range(20_000)]  # 20 MB of ids
        pending = send(link, *lengths)
        small = send(link, 7)
        await asyncio.wait_for(pending.future, 20)
        await asyncio.wait_for(small.future, 20)
        assert first_logits(pending) == list(map(float, lengths))
        link.close()

    rig.start()
    asyncio.run(main())


def test_an_engine_that_ends_fails_what_it_had_and_is_replaced(rig: Rig) -> None:
    async def main() -> None:
        rig.control(hang=True)
        link = await ready_link(rig)
        pending = send(link, 3)
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 0 and not link._channel.full)
        await asyncio.to_thread(rig.stop)
        with pytest.raises(UnavailableError, match="ended before"):
            await asyncio.wait_for(pending.future, 2)
        assert link.fault == "the engine is not ready yet"
        refused = send(link, 3)
        with pytest.raises(UnavailableError, match="not ready"):
            await refused.future
        rig.control()
        rig.start()
        await until(lambda: link.fault is None)
        again = send(link, 5)
        await asyncio.wait_for(again.future, 10)
        assert first_logits(again) == [5.0]
        link.close()

    rig.start()
    asyncio.run(main())


def test_a_link_made_before_the_engine_is_served_when_it_is_ready(rig: Rig) -> None:
    async def main() -> None:
        link = EngineLink(rig.address, rig.vitals)
        link.connect()
        await asyncio.sleep(0.05)
        assert link.fault == "the engine is not ready yet"
        rig.start()
        await until(lambda: link.fault is None)
        link.close()

    asyncio.run(main())


def test_a_stuck_engine_is_a_fault(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.engine.loop.LEAST_PATIENCE", 0.2)

    async def main() -> None:
        rig.control(hang=True)
        link = await ready_link(rig)
        pending = send(link, 3)

        def stuck() -> bool:
            link.look(time.monotonic())
            return link.fault is not None

        await until(stuck)
        assert "stuck in a batch" in str(link.fault)
        rig.control()
        await until(lambda: not stuck())
        await asyncio.wait_for(pending.future, 10)
        link.close()

    rig.start()
    asyncio.run(main())


def test_what_is_abandoned_is_cancelled(rig: Rig) -> None:
    class GoneError(Exception):
        pass

    async def main() -> None:
        rig.control(hang=True)
        link = await ready_link(rig)
        running = send(link, 3)
        await until(lambda: rig.process._engine.in_flight)  # type: ignore[union-attr]
        waiting = send(link, 4)
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 1)
        waiting.abandon(GoneError())
        with pytest.raises(GoneError):
            await waiting.future
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 0)
        rig.control()
        await asyncio.wait_for(running.future, 10)
        assert link.tokens == 0
        assert not link._pending
        link.close()

    rig.start()
    asyncio.run(main())


def test_what_a_dead_front_end_wanted_is_cancelled(rig: Rig) -> None:
    async def main() -> None:
        rig.control(hang=True)
        dying, living = await ready_link(rig), await ready_link(rig)
        futures = [send(dying, 3).future, send(dying, 4).future]
        kept = send(living, 5)
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 2)
        dying.close()
        for future in futures:
            with pytest.raises(UnavailableError):
                await future
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 1)
        rig.control()
        await asyncio.wait_for(kept.future, 10)
        living.close()

    rig.start()
    asyncio.run(main())


def test_an_engine_that_does_not_read_is_no_memory_leak(rig: Rig) -> None:
    async def main() -> None:
        link = EngineLink(rig.address, rig.vitals)
        link.connect()
        accepted = listener.accept(rig.listening)
        assert accepted is not None
        accepted.send(codec.encode_info({}, 1))
        rig.vitals.beat(time.monotonic(), 0.0, 4.0)
        await until(lambda: link.info is not None)
        link._channel._pending_limit = 1_000_000  # type: ignore[union-attr]
        requests = [send(link, *[500] * 100) for _ in range(20)]  # 200 KB each
        refused = [p for p in requests if p.future.done()]
        assert 0 < len(refused) < 20
        for pending in refused:
            with pytest.raises(OverloadedError):
                await pending.future
        link.close()
        for pending in requests:
            if pending not in refused:
                with pytest.raises(UnavailableError):
                    await pending.future
        accepted.close()

    asyncio.run(main())


def test_a_front_end_that_speaks_another_protocol_is_cut_off(rig: Rig) -> None:
    async def main() -> None:
        stranger = listener.connect(rig.address)
        link = await ready_link(rig)
        stranger.send(codec.encode_info({}, 1))  # is for front ends
        await until(lambda: len(rig.process._front_ends) == 1)  # type: ignore[union-attr]
        pending = send(link, 3)
        await asyncio.wait_for(pending.future, 10)
        stranger.close()
        link.close()

    rig.start()
    asyncio.run(main())


def test_while_the_wider_model_is_loaded_the_engine_beats_and_serves(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowing(batch: Sequences, wider: bool) -> Output:
        output = healthy(batch, wider)
        if not wider:
            output.codes[batch.lengths == 7] = NonFiniteOutputError.code
        return output

    runner = LoadingRunner(overflowing)
    monkeypatch.setattr(FakeEngine, "load", lambda *_: engine_with(runner))

    async def main() -> None:
        link = await ready_link(rig)
        overflowed = send(link, 7)
        end = time.monotonic() + 3
        while time.monotonic() < end:  # longer than a silent engine is taken for well
            good = send(link, 4)
            await asyncio.wait_for(good.future, 20)
            assert rig.vitals.fault(time.monotonic() + SILENCE_SECONDS - 2) is None
            await asyncio.sleep(0.05)
        assert not overflowed.future.done()
        monkeypatch.setattr(engine_loop, "BEAT_SECONDS", 1000.0)
        runner.gate.set()
        await asyncio.wait_for(overflowed.future, 20)  # without anything that wakes it
        assert not overflowed.parts[0][0].failed
        monkeypatch.undo()  # from the next news on
        link.close()

    rig.start()
    asyncio.run(main())
    assert rig.error is None


def test_failing_requests_do_not_end_a_good_device(rig: Rig) -> None:
    async def main() -> None:
        rig.control(fail_length=13)
        link = await ready_link(rig)
        for _ in range(8):
            poison = send(link, 13)
            await asyncio.wait_for(poison.future, 10)
            assert poison.parts[0][0].failed
        good = send(link, 4)
        await asyncio.wait_for(good.future, 10)
        link.close()

    rig.start()
    asyncio.run(main())
    assert rig.error is None
    assert rig.word(FAILED_BATCHES.first) == 8


def test_a_broken_device_ends_the_engine(rig: Rig) -> None:
    async def main() -> None:
        link = await ready_link(rig)
        rig.control(broken=True)
        futures = []
        for _ in range(4):
            pending = send(link, 3)
            futures.append(pending.future)
            await asyncio.wait([pending.future], timeout=5)
        await until(lambda: link.info is None)
        assert isinstance(futures[-1].exception(), UnavailableError)
        link.close()

    rig.start()
    asyncio.run(main())
    assert isinstance(rig.error, DeviceBrokenError)


class BusyDevice(ScriptedRunner):
    """A GPU that takes two batches and is never done."""

    max_in_flight = 2

    def launch(self, batch: Sequences, *, wider: bool = False) -> ScriptedBatch:
        launched = super().launch(batch, wider=wider)
        launched.done = lambda: False  # type: ignore[method-assign]
        return launched


def test_the_loop_pauses_while_the_gpu_has_its_next_batch_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking all the time would take a core from the front ends and bring nothing."""
    board = Board.create(2, SLOT_WORDS)
    engine = engine_with(BusyDevice(healthy))
    engine.info = {"device": "cuda:0"}
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with contextlib.closing(listener.listen()) as listening:
        process = EngineLoop(engine, listening, board.slots[1], Vitals(board, 1))
        read_end, write_end = os.pipe()
        process.end_with(read_end)
        for ticket, expected in ((1, []), (2, [NAP_SECONDS] * 5)):
            engine.add(arrivals_of({ticket: [3]}))
            engine.step()
            for _ in range(5):
                process._turn()
            assert pauses == expected
        os.close(read_end)
        os.close(write_end)


def ticket(front_end: int, own: int) -> int:
    return front_end << codec.NUMBER_SHIFT | own


@pytest.mark.parametrize("row_counts", [None, [1, 2, 0, 1, 3]])
def test_the_answer_to_many_front_ends_is_divided(row_counts: list[int] | None) -> None:
    """One batch may hold requests of several, in any order; each gets its own parts in theirs."""
    rows = 5 if row_counts is None else sum(row_counts)
    whole = Completions(
        tickets=np.array([ticket(7, 1), ticket(2, 1), ticket(7, 2), ticket(2, 5)], np.uint64),
        offsets=np.array([0, 4, 0, 9], np.int32),
        counts=np.array([1, 2, 1, 1], np.int32),
        codes=np.array([0, 33, 0, 34, 0], np.uint8),
        values=np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        queue_wait=np.array([0.5, 0.25, 1, 2], np.float32),
        inference=0.5,
        row_counts=None if row_counts is None else np.array(row_counts, np.int32),
    )
    shares = dict(shares_of(whole))
    assert sorted(shares) == [2, 7]
    two, seven = shares[2], shares[7]
    assert two.tickets.tolist() == [ticket(2, 1), ticket(2, 5)]
    assert two.offsets.tolist() == [4, 9]
    assert two.counts.tolist() == [2, 1]
    assert two.codes.tolist() == [33, 0, 0]
    assert two.queue_wait.tolist() == [0.25, 2]
    assert seven.tickets.tolist() == [ticket(7, 1), ticket(7, 2)]
    assert seven.codes.tolist() == [0, 34]
    assert seven.inference == 0.5
    if row_counts is None:
        assert two.values[:, 0].tolist() == [2, 4, 8]
        assert seven.values[:, 0].tolist() == [0, 6]
    else:
        assert two.values[:, 0].tolist() == [2, 4, 8, 10, 12]
        assert seven.values[:, 0].tolist() == [0, 6]
        assert two.row_counts is not None
        assert two.row_counts.tolist() == [2, 0, 3]


def test_the_answer_to_one_front_end_is_not_copied() -> None:
    whole = Completions(
        tickets=np.array([ticket(9, 1), ticket(9, 2)], np.uint64),
        offsets=np.zeros(2, np.int32),
        counts=np.ones(2, np.int32),
        codes=np.zeros(2, np.uint8),
        values=np.zeros((2, 2), np.float32),
        queue_wait=np.zeros(2, np.float32),
        inference=0.5,
    )
    [(number, share)] = shares_of(whole)
    assert number == 9
    assert share is whole


class SlowToTake(FakeEngine):
    """Taking a message takes longer than a turn's reading; notes what is asked of it."""

    def __init__(self, config: Any, checkpoint: Any) -> None:
        super().__init__(config, checkpoint)
        self.calls: list[str] = []

    def add(self, arrivals: Arrivals) -> None:
        time.sleep(READ_SECONDS)
        self.calls.append("add")

    def cancel(self, tickets: Any) -> None:
        self.calls.append(f"cancel {[int(t) & 0xFFFF for t in tickets]}")

    def step(self) -> list[Any]:
        self.calls.append("step")
        return []


def one_arrival(number: int) -> bytes:
    return codec.encode_arrivals(
        Arrivals(
            np.array([number], np.uint64),
            np.array([1], np.int32),
            np.array([0], np.uint64),
            np.array([0], np.int8),
            np.array([np.inf]),
            sequences_of(3),
            0.0,
        )
    )


@contextmanager
def turning() -> Iterator[tuple[EngineLoop, SlowToTake, Channel, Vitals]]:
    """An engine whose turns the test takes, and a front end's end of the channel."""
    board, listening = Board.create(2, SLOT_WORDS), listener.listen()
    engine, vitals = SlowToTake(None, FakeCheckpoint()), Vitals(board, 1)
    process = EngineLoop(engine, listening, board.slots[1], vitals)  # type: ignore[arg-type]
    channel = listener.connect(listener.address_of(listening))
    process._accept()
    yield process, engine, channel, vitals
    channel.close()
    for front_end in process._front_ends.values():
        front_end.channel.close()
    listening.close()


def test_a_front_end_that_sends_without_pause_keeps_the_engine_from_nothing() -> None:
    with turning() as (process, engine, channel, vitals):
        for own in range(5):
            channel.send(one_arrival(ticket(1, own)))
        vitals.clear()
        process._turn()
        assert engine.calls == ["add", "step"]
        assert vitals.fault(time.monotonic()) is None
        for _ in range(4):
            process._turn()
        assert engine.calls == ["add", "step"] * 5


@pytest.mark.parametrize(
    "message",
    [
        one_arrival(ticket(2, 1)),
        codec.encode_cancel([ticket(2, 1)]),
        codec.encode_cancel([ticket(2, 1), ticket(1, 1)]),
    ],
)
def test_a_front_end_with_tickets_of_another_is_cut_off(message: bytes) -> None:
    with turning() as (process, engine, channel, _):
        channel.send(message)
        process._turn()
        assert engine.calls[0] != "add"
        assert "cancel [1]" not in engine.calls
        assert not process._front_ends


def test_what_is_cancelled_in_one_turn_is_looked_for_once() -> None:
    with turning() as (process, engine, channel, _):
        for own in (7, 8, 9):
            channel.send(codec.encode_cancel([ticket(1, own)]))
        process._turn()
        assert engine.calls == ["cancel [7, 8, 9]", "step"]
