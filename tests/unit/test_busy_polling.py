"""Who looks for work without pause, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from packhorse.busy_polling import polls_busily
from packhorse.channel import listener
from packhorse.channel.board import Board
from packhorse.channel.vitals import BEAT_SECONDS, Vitals
from packhorse.config import Config, resolve
from packhorse.engine import loop as engine_loop
from packhorse.engine.loop import EngineLoop
from packhorse.hardware import Gpu, Hardware
from packhorse.launch import SLOT_WORDS
from packhorse.server import busy_loop
from packhorse.server.busy_loop import FEW, BusyLoop
from tests.unit.test_engine import ScriptedRunner, engine_with, healthy

GPU = Hardware(16, frozenset(), (Gpu("a GPU", (9, 0)),))


def config_of(device: str, front_ends: int, without: tuple[str, ...] = ()) -> Config:
    config = Config()
    return resolve(
        replace(
            config,
            model=replace(config.model, device=device),
            engine=replace(config.engine, without=without),
            server=replace(config.server, front_ends=front_ends),
        ),
        GPU,
    )


def test_only_where_a_gpu_computes_and_half_of_the_cores_stay_free() -> None:
    assert polls_busily(config_of("cuda:0", 7), cores=16)
    assert not polls_busily(config_of("cuda:0", 8), cores=16)
    assert not polls_busily(config_of("cpu", 1), cores=16)
    assert not polls_busily(config_of("cuda:0", 1, ("busy-polling",)), cores=16)


def test_an_event_loop_stays_awake_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_loop, "POLL_SECONDS", 0.05)
    now = 100.0
    monkeypatch.setattr(busy_loop, "time", SimpleNamespace(monotonic=lambda: now))

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal now
        busy = BusyLoop(lambda: 1)
        busy.stir()
        now = 100.02
        await turns()
        assert busy.is_awake
        busy.stir()
        now = 100.06
        await turns()
        assert busy.is_awake  # for 0.05 s from the second time on
        now = 100.08
        await turns()
        assert not busy.is_awake
        busy.stir()
        assert busy.is_awake

    asyncio.run(main())


def test_an_event_loop_with_much_to_do_sleeps_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_loop, "POLL_SECONDS", 60.0)
    in_flight = FEW

    async def main() -> None:
        nonlocal in_flight
        busy = BusyLoop(lambda: in_flight)
        busy.stir()
        await asyncio.sleep(0.01)
        assert busy.is_awake
        in_flight = FEW + 1
        await asyncio.sleep(0.01)
        assert not busy.is_awake

    asyncio.run(main())


@pytest.mark.parametrize("busily", [True, False])
def test_an_engine_without_work_looks_for_a_moment_before_it_sleeps(
    busily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(engine_loop, "POLL_SECONDS", 5.0)
    board = Board.create(2, SLOT_WORDS)
    read_end, write_end = os.pipe()
    with contextlib.closing(listener.listen()) as listening:
        process = EngineLoop(
            engine_with(ScriptedRunner(healthy)),
            listening,
            board.slots[1],
            Vitals(board, 1),
            polls_busily=busily,
        )
        assert process._timeout() == BEAT_SECONDS  # nothing has come yet
        process.end_with(read_end)
        os.close(write_end)
        process._turn()  # news
        assert process._timeout() == (0.0 if busily else BEAT_SECONDS)
        monkeypatch.setattr(time, "monotonic", lambda: now + 60.0)
        assert process._timeout() == BEAT_SECONDS
    os.close(read_end)
