"""The process of one front end: serves HTTP on a socket that the supervisor listens on."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from packhorse import logs
from packhorse.busy_polling import polls_busily
from packhorse.channel.vitals import Vitals
from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, tokenizer_choice
from packhorse.errors import ConfigError, SetupError
from packhorse.hardware import available_cpus
from packhorse.launch import STANDBY, Launch, complain, learn, name_process
from packhorse.server.admission import Admission
from packhorse.server.answer_room import AnswerRoom, AnswerSizes
from packhorse.server.app import App
from packhorse.server.busy_loop import BusyLoop
from packhorse.server.connection import STALL_SECONDS, sweep
from packhorse.server.dispatcher import Dispatcher
from packhorse.server.draining import GRACE_SECONDS, until_answered, until_deserted
from packhorse.server.engine_client import EngineClient, EngineLink
from packhorse.server.http_server import Server, uvicorn_config
from packhorse.server.observations import Observations, ShadowCounts
from packhorse.server.response_cache import ResponseCache
from packhorse.server.scores import most_bytes
from packhorse.server.service import Service
from packhorse.server.sharing import Sharing
from packhorse.server.tls import Tls, tls_of
from packhorse.tokenizing.choice import BackendChoice
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tracing import Tracing

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 25
"""How long a front end may take to finish what it has; an orchestrator usually waits for 30."""

LOOK_SECONDS = 0.25

RELOAD_LOOK_SECONDS = 0.05

SHADOW_SHARE = 0.001
"""Of this share of texts the ids are compared with those of `tokenizers`."""


class FrontEnd:
    """Ties the service to HTTP, to the engines and to the supervisor."""

    def __init__(
        self, launch: Launch, checkpoint: Checkpoint, tokenizer: Tokenizer, tls: Tls | None
    ) -> None:
        config = launch.config
        self._tracing = _tracing_of(launch, checkpoint)
        board = launch.board()
        self._launch = launch
        self._vitals = Vitals(board, launch.slot)
        busy = None
        if polls_busily(config, available_cpus()):
            busy = BusyLoop(lambda: self._engines.in_flight)
        stir = None if busy is None else busy.stir
        self._engines = EngineClient(
            [
                EngineLink(address, Vitals(board, slot), stir)
                for slot, address in enumerate(launch.engines, launch.first_slot)
            ]
        )
        admission = Admission(
            board, launch.slot, config.server.max_concurrent_requests, tokenizer.max_length
        )
        threads = ThreadPoolExecutor(config.server.tokenization_workers, "packhorse-tokenizer")
        self._service = Service(
            config=config,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            dispatcher=Dispatcher(
                tokenizer,
                threads,
                self._engines,
                admission,
                AnswerRoom(AnswerSizes.of_model(checkpoint, config.server.answer_limit)),
                _sharing(config, checkpoint, board.slots[launch.slot]),
            ),
            engines=self._engines,
            admission=admission,
            observations=Observations(board.slots[launch.slot]),
            board=board,
            slot=board.slots[launch.slot],
            tracing=self._tracing,
        )
        self._tls = tls
        self._server = Server(
            uvicorn_config(App(self._service), DRAIN_SECONDS),
            board,
            launch.slot,
            config.network.max_connections,
            self._tls,
        )
        self._shadow = ShadowCounts(tokenizer, board.slots[launch.slot])
        self._announced = False
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until ``end``, and then until what was received is answered."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end)
        loop.add_signal_handler(signal.SIGUSR1, self.retire)
        loop.add_reader(sys.stdin.fileno(), self.end)  # its end: the supervisor is gone
        looking = asyncio.create_task(_every(LOOK_SECONDS, self._look))
        sweeping = asyncio.create_task(_every(STALL_SECONDS, self._sweep))
        self._engines.connect()
        if self._launch.generation:
            await self._engines_ready()  # meanwhile the generation before takes connections
        await self._server.serve([socket.socket(fileno=self._launch.listener_fd)])
        looking.cancel()
        sweeping.cancel()
        self._count()
        self._engines.close()
        if self._tracing is not None:
            self._tracing.close()

    def end(self) -> None:
        """Finish what is there, and refuse what comes later."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if not self._service.draining:
            self._service.draining = True
            self._ending = asyncio.create_task(self._end())

    def retire(self) -> None:
        """Finish with the connections that are open: another generation serves."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._retire())

    async def _end(self) -> None:
        self._server.close_after_answers()
        await asyncio.sleep(GRACE_SECONDS)
        self._engines.refusal = "the server is shutting down"
        await until_answered(self._server, DRAIN_SECONDS)
        self._server.should_exit = True

    async def _retire(self) -> None:
        if self._server.acceptor is not None:
            self._server.acceptor.close()
        self._server.close_after_answers()
        await until_deserted(self._server, DRAIN_SECONDS)
        self._server.should_exit = True

    async def _engines_ready(self) -> None:
        while self._engines.fault is not None and not self._service.draining:
            await asyncio.sleep(RELOAD_LOOK_SECONDS)

    def _look(self) -> None:
        self._vitals.beat(time.monotonic(), waiting_since=0.0, patience=math.inf)
        self._engines.look()
        self._count()
        if self._server.acceptor is not None:
            self._server.acceptor.count()
        if not self._announced and self._server.started and self._engines.fault is None:
            self._announced = True
            self._launch.report("ready")

    def _count(self) -> None:
        """What was kept to be counted together; the board outlives this process."""
        self._service.observations.flush()
        self._shadow.count()

    def _sweep(self) -> None:
        self._refresh_certificate()
        if cut_off := sweep(self._server.server_state.connections):
            logger.info("cut off %d connections that stalled", cut_off)

    def _refresh_certificate(self) -> None:
        try:
            if self._tls is not None and self._tls.refresh():
                logger.info("new connections get the renewed certificate")
        except ConfigError as error:
            logger.error("the certificate stays the old one: %s", error)


async def _every(seconds: float, action: Callable[[], None]) -> None:
    """Again and again, also after it failed: the heart must not stop for one fault."""
    while True:
        await asyncio.sleep(seconds)
        try:
            action()
        except Exception as error:
            logger.error("%s failed: %s", action.__name__, logs.describe(error))


def _sharing(config: Config, checkpoint: Checkpoint, slot: memoryview[float]) -> Sharing | None:
    """None where every request is computed for itself."""
    server = config.server
    dedup = server.dedup and "dedup" not in config.engine.without
    limit = server.response_cache_mb * 1_000_000 // int(server.front_ends)
    if not dedup and not limit:
        return None
    cache = ResponseCache(limit, most_bytes(checkpoint.labels)) if limit else None
    return Sharing(slot, dedup, cache)


def _tracing_of(launch: Launch, checkpoint: Checkpoint) -> Tracing | None:
    """Traces, where a collector is named."""
    server = launch.config.server
    if server.otlp_endpoint is None:
        return None
    return Tracing(
        server.otlp_endpoint,
        server.otlp_service_name,
        f"front end {launch.index}",
        launch.config.model.served_model_name or checkpoint.model_id,
    )


async def _serve(
    launch: Launch, checkpoint: Checkpoint, tokenizer: Tokenizer, tls: Tls | None
) -> None:
    await FrontEnd(launch, checkpoint, tokenizer, tls).run()


def main() -> int:
    """Load the tokenizer, serve. The exit status tells the supervisor what went wrong."""
    if STANDBY in sys.argv[1:]:
        name_process("standby of the front ends")
    launch = learn()
    name_process(f"front end {launch.index}")
    server = launch.config.server
    logs.configure(server.log_level, f"front end {launch.index}", server.json_output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor's business
    try:
        checkpoint = launch.checkpoint()
        tokenizer = Tokenizer.load(
            checkpoint,
            backend=cast(BackendChoice, tokenizer_choice(launch.config)),
            parallel=False,  # the cores are shared with other front ends and the engine
            shadow_share=SHADOW_SHARE,
        )
        tls = tls_of(launch.config.network)
    except SetupError as error:
        return complain(error)
    gc.collect()
    gc.freeze()  # what is loaded stays: the collector need not look at it again
    gc.set_threshold(20_000, 20, 50)  # requests leave no cycles; looking for them cost 6 %
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(launch, checkpoint, tokenizer, tls))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not on every system
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
