"""Starts the processes of a server, replaces those that die, and ends them all.

    bind     the port comes bound: if it is taken, nothing has been imported yet
    start    engines and front ends at once; front ends answer /health with 503 meanwhile
    watch    a child's status pipe says that it is ready, and by its end that it is dead
    reload   a new generation starts beside the old one, which finishes once the new one is ready
    end      front ends finish what they have, then engines end; a second signal ends all now

Children are started by exec, never by fork alone: no state of one process
leaks into another. Sockets are this process's and are lent, so a client can
connect while the process that will serve it is being replaced.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator

from packhorse import logs
from packhorse.channel.board import Board
from packhorse.channel.vitals import Vitals
from packhorse.checkpoint import Checkpoint
from packhorse.child import Child, Kind, described
from packhorse.config import AUTO, Config, as_dict, resolve
from packhorse.configured import configured_checkpoint
from packhorse.errors import ConfigError
from packhorse.generation import Generation, slots_for
from packhorse.hardware import detect
from packhorse.launch import CLEARED, SETUP_FAILED, SLOT_WORDS, name_process
from packhorse.metrics import READY, RELOADS, RESTARTS, clear_gauges
from packhorse.reloading import Reloading
from packhorse.server.listen import url_of
from packhorse.tracing import check_installed

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25

FAULT_SECONDS = 30.0
"""A child whose vitals show a fault at every tick for so long is killed and replaced."""

DRAIN_SECONDS = 28.0
"""Longer than a front end takes to finish what it has; then it is killed."""

ENGINE_END_SECONDS = 5.0

STANDBY_AGAIN_SECONDS = 30.0
"""How long to do without processes that stand by when the system had none to give."""

FAILED = 1
"""Exit status when a child dies faster than it can be replaced."""


def run(config: Config, http: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT, and load the model again at SIGHUP; returns the exit status.

    ``http`` is bound, and nobody listens on it yet.

    Raises SetupError for what is found out before any process is started: a
    wrong setting, a model that cannot be had.
    """
    if sys.platform != "linux":
        raise ConfigError("serving needs Linux; the library and the other commands do not")
    logs.configure(config.server.log_level, "supervisor", config.server.json_output)
    config = _resolved(config)
    if config.server.otlp_endpoint is not None:
        check_installed()
    checkpoint = configured_checkpoint(config)
    logger.info("settings: %s", as_dict(config))
    _raise_file_limit()
    supervisor = Supervisor(config, checkpoint, http)
    with _signals_to(supervisor):
        return supervisor.run()


def _resolved(config: Config) -> Config:
    """Every "auto" decided. That a CPU serves, and nobody chose it, is worth a warning."""
    hardware = detect()
    resolved = resolve(config, hardware)  # warns itself of a GPU that is there and unusable
    if config.model.device == AUTO and resolved.model.device == "cpu" and not hardware.gpu_fault:
        logger.warning("--device auto takes the CPU: this machine shows no GPU")
    return resolved


class Supervisor:
    """All children of one server."""

    def __init__(self, config: Config, checkpoint: Checkpoint, http: socket.socket) -> None:
        self._http = http
        self._url = url_of(http, "https" if config.network.ssl_certfile else "http")
        self._name = config.model.served_model_name or checkpoint.model_id
        self._config = config
        self._devices = [config.model.device]  # one engine each
        front_ends = int(config.server.front_ends)
        self._board = Board.create(slots_for(self._devices, front_ends), SLOT_WORDS)
        self._current = self._generation(0, checkpoint)
        self._next: Generation | None = None  # it loads, while the current one serves
        self._retired: list[Generation] = []
        self._reloading: Reloading | None = None
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []  # that came, in order
        self._heeded = 0  # how many of them were acted on
        stands_by = config.engine.standby and "standby" not in config.engine.without
        self._standby_from = 0.0 if stands_by else math.inf  # when processes may stand by
        self._end_signals = 0
        self._status = 0
        self._served = False
        self._end_by: float | None = None  # when what still runs is killed

    def run(self) -> int:
        """Until all children have ended; returns the exit status."""
        name_process(f"supervisor of {self._url}")
        self._http.listen(2048)
        try:
            while self._end_by is None or not all(g.is_gone for g in self._generations):
                self._tick(time.monotonic())
                for key, _ in self._selector.select(TICK_SECONDS):
                    key.data()
                self._heed_signals()
        finally:
            self._close()
        return self._status

    def on_signal(self, number: int) -> None:
        """Note a signal; the loop acts on it.

        Nothing else may be done here: this runs between any two instructions
        of the loop, which may be in the middle of starting a child and would
        go on with sockets that an end has closed.
        """
        self._signals.append(number)

    def watch(self, woken: socket.socket) -> None:
        """Wake up for signals: a byte arrives here for each."""
        self._selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(64))

    @property
    def _generations(self) -> list[Generation]:
        """All that have processes, or will have."""
        loading = [] if self._next is None else [self._next]
        return [self._current, *loading, *self._retired]

    def _generation(self, number: int, checkpoint: Checkpoint) -> Generation:
        return Generation(number, self._config, checkpoint, self._devices, self._board, self._http)

    def _tick(self, now: float) -> None:
        """What time brings: starts that are due, faults that last, ends that take too long."""
        if self._end_by is None:
            self._look_at_reload()
            self._end_retired(now)
            for generation in filter(None, (self._current, self._next)):
                self._keep_up(generation, now)
        elif now >= self._end_by:
            self._signal(signal.SIGKILL)
        elif not any(g.has_front_ends for g in self._generations):
            for generation in self._generations:
                generation.end_engines()
            self._end_by = min(self._end_by, now + ENGINE_END_SECONDS)

    def _keep_up(self, generation: Generation, now: float) -> None:
        for child in generation.children:
            if len(self._signals) > self._heeded or self._is_ending(generation):
                return  # an end may be due: what is not started need not be ended
            if child.process is None and now >= child.start_at:
                self._start(generation, child, now)
            elif child.ready_since is not None:
                self._check_vitals(child, now)
                if now >= self._standby_from and child.is_due_for_standby(now):
                    self._prepare(child, now)

    def _is_ending(self, generation: Generation) -> bool:
        """Whether none of its children is started or replaced any more."""
        return self._end_by is not None or generation.end_by is not None

    def _end_retired(self, now: float) -> None:
        for generation in list(self._retired):
            if generation.is_gone:
                generation.close()
                self._retired.remove(generation)
            elif generation.end_by is not None and now >= generation.end_by:
                generation.kill(now + DRAIN_SECONDS)
            elif not generation.has_front_ends:
                generation.end_engines()

    def _heed_signals(self) -> None:
        """Reload at SIGHUP; end gently at the first other signal, at once at the second."""
        while self._heeded < len(self._signals):
            number = self._signals[self._heeded]
            self._heeded += 1
            if number == signal.SIGHUP:
                self._reload()
                continue
            self._end_signals += 1
            if self._end_signals == 1:
                logger.info("%s: finishing what was received", signal.Signals(number).name)
                self._end(0)
            else:
                self._status = self._status or 128 + number  # a failure stays one
                self._signal(signal.SIGKILL)

    def _reload(self) -> None:
        """Begin to load the model again, beside the one that serves."""
        if self._end_by is not None:
            return
        if self._reloading is not None or self._next is not None or self._retired:
            logger.warning("SIGHUP: the reload before this one is not over; send it again then")
            return
        logger.info("SIGHUP: loading the model again")
        self._reloading = Reloading(self._config)

    def _look_at_reload(self) -> None:
        """Start the new generation's processes once its checkpoint is there."""
        if self._reloading is None or not self._reloading.is_over:
            return
        checkpoint, self._reloading = self._reloading.checkpoint, None
        if isinstance(checkpoint, Checkpoint):
            self._next = self._generation(self._current.number + 1, checkpoint)
        else:
            self._keep_old_model(str(checkpoint))

    def _keep_old_model(self, reason: str) -> None:
        logger.error("the reload failed, the old model serves on: %s", reason)
        self._board.slots[0][RELOADS.word("failure")] += 1.0
        if self._next is not None:
            self._next.kill(time.monotonic() + DRAIN_SECONDS)
            self._retired.append(self._next)
            self._next = None

    def _promote(self, generation: Generation) -> None:
        """A generation is ready: it serves from now on, and the one before finishes."""
        self._current.retire(time.monotonic() + DRAIN_SECONDS)
        self._retired.append(self._current)
        self._current, self._next = generation, None
        self._board.slots[0][RELOADS.word("success")] += 1.0
        logger.info("the model is loaded again and serves")

    def _start(self, generation: Generation, child: Child, now: float) -> None:
        try:
            child.start()
        except OSError as error:  # of processes or memory, which may pass: as after a death
            child.put_off(now)
            self._lost(generation, child, f"cannot be started: {error.strerror}", FAILED)
            return
        self._selector.register(child, selectors.EVENT_READ, lambda: self._hear(generation, child))

    def _prepare(self, child: Child, now: float) -> None:
        """A server without a process that stands by is slower to mend, and else the same."""
        try:
            child.prepare()
        except OSError as error:
            self._standby_from = now + STANDBY_AGAIN_SECONDS
            logger.warning("no process stands by for a while: %s", error.strerror)

    def _hear(self, generation: Generation, child: Child) -> None:
        news = child.news()
        if news is None:
            self._died(generation, child)
            return
        now = time.monotonic()
        for line in news:
            word, *mark = line.split()
            if word == CLEARED:
                generation.suspects.clear((int(mark[0]), int(mark[1])))
            elif word == "ready":
                child.ready_since = now
                child.was_ever_ready = True
        self._count_ready()
        if generation is self._next and generation.is_ready and self._end_by is None:
            self._promote(generation)
        if not self._served and self._current.is_ready:
            self._served = True
            with contextlib.suppress(OSError):  # nobody reads it: no reason to end
                print(f"Packhorse serves {self._name} on {self._url}", flush=True)

    def _died(self, generation: Generation, child: Child) -> None:
        self._selector.unregister(child)
        slot = self._board.slots[child.launch.slot]
        clear_gauges(slot)
        Vitals(self._board, child.launch.slot).clear()
        was_stuck = child.was_stuck
        status = child.bury(time.monotonic())
        if child.kind is Kind.ENGINE:
            # Whoever kills what works does not show that a text is at fault.
            generation.investigate(child, status != -signal.SIGKILL or was_stuck)
        self._count_ready()
        if not self._is_ending(generation):
            self._lost(generation, child, described(status), status)

    def _lost(self, generation: Generation, child: Child, what: str, status: int) -> None:
        """A process is missing: another follows, unless that makes no sense any more."""
        if child.given_up and generation is self._next:
            self._keep_old_model(f"{child} {what}")
            return
        if child.given_up:
            logger.error("%s %s, and is given up", child, what)
            self._end(SETUP_FAILED if status == SETUP_FAILED else FAILED)
            return
        logger.error("%s %s; it is replaced", child, what)
        self._board.slots[0][RESTARTS.word(child.kind)] += 1.0

    def _check_vitals(self, child: Child, now: float) -> None:
        fault = Vitals(self._board, child.launch.slot).fault(now)
        if fault is None:
            child.faulty_since = None
        elif child.faulty_since is None:
            child.faulty_since = now
            logger.error("%s %s", child, fault)
        elif now - child.faulty_since > FAULT_SECONDS:
            logger.error("%s %s; it is killed", child, fault)
            child.signal(signal.SIGKILL)
            child.was_stuck = True
            child.faulty_since = None

    def _end(self, status: int) -> None:
        """Begin the end, unless one is under way: its reason stays the exit status."""
        if self._end_by is not None:
            return
        self._status = status
        self._end_by = time.monotonic() + DRAIN_SECONDS
        self._http.close()  # front ends close theirs: from then on connections are refused
        for generation in self._generations:
            generation.dismiss()
            for child in generation.front_ends:
                child.signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for generation in self._generations:
            for child in generation.children:
                child.signal(number)

    def _count_ready(self) -> None:
        for kind in Kind:
            ready = sum(
                child.ready_since is not None
                for child in self._current.children
                if child.kind is kind
            )
            self._board.slots[0][READY.word(kind)] = ready

    def _close(self) -> None:
        """Leave nothing behind, whatever happened."""
        now = time.monotonic()
        self._selector.close()
        for generation in self._generations:
            for child in generation.children:
                if child.process is not None:
                    child.signal(signal.SIGKILL)
                    child.bury(now)
            generation.close()
        os.close(self._board.fd)


@contextlib.contextmanager
def _signals_to(supervisor: Supervisor) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP wake the supervisor, which is told of them."""
    woken, waking = socket.socketpair()
    woken.setblocking(False)
    waking.setblocking(False)
    previous = {
        number: signal.signal(number, lambda number, _: supervisor.on_signal(number))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    previous_fd = signal.set_wakeup_fd(waking.fileno())
    supervisor.watch(woken)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous.items():
            signal.signal(number, handler)
        woken.close()
        waking.close()


def _raise_file_limit() -> None:
    """As many open connections as the system allows; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
