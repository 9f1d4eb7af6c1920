"""What is reported on: JSON files of ladder, doctor, profile and tune, each known by its keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.bench.results import Ladder
from packhorse.tools.doctor.findings import Examination
from packhorse.tools.profiler.roofline import Profile
from packhorse.tools.tune.results import Tuning

Result = Ladder | Examination | Profile | Tuning

KINDS: Mapping[str, type[Any]] = {
    "rungs": Ladder,
    "findings": Examination,
    "operations": Profile,
    "trials": Tuning,
}
"""A key that only this kind's JSON has, and the class to read it by."""


def read(file: Path) -> Result:
    """The result in a file.

    Raises ConfigError for a file that is missing or none of these.
    """
    try:
        content = msgspec.json.decode(file.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    keys = content.keys() if isinstance(content, dict) else ()
    kind = next((kind for key, kind in KINDS.items() if key in keys), None)
    if kind is None:
        raise ConfigError(
            f"{file} is none of what `bench ladder`, `doctor`, `profile` and `tune` write with "
            "--json or -o"
        )
    try:
        result: Result = msgspec.convert(content, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file} is of another version of packhorse: {error}") from None
    return result
