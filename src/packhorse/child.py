"""One place among a supervisor's children: the process in it, and how those before it fared."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

from packhorse.config import secret_variables
from packhorse.launch import STANDBY, Launch, tell

STARTS_IN_A_ROW = 5
"""A child that dies so often in a row is given up.

A row is broken by a process that stayed ready for ``STEADY_SECONDS``, and by
one that was ready and killed from outside: whoever kills what works does not
show that it cannot work.
"""

STEADY_SECONDS = 1.0

BACK_OFF_SECONDS = (0.0, 0.2, 1.0, 2.0)
"""How long to wait after the first, second, … death of a row."""


class Kind(StrEnum):
    """What a child does, in the words of the metrics."""

    ENGINE = "engine"
    FRONT_END = "front_end"


_MODULES = {Kind.ENGINE: "packhorse.engine.process", Kind.FRONT_END: "packhorse.server.process"}

_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""A front end shares the cores with others and the engine: no library gets a thread for each.

NumPy multiplies no matrices here, and without its pool `tokenizers` can take a
batch, which is how it frees the interpreter's lock.
"""


def environment_of(kind: Kind) -> dict[str, str]:
    """What a child inherits: no secret, which it is told of in its launch document if at all."""
    secret = secret_variables()
    environment = {name: value for name, value in os.environ.items() if name not in secret}
    return environment | (_ONE_THREAD if kind is Kind.FRONT_END else {})


@dataclass(frozen=True, slots=True)
class Place:
    """A process that has not been told what it is for; ``lent_fd`` is its own end of the pipe."""

    process: subprocess.Popen[bytes]
    status_fd: int
    lent_fd: int

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self.status_fd)


class Child:
    """A process that can be started again and again; times are those of time.monotonic().

    ready_since    when this process said that it is ready, or None
    was_ever_ready whether this one or a predecessor was
    start_at       when to start the next one, if none runs
    faulty_since   since when its vitals show a fault, or None
    was_stuck      whether it was killed for such a fault
    """

    def __init__(self, kind: Kind, launch: Launch, standbys: list[Place] | None = None) -> None:
        """``standbys`` is shared by children that any of its processes can stand in for."""
        self.kind = kind
        self.launch = launch
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_since: float | None = None
        self.was_ever_ready = False
        self.start_at = 0.0
        self.faulty_since: float | None = None
        self.was_stuck = False
        self._status_fd = -1
        self._standbys = [] if standbys is None else standbys  # one at most
        self._deaths = 0

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.launch.index}"

    def fileno(self) -> int:
        """The status pipe."""
        return self._status_fd

    def start(self) -> None:
        """Start a process here, or have the one that stands by take the place.

        Raises OSError when the system has no process to give: see ``put_off``.
        """
        place = self._take_standby() or self._spawn()
        self.process, self._status_fd = place.process, place.status_fd
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # dead already; its status pipe will say so
            tell(self.process.stdin, self.launch.reporting_to(place.lent_fd))

    def is_due_for_standby(self, now: float) -> bool:
        """Whether it has served long enough for another to be prepared beside it."""
        return (
            not self._standbys
            and self.ready_since is not None
            and now - self.ready_since >= STEADY_SECONDS
        )

    def prepare(self) -> None:
        """Have a process stand by for the next start, with its libraries imported.

        Raises OSError when the system has no process to give.
        """
        if not self._standbys:
            self._standbys.append(self._spawn(STANDBY))

    def dismiss(self) -> None:
        """End the process that stands by, if one does."""
        while self._standbys:
            standby = self._standbys.pop()
            standby.process.kill()
            standby.process.wait()
            standby.close()

    def _take_standby(self) -> Place | None:
        standby = self._standbys.pop() if self._standbys else None
        if standby is not None and standby.process.poll() is not None:  # killed meanwhile
            standby.close()
            return None
        return standby

    def _spawn(self, *arguments: str) -> Place:
        """A process that waits for its launch document; its status pipe is new.

        Raises OSError when the system has no process or no descriptor to give.
        """
        status_fd, lent = os.pipe()
        os.set_blocking(status_fd, False)
        try:
            process = subprocess.Popen(
                # -P: a file in the working directory that is called like a library is not imported.
                [sys.executable, "-P", "-m", _MODULES[self.kind], *arguments],
                stdin=subprocess.PIPE,
                stdout=2,  # standard output is the supervisor's
                pass_fds=self.launch.reporting_to(lent).lent_fds,
                env=environment_of(self.kind),
                process_group=0,  # Ctrl-C is for the supervisor: it ends its children in order
            )
        except BaseException:
            os.close(status_fd)
            raise
        finally:
            os.close(lent)
        return Place(process, status_fd, lent)

    def news(self) -> list[str] | None:
        """Lines that the process reported, or None when it is dead."""
        try:
            data = os.read(self._status_fd, 65536)
        except BlockingIOError:
            return []
        return data.decode().splitlines() if data else None

    def signal(self, number: int) -> None:
        """Send a signal if there is a process."""
        if self.process is not None:
            self.process.send_signal(number)

    def bury(self, now: float) -> int:
        """After its death: free what it had, decide when to start the next; the exit status."""
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        status = self.process.wait()
        os.close(self._status_fd)
        self._status_fd = -1
        if self._worked(status, now):
            self._deaths = 0
        self.put_off(now)
        self.process = self.ready_since = self.faulty_since = None
        self.was_stuck = False
        return status

    def put_off(self, now: float) -> None:
        """Decide when to start the next one, after a death or where none could be started."""
        self.start_at = now + BACK_OFF_SECONDS[min(self._deaths, len(BACK_OFF_SECONDS) - 1)]
        self._deaths += 1

    def _worked(self, status: int, now: float) -> bool:
        """Whether the process that died breaks a row of deaths."""
        if self.ready_since is None:
            return False
        return status == -signal.SIGKILL or now - self.ready_since >= STEADY_SECONDS

    @property
    def given_up(self) -> bool:
        """Whether starting it again makes no sense."""
        return not self.was_ever_ready or self._deaths >= STARTS_IN_A_ROW


def described(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
