"""Files that a long measurement will write: what stands against them is told before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from packhorse.errors import ConfigError


def check_outputs(*files: Path | None) -> None:
    """Make the folders of these files; None is passed over.

    Raises ConfigError for a file that could not be written.
    """
    for file in filter(None, files):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
        if file.is_dir():
            raise ConfigError(f"{file} is a folder; name a file")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigError(f"{file} cannot be written: permission denied")
