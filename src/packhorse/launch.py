"""What a child process is told when it starts, and how parent and child hear of each other.

The supervisor writes the launch document to the child's standard input and
keeps that pipe open: its end means that the supervisor is gone. The child
writes lines to its status pipe: its end means that the child is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec

from packhorse.channel.board import Board
from packhorse.channel.journal import Fingerprint
from packhorse.channel.vitals import WORDS as VITAL_WORDS
from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import Config
from packhorse.configured import pooling_of, task_of, with_default_prompt
from packhorse.errors import SetupError
from packhorse.metrics import words
from packhorse.network_options import NetworkOptions

STANDBY = "--standby"
"""Argument of a child that imports its libraries before it is told what it is for."""

CLEARED = "cleared"
"""Reported with the fingerprint of a suspect that ran alone and did no harm."""

SETUP_FAILED, DEVICE_BROKEN = 2, 3
"""Exit statuses of a child: it cannot start, the reason is on stderr; its device must be reset."""

SLOT_WORDS = words() + VITAL_WORDS

PIPE_BYTES = 1 << 16
"""What a pipe holds that nobody reads yet (pipe(7))."""

_LENGTH = struct.Struct("!I")
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True)
class Launch:
    """The document.

    parent    the supervisor's process id
    index     which engine, or which front end
    config    resolved, without secrets that only the supervisor needs
    model_id, folder, revision   the checkpoint, already fetched
    board_fd, slots, slot        the board, how many slots it has, and this process's own
    listener_fd                  engine: where it accepts front ends; front end: HTTP
    status_fd                    where to report
    engines                      front end: address of each engine
    first_slot                   of the engines of its generation; front ends have those after
    generation                   which load of the model it serves; 0 is the first
    journal_fd                   engine: where it writes down what is on its device
    suspects, refused            engine: what may have killed one before it, and what has twice
    """

    parent: int
    index: int
    config: Config
    model_id: str
    folder: str
    revision: str | None
    board_fd: int
    slots: int
    slot: int
    listener_fd: int
    status_fd: int
    engines: list[bytes]
    first_slot: int = 1
    generation: int = 0
    journal_fd: int = -1
    suspects: list[Fingerprint] = field(default_factory=list)
    refused: list[Fingerprint] = field(default_factory=list)

    def for_engine(self, index: int, device: str, listener_fd: int, journal_fd: int) -> Launch:
        """The same for one engine; engines have the first slots of their generation.

        Keys, certificates and their password are the front ends' business.
        """
        model = replace(self.config.model, device=device)
        config = replace(self.config, model=model, network=NetworkOptions())
        return replace(
            self,
            index=index,
            config=config,
            slot=self.first_slot + index,
            listener_fd=listener_fd,
            journal_fd=journal_fd,
        )

    def for_front_end(self, index: int) -> Launch:
        """The same for one front end; front ends have the slots after the engines."""
        return replace(self, index=index, slot=self.first_slot + len(self.engines) + index)

    def suspecting(self, suspects: list[Fingerprint], refused: list[Fingerprint]) -> Launch:
        """The same with what engines died with."""
        return replace(self, suspects=suspects, refused=refused)

    @property
    def lent_fds(self) -> list[int]:
        """The descriptors that the child inherits."""
        fds = (self.board_fd, self.listener_fd, self.status_fd, self.journal_fd)
        return [fd for fd in fds if fd >= 0]

    def reporting_to(self, status_fd: int) -> Launch:
        """The same with another status pipe."""
        return replace(self, status_fd=status_fd)

    def checkpoint(self) -> Checkpoint:
        """The checkpoint, read again from its folder.

        Raises CheckpointError.
        """
        loaded = load_checkpoint(
            Path(self.folder),
            task=task_of(self.config),
            pooling=pooling_of(self.config),
            allow_pickle=self.config.model.allow_pickle,
        )
        named = replace(loaded, model_id=self.model_id, revision=self.revision)
        return with_default_prompt(named, self.config)

    def board(self) -> Board:
        """The shared board."""
        return Board(self.board_fd, self.slots, SLOT_WORDS)

    def report(self, word: str) -> None:
        """Tell the supervisor; it may be gone."""
        with contextlib.suppress(OSError):
            os.write(self.status_fd, word.encode() + b"\n")


def tell(pipe: IO[bytes], launch: Launch) -> None:
    """Write the document to a child's standard input, and leave that open.

    A long list of suspects is more than a pipe holds by default: it is made larger, as whoever
    writes has others to see to while the child still starts.
    """
    document = msgspec.msgpack.encode(launch)
    message = _LENGTH.pack(len(document)) + document
    with contextlib.suppress(OSError, AttributeError):  # more than a user may have; not Linux
        if len(message) > PIPE_BYTES:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, len(message))
    pipe.write(message)
    pipe.flush()


def learn() -> Launch:
    """Read the document from standard input, once, at the start of a child."""
    (length,) = _LENGTH.unpack(_read_exactly(_LENGTH.size))
    launch = msgspec.msgpack.decode(_read_exactly(length), type=Launch)
    die_with(launch.parent)
    for fd in launch.lent_fds:
        os.set_inheritable(fd, False)  # a grandchild must not keep them open
    return launch


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where the kernel can.

    Elsewhere the end of standard input has to do; it needs a process that still listens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)


def complain(error: SetupError) -> int:
    """Say on stderr why this child cannot start; returns its exit status."""
    print(f"packhorse: error: {error}", file=sys.stderr)
    return SETUP_FAILED


def name_process(title: str) -> None:
    """What ps and top show."""
    with contextlib.suppress(ImportError):  # not on every system
        from setproctitle import setproctitle

        setproctitle(f"packhorse: {title}")


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(1)  # the supervisor is gone already
        data += piece
    return data
