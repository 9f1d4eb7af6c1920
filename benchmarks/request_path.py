"""What the Python on the way of a request costs: CPU time of the engine's loop and of a front end.

    python benchmarks/request_path.py --json after.json
    python benchmarks/request_path.py --before before.json     # a column to compare with

No device, no tokenizer and no client is in it: a runner answers at once, the texts' ids are ready,
sockets to clients are lists. What is left is what this package does for each request. It is CPU
time, near the least of many rounds in turns, so that it hardly matters what else the machine
does; the yardstick shows how much it did.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from uvicorn.server import ServerState

from packhorse.channel import codec, listener
from packhorse.channel.board import Board
from packhorse.channel.channel import Channel
from packhorse.channel.journal import Journal
from packhorse.channel.vitals import Vitals
from packhorse.checkpoint import load_checkpoint
from packhorse.config import Config, resolve
from packhorse.engine.cost_model import CostModel
from packhorse.engine.engine import Engine
from packhorse.engine.loop import EngineLoop
from packhorse.engine.model_runner import checked_output
from packhorse.engine.quarantine import Quarantine
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.hardware import Hardware
from packhorse.launch import SLOT_WORDS
from packhorse.request import Arrivals, Completions, Output, Sequences, bounds_of
from packhorse.server.admission import Admission
from packhorse.server.answer_room import AnswerRoom, AnswerSizes
from packhorse.server.app import App
from packhorse.server.connection import Connection
from packhorse.server.dispatcher import Dispatcher
from packhorse.server.engine_client import EngineClient, EngineLink
from packhorse.server.http_server import uvicorn_config
from packhorse.server.observations import Observations
from packhorse.server.service import Service
from packhorse.tokenizing.tokenizer import Tokenizer

TOKENS = 25
"""Of each text: about what a sentence of a review has."""

MANY = 64

WIDTH = 2

Case = Callable[[], tuple[float, ...]]
"""Measures once: CPU seconds."""

INPUT = b"This film is a small wonder, and the actors are a joy to watch from start to end."

REQUEST = (
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
    b"Accept: */*\r\nContent-Length: %d\r\n\r\n%b"
)


def sequences_of(count: int) -> Sequences:
    """``count`` texts of ``TOKENS`` tokens each."""
    return Sequences(
        np.arange(count * TOKENS, dtype=np.int32) % 1000 + 1000,
        bounds_of(np.full(count, TOKENS, np.int32)),
        np.zeros(count, np.bool_),
    )


class Launched:
    """A batch that is done at once, or when ``FakeRunner.busy`` ends."""

    def __init__(self, runner: FakeRunner, count: int) -> None:
        self._runner = runner
        self._values = runner.values[:count]

    def done(self) -> bool:
        return not self._runner.busy

    def output(self) -> Output:
        return checked_output(self._values.copy(), None, 0.0003)


class FakeRunner:
    """A GPU as the engine sees it, without its time."""

    width = WIDTH
    max_tokens = 8192
    max_sequences = 1024
    max_in_flight = 2
    completion_fd = None
    has_wider = False
    padding_tokens = 0

    def __init__(self) -> None:
        self.busy = False
        self.values = np.random.default_rng(0).normal(size=(1024, WIDTH)).astype(np.float32)

    def launch(self, batch: Sequences, *, wider: bool = False) -> Launched:
        return Launched(self, len(batch))

    def memory(self) -> dict[str, int]:
        return {}

    def warm_up_batches(self) -> Iterator[Sequences]:
        for count in (1, 8, 64):
            yield sequences_of(count)

    def close(self) -> None:
        pass


class EngineRig:
    """The real loop over the real engine, and the far ends of front ends' channels."""

    def __init__(self, front_ends: int) -> None:
        board = Board.create(2, SLOT_WORDS)
        cost = CostModel()
        self.runner = FakeRunner()
        scheduler = Scheduler(Limits(8192, 1024, 0.006), cost)
        engine = Engine(self.runner, scheduler, cost)
        engine.info = {"device": "cuda:0"}
        engine.warm_up()
        engine.guard(Journal(Journal.create()), Quarantine((), (), lambda mark: None))
        listening = listener.listen()
        self.process = EngineLoop(engine, listening, board.slots[1], Vitals(board, 1))
        self.process.end_with(os.pipe()[0])
        self.process._selector.register(listening, 1, self.process._accept)
        self.channels: list[Channel] = []
        for _ in range(front_ends):
            self.channels.append(listener.connect(listener.address_of(listening)))
            self.process._turn()
            assert self.channels[-1].receive() is not None

    def turn(self) -> float:
        """CPU seconds of a turn."""
        begun = time.process_time()
        self.process._turn()
        return time.process_time() - begun

    def answer(self, channel: Channel) -> float:
        """CPU seconds of turns until the answer is there."""
        seconds = 0.0
        while channel.receive() is None:
            seconds += self.turn()
        return seconds


def engine_one() -> Case:
    """A request of one text: two turns, one that takes and launches and one that answers."""
    rig, message = EngineRig(1), arrivals(1)

    def sample() -> tuple[float, ...]:
        rig.channels[0].send(message)
        return (rig.answer(rig.channels[0]),)

    return sample


def engine_many() -> Case:
    """``MANY`` requests of one text, from seven front ends; for one of them."""
    rig = EngineRig(7)
    messages = [arrivals(MANY // 7 + (place < MANY % 7), 1 + place) for place in range(7)]

    def sample() -> tuple[float, ...]:
        for channel, message in zip(rig.channels, messages, strict=True):
            channel.send(message)
        seconds = rig.turn() + rig.turn()
        for channel in rig.channels:
            while channel.receive() is not None:
                pass
        return (seconds / MANY,)

    return sample


def engine_poll() -> Case:
    """A turn in which the device still works and nothing has come."""
    rig = EngineRig(1)
    rig.runner.busy = True
    rig.channels[0].send(arrivals(1))
    rig.turn()
    return lambda: (sum(rig.turn() for _ in range(10)) / 10,)


def yardstick() -> Case:
    """The same work in every version: where it differs, the machine was faster or slower."""
    array = np.arange(64, dtype=np.int32)

    def sample() -> tuple[float, ...]:
        begun = time.process_time()
        for number in range(20):
            np.flatnonzero(array > number)
            {str(one): one for one in range(20)}
        return (time.process_time() - begun,)

    return sample


def arrivals(count: int, front_end: int = 1) -> bytes:
    """The message of ``count`` requests of one text."""
    first = (front_end << codec.NUMBER_SHIFT) + 1
    return codec.encode_arrivals(
        Arrivals(
            tickets=np.arange(first, first + count, dtype=np.uint64),
            counts=np.ones(count, np.int32),
            clients=np.full(count, 77, np.uint64),
            priorities=np.zeros(count, np.int8),
            deadlines=np.full(count, np.inf),
            sequences=sequences_of(count),
            arrived=time.monotonic(),
        )
    )


class Lists:
    """A channel that keeps what is sent."""

    wants_write = full = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def fileno(self) -> int:
        return -1


class Transport(asyncio.Transport):
    """A client's socket that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8080)})
        self.written = 0

    def write(self, data: Any) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data
        self.written += 1

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class ReadyTokenizer:
    """The demo model's, but the ids are ready."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.load(load_checkpoint(), parallel=False)
        self._ready = {count: sequences_of(count) for count in (1, MANY)}

    def encode(self, inputs: list[Any], **_: Any) -> Sequences:
        return self._ready[len(inputs)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class FrontEndRig:
    """A front end between a client's bytes and the engine's messages."""

    def __init__(self, clients: int, threads: ThreadPoolExecutor) -> None:
        config = resolve(Config(), Hardware(2, frozenset()))
        board = Board.create(9, SLOT_WORDS)
        link = EngineLink(b"", Vitals(board, 1))
        self.channel = Lists()
        link._channel, link.fault, link.info = cast(Channel, self.channel), None, {}
        self.link = link
        engines = EngineClient([link])
        tokenizer = cast(Any, ReadyTokenizer())
        admission = Admission(board, 2, 10_000, 512)
        checkpoint = load_checkpoint()
        room = AnswerRoom(AnswerSizes.of_model(checkpoint, config.server.answer_limit))
        service = Service(
            config=config,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            dispatcher=Dispatcher(tokenizer, threads, engines, admission, room),
            engines=engines,
            admission=admission,
            observations=Observations(board.slots[2]),
            board=board,
            slot=board.slots[2],
        )
        http = uvicorn_config(App(service), drain_seconds=1)
        http.load()
        state = ServerState()
        state.default_headers = [(b"date", b"Mon, 01 Jan 2024 00:00:00 GMT")]
        self.transports = [Transport() for _ in range(clients)]
        self.connections = []
        for transport in self.transports:
            connection = Connection(config=http, server_state=state, app_state={})
            connection.connection_made(transport)
            self.connections.append(connection)
        self._request = REQUEST % (len(INPUT) + 13, b'{"inputs":"' + INPUT + b'"}')

    async def round(self) -> tuple[float, float]:
        """CPU seconds from bytes to the message, and from the answer's message to bytes."""
        begun = time.process_time()
        for connection in self.connections:
            connection.data_received(self._request)
        while not self.channel.sent:
            await asyncio.sleep(0)
        asked = time.process_time() - begun
        answers = [self._answered(message) for message in self.channel.sent]
        self.channel.sent.clear()
        wanted = self.transports[-1].written + 1
        begun = time.process_time()
        for answer in answers:
            self.link._take(answer)
        while self.transports[-1].written < wanted:
            await asyncio.sleep(0)
        return asked, time.process_time() - begun

    @staticmethod
    def _answered(message: bytes) -> bytes:
        """What the engine says to it."""
        asked = codec.decode_arrivals(message)
        count = len(asked.tickets)
        return codec.encode_completions(
            Completions(
                tickets=asked.tickets,
                offsets=np.zeros(count, np.int32),
                counts=np.ones(count, np.int32),
                codes=np.zeros(count, np.uint8),
                values=np.random.default_rng(0).normal(size=(count, WIDTH)).astype(np.float32),
                queue_wait=np.full(count, 0.0003, np.float32),
                inference=0.0006,
            )
        )


def front_end(clients: int, runner: asyncio.Runner, threads: ThreadPoolExecutor) -> Case:
    """For one request of ``clients`` that ask in the same turn of the loop."""

    async def make() -> FrontEndRig:
        return FrontEndRig(clients, threads)

    async def rounds(count: int) -> list[tuple[float, float]]:
        return [await rig.round() for _ in range(count)]

    rig = runner.run(make())
    ready: list[tuple[float, float]] = []

    def sample() -> tuple[float, ...]:
        if not ready:
            ready.extend(runner.run(rounds(20)))
        asked, told = ready.pop()
        return asked / clients, told / clients

    return sample


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # as in the server
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def measure(rounds: int) -> dict[str, float]:
    """Microseconds by what is measured."""
    with (
        ThreadPoolExecutor(1) as threads,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        cases: dict[tuple[str, ...], Case] = {
            ("yardstick",): yardstick(),
            ("engine, one request",): engine_one(),
            (f"engine, each of {MANY} requests from 7 front ends",): engine_many(),
            ("engine, a turn that polls",): engine_poll(),
            (
                "front end, one request: bytes to message",
                "front end, one request: message to bytes",
            ): front_end(1, runner, threads),
            (
                f"front end, each of {MANY} requests: bytes to message",
                f"front end, each of {MANY} requests: message to bytes",
            ): front_end(MANY, runner, threads),
        }
        samples: dict[tuple[str, ...], list[tuple[float, ...]]] = {names: [] for names in cases}
        for _ in range(rounds):  # in turns: a machine is faster now and slower then
            for names, sample in cases.items():
                samples[names] += [sample() for _ in range(20)]
    return {
        name: typical(list(column))
        for names, rows in samples.items()
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def typical(samples: list[float]) -> float:
    """Microseconds: the second percentile, as other processes can only make it more."""
    return sorted(samples)[len(samples) // 50] * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    parser.add_argument("--before", type=Path, metavar="FILE", help="numbers to compare with")
    arguments = parser.parse_args()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as in the server
    now = measure(arguments.rounds)
    before = json.loads(arguments.before.read_text()) if arguments.before else {}
    print(f"{'CPU time in µs':58} {'before':>8} {'now':>8}")
    for name, microseconds in now.items():
        earlier = f"{before[name]:8.1f}" if name in before else f"{'':8}"
        print(f"{name:58} {earlier} {microseconds:8.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(now, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
