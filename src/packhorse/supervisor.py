"""Starts the processes of a server, replaces those that die, and ends them all.

    bind        the port first: if it is taken, nothing has been loaded yet
    start       engines and front ends at once; front ends answer /health with 503 meanwhile
    watch       a child's status pipe says that it is ready, and by its end that it is dead
    end         front ends finish what they have, then engines; a second signal ends all now

Children are started by exec, never by fork alone: no state of one process
leaks into another. Sockets are this process's and are lent, so a client can
connect while the process that will serve it is being replaced.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from packhorse import logs
from packhorse.channel.board import Board
from packhorse.channel.listener import address_of, listen
from packhorse.channel.vitals import Vitals
from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import Config, as_dict, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.launch import SLOT_WORDS, Launch, name_process, tell
from packhorse.metrics import GAUGES, READY, RESTARTS

logger = logging.getLogger(__name__)

STARTS_IN_A_ROW = 5
"""A child that dies so often, never having been ready for ``STEADY_SECONDS``, is given up."""

STEADY_SECONDS = 30.0
BACK_OFF_SECONDS = (0.0, 0.2, 1.0, 2.0)
"""Wait before the first, second, ... start of a row."""

FAULTY_TICKS = 30
"""An engine whose vitals show a fault for so many seconds on end is killed."""

DRAIN_SECONDS = 28.0
"""More than a front end takes at most; then it is killed."""

ENGINE_END_SECONDS = 5.0
