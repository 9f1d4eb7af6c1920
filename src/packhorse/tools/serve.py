"""``packhorse serve``: the server."""

from __future__ import annotations

import argparse

from packhorse.config import SECTIONS
from packhorse.tools.option_flags import add_model_argument, add_settings, read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, and every setting."""
    add_model_argument(parser)
    add_settings(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises SetupError for settings that do not fit each other or this machine.
    """
    config = read_settings(arguments)
    from packhorse import supervisor

    return supervisor.run(config)
