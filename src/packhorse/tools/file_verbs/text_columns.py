"""From flags to the columns of one text or of two."""

from __future__ import annotations

from packhorse.errors import ConfigError


def two_columns(first: str, second: str, flags: str) -> tuple[str, str]:
    """Both names. Raises ConfigError, naming the ``flags``, where they are one."""
    if first == second:
        raise ConfigError(f"{flags} must be two columns")
    return first, second
