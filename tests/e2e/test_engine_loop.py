"""The engine's loop under load: trying the device, telling front ends apart, counting batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.metrics import BATCH_SEQUENCES, QUEUED_SEQUENCES
from tests.e2e.fake_engine.sitecustomize import CONTROL_FILE, FakeEngine
from tests.unit.test_engine_process import Rig, first_logits, ready_link, send, until


class OneBatch(FakeEngine):
    """A device with room for one batch: to try it while one is running must not be attempted."""

    tries = 0

    def warm_up(self) -> None:
        type(self).tries += 1
        if self.in_flight:
            raise IndexError("there is no room for another batch")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    path = tmp_path / "control.json"
    monkeypatch.setenv(CONTROL_FILE, str(path))
    monkeypatch.setattr("tests.unit.test_engine_process.FakeEngine", OneBatch)
    monkeypatch.setattr(OneBatch, "tries", 0)
    rig = Rig(path)
    yield rig
    rig.stop()
    rig.listening.close()


def test_a_device_that_is_never_idle_is_tried_when_it_is(rig: Rig) -> None:
    async def main() -> None:
        rig.control(fail_length=13, seconds=0.005)
        link = await ready_link(rig)
        asked = deque(send(link, 13) for _ in range(3))
        for _ in range(80):
            asked.append(send(link, 13))  # so that something waits at any time
            await asyncio.wait_for(asked.popleft().future, 10)
        good = send(link, 4)
        await asyncio.wait_for(good.future, 10)
        assert first_logits(good) == [4.0]
        link.close()

    rig.start()
    asyncio.run(main())
    assert rig.error is None
    assert OneBatch.tries >= 2


def test_numbers_of_front_ends_that_live_are_not_given_again(rig: Rig) -> None:
    async def main() -> None:
        links = [await ready_link(rig) for _ in range(2)]
        assert rig.process is not None
        rig.process._connected = 0xFFFF  # as after so many connects
        links.append(await ready_link(rig))
        assert sorted(rig.process._front_ends) == [1, 2, 3]
        asked = [send(link, 3 + index) for index, link in enumerate(links)]
        for index, pending in enumerate(asked):
            await asyncio.wait_for(pending.future, 10)
            assert first_logits(pending) == [3.0 + index]
        for link in links:
            link.close()

    rig.start()
    asyncio.run(main())


def test_every_batch_is_counted_also_when_several_start_at_once(rig: Rig) -> None:
    async def main() -> None:
        rig.control(hang=True)
        link = await ready_link(rig)
        asked = [send(link, 3)]
        await until(lambda: rig.process._engine.in_flight)  # type: ignore[union-attr]
        asked += [send(link, 3) for _ in range(4)]
        await until(lambda: rig.word(QUEUED_SEQUENCES.first) == 4)
        rig.control()
        for pending in asked:
            await asyncio.wait_for(pending.future, 10)
        link.close()

    rig.start()
    asyncio.run(main())
    assert rig.word(BATCH_SEQUENCES.first) == 5  # the bucket of batches of one
