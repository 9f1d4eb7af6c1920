"""The table of settings as flags of a command, and the flags as a Config."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import Field
from pathlib import Path
from typing import Any

from packhorse.config import (
    Config,
    default_of,
    flag_of,
    is_switch,
    load_config,
    options,
    variables_of,
)
from packhorse.errors import ConfigError

_PREFIX = "config."
"""Of the names under which argparse keeps settings, apart from a command's own arguments."""


def add_settings(
    parser: argparse.ArgumentParser, sections: Collection[str], without: Collection[str] = ()
) -> None:
    """One flag for every setting of these sections, and --config for a file of settings.

    Values stay text here: ``load_config`` reads them as it reads the environment.
    """
    groups = {name: parser.add_argument_group(f"{name} settings") for name in sections}
    for section, setting in options():
        if section in groups and setting.name not in without:
            _add_flag(groups[section], setting)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings, by the names of the flags; flags and variables go first",
    )


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """The model as a positional argument: the same as --model-id."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the same as --model-id MODEL")


def read_settings(arguments: argparse.Namespace) -> Config:
    """The Config that flags, environment and file give.

    Raises ConfigError for a value that is not accepted, and for two different models.
    """
    return load_config(given_settings(arguments), file=arguments.config)


def given_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The flags alone, by the names of their settings, as text.

    Raises ConfigError for two different models.
    """
    given = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX) and value is not None
    }
    given = {n: ",".join(v) if isinstance(v, list) else v for n, v in given.items()}
    positional = getattr(arguments, "model", None)
    if positional is not None and given.setdefault("model_id", positional) != positional:
        raise ConfigError(f"both {positional} and --model-id {given['model_id']} were given")
    return given


def _add_flag(group: argparse._ArgumentGroup, setting: Field[Any]) -> None:
    flag, name = flag_of(setting), _PREFIX + setting.name
    if not is_switch(setting):
        action = "append" if setting.metadata["repeatable"] else "store"
        group.add_argument(
            flag,
            *setting.metadata["also"],
            dest=name,
            action=action,
            metavar=_metavar(setting),
            help=_help(setting),
        )
        return
    group.add_argument(
        flag, dest=name, nargs="?", const="true", metavar="true|false", help=_help(setting)
    )
    group.add_argument(
        flag.replace("--", "--no-", 1),
        dest=name,
        action="store_const",
        const="false",
        help=f"the same as {flag} false",
    )


def _metavar(setting: Field[Any]) -> str:
    choices: tuple[str, ...] = setting.metadata["choices"]
    return "|".join(choices) if choices else setting.name.rpartition("_")[2].upper()


def _help(setting: Field[Any]) -> str:
    default = default_of(setting)
    shown = "" if default is None else f" Default: {str(default).lower()}."
    text = f"{setting.metadata['help']}{shown} Environment: {', '.join(variables_of(setting))}."
    return text.replace("%", "%%")
