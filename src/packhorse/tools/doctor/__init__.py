"""``packhorse doctor``: what is slow about this machine and model, or about a script of yours.

It measures. Each finding has a figure, what it costs in texts/s, and what to change.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.tools.argument_types import above_zero
from packhorse.tools.doctor.script import AUTO, CALLS
from packhorse.tools.option_flags import (
    add_model_argument,
    add_settings,
    given_settings,
    read_settings,
)

if TYPE_CHECKING:
    from packhorse.tools.doctor.findings import Examination

__all__ = ["add_arguments", "run"]

CALL_SECONDS = 3.0
"""Of one call with all texts; there are some twenty calls."""

PATIENCE = 900.0
"""Seconds for one examination."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model or a script, the texts, the form of the output, the settings of model and engine."""
    add_model_argument(parser)
    parser.add_argument(
        "--script",
        metavar="FILE.py:NAME",
        help="examine this callable, which takes a list of texts or one text, and no model",
    )
    parser.add_argument(
        "--call",
        choices=CALLS,
        default=AUTO,
        help="give it a list of texts, or one text at a time; auto: by its first parameter",
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="your texts, one a line; ours without it"
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=CALL_SECONDS,
        metavar="S",
        help="of one call; a slower program is given fewer texts (default: %(default)g)",
    )
    parser.add_argument(
        "--timeout",
        type=above_zero,
        default=PATIENCE,
        metavar="S",
        help="give up after so many seconds (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    add_settings(parser, ("model", "engine"))


def run(arguments: argparse.Namespace) -> int:
    """Examine and print.

    Raises SetupError for what cannot be examined, ScriptError where the script fails.
    """
    import msgspec

    from packhorse.tools.doctor.diagnosis import diagnosis

    examination = _examined(arguments)
    if arguments.json:
        shown = msgspec.to_builtins(examination)
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print(diagnosis(examination))
    return 0


def _examined(arguments: argparse.Namespace) -> Examination:
    from packhorse.tools.doctor.sample_texts import sample_texts

    given = given_settings(arguments)
    texts = sample_texts(arguments.texts)
    if arguments.script is None:
        from packhorse.tools.doctor.examine_model import examine_model

        return examine_model(read_settings(arguments), texts, arguments.seconds)
    if given:
        raise ConfigError(f"--script examines a script: {', '.join(given)} would be for a model")
    from packhorse.tools.doctor.examine_script import examine_script
    from packhorse.tools.doctor.script import place_of

    place = place_of(arguments.script)
    return examine_script(place, arguments.call, texts, arguments.seconds, arguments.timeout)
