"""``packhorse serve``: the server."""

from __future__ import annotations

import argparse

from packhorse.config import SECTIONS, resolve
from packhorse.hardware import detect
from packhorse.tools.option_flags import add_model_argument, add_settings, read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_settings(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises SetupError for settings that do not fit each other or this machine.
    """
    config = read_settings(arguments)
    resolve(config, detect())  # a GPU that is not there is told before anything is loaded
    from packhorse import supervisor

    code: int = supervisor.run(config)
    return code
