"""``packhorse serve``: the server."""

from __future__ import annotations

import argparse

from packhorse.config import SECTIONS, Config
from packhorse.server.listen import bound
from packhorse.tools.option_flags import add_model_argument, add_settings, read_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, and every setting."""
    add_model_argument(parser)
    add_settings(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises SetupError for settings that do not fit each other or this machine.
    """
    return serve(read_settings(arguments))


def serve(config: Config) -> int:
    """Serve; the exit status.

    The socket is bound first: that it is taken is told before a library is imported or a model
    looked for, which takes seconds on a busy machine.

    Raises SetupError, as ``supervisor.run`` does.
    """
    with bound(config) as http:
        from packhorse import supervisor

        return supervisor.run(config, http)
