"""The process of one engine: loads and warms up while front ends wait, then runs its loop.

It imports no HTTP library.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING

from packhorse import logs
from packhorse.busy_polling import polls_busily
from packhorse.channel.channel import PENDING_LIMIT
from packhorse.channel.journal import Journal
from packhorse.channel.vitals import Vitals
from packhorse.engine.loop import DeviceBrokenError, EngineLoop
from packhorse.engine.quarantine import Quarantine
from packhorse.errors import SetupError
from packhorse.hardware import available_cpus
from packhorse.launch import CLEARED, DEVICE_BROKEN, STANDBY, Launch, complain, learn, name_process

if TYPE_CHECKING:
    from packhorse.engine.engine import Engine

logger = logging.getLogger(__name__)

UNREAD_ANSWERS = 4
"""A front end never asks for more than ``answer_limit`` at a time, apart from small answers and
what nobody waits for any more. One that leaves as many times that unread does not work."""


def main() -> int:
    """Load, say so, run. The exit status tells the supervisor what went wrong."""
    if STANDBY in sys.argv[1:]:
        name_process("standby, importing")
        # PyTorch takes seconds to import. Nothing is computed, and no device is touched.
        import packhorse.engine.engine  # noqa: F401

        name_process("standby engine")
    launch = learn()
    name_process(f"engine {launch.index} ({launch.config.model.device})")
    server = launch.config.server
    logs.configure(server.log_level, f"engine {launch.index}", server.json_output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor's business
    board = launch.board()
    vitals = Vitals(board, launch.slot)
    try:
        engine = _loaded(launch)
    except SetupError as error:
        return complain(error)
    accepting = socket.socket(fileno=launch.listener_fd)
    loop = EngineLoop(
        engine,
        accepting,
        board.slots[launch.slot],
        vitals,
        polls_busily=polls_busily(launch.config, available_cpus()),
        unread_limit=max(PENDING_LIMIT, UNREAD_ANSWERS * server.answer_limit),
    )
    loop.end_with(sys.stdin.fileno())
    signal.signal(signal.SIGTERM, lambda *_: loop.end())
    launch.report("ready")
    try:
        loop.run()
    except DeviceBrokenError as error:
        logger.critical("%s", error, exc_info=error)
        return DEVICE_BROKEN
    finally:
        vitals.clear()
    engine.close()
    return 0


def _loaded(launch: Launch) -> Engine:
    """Raises SetupError."""
    # Imports torch, which takes seconds: not before a wrong launch is found out.
    from packhorse.engine.engine import Engine

    engine = Engine.load(launch.config, launch.checkpoint())
    engine.warm_up()
    engine.guard(
        Journal(launch.journal_fd),
        Quarantine(
            launch.suspects,
            launch.refused,
            lambda mark: launch.report(f"{CLEARED} {mark[0]} {mark[1]}"),
        ),
    )
    gc.collect()
    gc.freeze()  # what is loaded stays: the collector need not look at it again
    return engine


if __name__ == "__main__":
    sys.exit(main())
