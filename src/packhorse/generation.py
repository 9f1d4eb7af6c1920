"""The processes that serve one load of the model: its engines and its front ends.

A reload starts a generation beside the one that serves. Front ends belong to
one generation and speak to its engines alone, so no request is tokenised by
one model and computed by another, and an old tokenizer and old labels live as
long as their last request.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace

from packhorse.channel.board import Board
from packhorse.channel.journal import Journal, on_device
from packhorse.channel.listener import address_of, listen
from packhorse.checkpoint import Checkpoint
from packhorse.child import Child, Kind, Place
from packhorse.config import Config
from packhorse.launch import Launch
from packhorse.suspects import Suspects


def slots_for(devices: list[str], front_ends: int) -> int:
    """Slots of a board: the supervisor's own, and those of two generations."""
    return 1 + 2 * (len(devices) + front_ends)


class Generation:
    """The children of one load, which are started and watched by the supervisor.

    end_by  while it is retired: when what still runs is killed; else None
    """

    def __init__(
        self,
        number: int,
        config: Config,
        checkpoint: Checkpoint,
        devices: list[str],
        board: Board,
        http: socket.socket,
    ) -> None:
        self.number = number
        self.end_by: float | None = None
        self.suspects = Suspects()
        self._listeners = [listen() for _ in devices]
        front_ends = int(config.server.front_ends)
        common = Launch(
            parent=os.getpid(),
            index=0,
            config=replace(config, model=replace(config.model, hf_token=None)),
            model_id=checkpoint.model_id,
            folder=str(checkpoint.folder),
            revision=checkpoint.revision,
            board_fd=board.fd,
            slots=len(board.slots),
            slot=0,
            listener_fd=http.fileno(),
            status_fd=-1,
            engines=[address_of(listener) for listener in self._listeners],
            # Every other generation has the same slots: three are never there at once.
            first_slot=1 + number % 2 * (len(devices) + front_ends),
            generation=number,
        )
        self.engines = [
            Child(
                Kind.ENGINE,
                common.for_engine(index, device, self._listeners[index].fileno(), Journal.create()),
            )
            for index, device in enumerate(devices)
        ]
        standbys: list[Place] = []
        self.front_ends = [
            Child(Kind.FRONT_END, common.for_front_end(index), standbys)
            for index in range(front_ends)
        ]
        self.children = [*self.engines, *self.front_ends]

    @property
    def is_ready(self) -> bool:
        """Whether every child is."""
        return all(child.ready_since is not None for child in self.children)

    @property
    def is_gone(self) -> bool:
        """Whether no process is left."""
        return not any(child.process for child in self.children)

    def retire(self, end_by: float) -> None:
        """Have front ends take no connection more and finish with those that they have."""
        self.end_by = end_by
        self.dismiss()
        for child in self.front_ends:
            child.signal(signal.SIGUSR1)

    def dismiss(self) -> None:
        """End what stands by: no place will be taken any more.

        A front end that stands by also keeps the HTTP socket open.
        """
        for child in self.children:
            child.dismiss()

    def kill(self, end_by: float) -> None:
        """End it now: what it was to serve is served by another."""
        self.end_by = end_by
        for child in self.children:
            child.signal(signal.SIGKILL)

    @property
    def has_front_ends(self) -> bool:
        """Whether a front end is left."""
        return any(child.process for child in self.front_ends)

    def end_engines(self) -> None:
        """When no front end needs them."""
        for child in self.engines:
            child.signal(signal.SIGTERM)

    def investigate(self, engine: Child, crashed: bool) -> None:
        """Suspect what a dead engine had on its device, and tell the next of it."""
        found = on_device(engine.launch.journal_fd)
        if crashed:
            self.suspects.crashed_with(found)
        engine.launch = engine.launch.suspecting(self.suspects.suspects, self.suspects.refused)

    def close(self) -> None:
        """Give back what is not the children's."""
        for listener in self._listeners:
            listener.close()
        self.dismiss()
        for engine in self.engines:
            os.close(engine.launch.journal_fd)
