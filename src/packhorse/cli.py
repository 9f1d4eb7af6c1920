"""The command line: ``packhorse serve``, ``classify``, ``bench``, ``doctor`` and the others.

Exit codes: 0 done; 1 what was asked for failed; 2 it could not begin, or was
asked for wrongly; 130 interrupted (Ctrl-C); 141 the reader of the output went
away. Errors are one line on standard error.

A command is imported when it is the one that runs: no other command's
libraries, and torch never for ``--help``, slow down the start.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from packhorse import __version__
from packhorse.errors import PackhorseError, SetupError

DONE, FAILED, NOT_BEGUN, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class CommandModule(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code. Raises PackhorseError."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table: a name, one line of help, and the module to import."""

    name: str
    summary: str
    module: str

    def load(self) -> CommandModule:
        return cast(CommandModule, importlib.import_module(self.module))


COMMANDS = (
    Command("serve", "serve a model over HTTP", "packhorse.tools.serve"),
    Command("classify", "label every row of a file", "packhorse.tools.file_verbs.classify"),
    Command(
        "token-classify",
        "find the entities in every row of a file",
        "packhorse.tools.file_verbs.token_classify",
    ),
    Command(
        "fill-mask",
        "fill the masks in every row of a file",
        "packhorse.tools.file_verbs.fill_mask",
    ),
    Command("embed", "embed every row of a file", "packhorse.tools.file_verbs.embed"),
    Command(
        "embed-sparse",
        "embed every row of a file sparsely",
        "packhorse.tools.file_verbs.embed_sparse",
    ),
    Command(
        "rerank",
        "score the document of every row of a file for a query",
        "packhorse.tools.file_verbs.rerank",
    ),
    Command(
        "zero-shot",
        "label every row of a file with labels of your own",
        "packhorse.tools.file_verbs.zero_shot",
    ),
    Command(
        "similarity",
        "compare the text of every row of a file with another",
        "packhorse.tools.file_verbs.similarity",
    ),
    Command("bench", "measure speed, rung by rung", "packhorse.tools.bench"),
    Command("doctor", "find what is slow, and what it costs", "packhorse.tools.doctor"),
    Command("profile", "show where a forward pass spends its time", "packhorse.tools.profiler"),
    Command("tune", "find settings for a latency or throughput target", "packhorse.tools.tune"),
    Command("report", "show what was measured as one HTML page", "packhorse.tools.report"),
    Command("info", "show this machine and a model", "packhorse.tools.info"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Wrong usage ends in SystemExit, as is argparse's way.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    command = _command_in(argv)
    parser = _parser(command)
    arguments, words = parser.parse_known_args(argv)
    if words:
        from packhorse.tools.unknown_flags import unknown

        parser.error(unknown(words))
    if command is None:
        parser.print_help(sys.stderr)
        return NOT_BEGUN
    return _run(command, arguments)


def _command_in(argv: Sequence[str]) -> Command | None:
    """The command that is named first."""
    named = next((word for word in argv if not word.startswith("-")), None)
    return next((command for command in COMMANDS if command.name == named), None)


def _parser(chosen: Command | None) -> argparse.ArgumentParser:
    """All commands by name; the arguments of the chosen one."""
    parser = argparse.ArgumentParser(
        prog="packhorse",
        description="Fast, exact inference for encoder transformers.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"packhorse {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        below = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            allow_abbrev=False,
        )
        if command is chosen:
            command.load().add_arguments(below)
    return parser


def _run(command: Command, arguments: argparse.Namespace) -> int:
    try:
        code = command.load().run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # Standard output is flushed once more at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SetupError as error:
        return _failed(str(error), NOT_BEGUN)
    except PackhorseError as error:
        return _failed(str(error), FAILED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _failed(f"{error.strerror or error}{where}", FAILED)
    return code


def _failed(message: str, code: int) -> int:
    print(f"packhorse: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _interrupted() -> int:
    print("packhorse: interrupted", file=sys.stderr)
    if threading.active_count() > 1:
        # A thread within torch cannot be stopped, and dies loudly when the interpreter ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
