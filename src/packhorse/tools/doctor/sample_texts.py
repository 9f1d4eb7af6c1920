"""The texts that a program is examined with: the user's own, or short and long ones of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packhorse.errors import ConfigError
from packhorse.tools.bench.workloads import SPREAD_TEXTS

MOST = 64
"""Texts of an examination: enough for two full batches of 32."""


def sample_texts(file: Path | None) -> list[str]:
    """At most MOST texts: lines of the file, spread over all of it; ours without one.

    Raises ConfigError when the file is missing, not UTF-8, or has fewer than 2 texts.
    """
    if file is None:
        return our_texts()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"--texts {file} is missing") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--texts {file} is not UTF-8: byte {error.start}") from None
    texts = [line for line in lines if line.strip()]
    if len(texts) < 2:
        raise ConfigError(f"--texts {file} has {len(texts)} texts; give at least 2, one a line")
    return spread(texts, MOST)


def our_texts() -> list[str]:
    """MOST distinct texts of one to some forty words."""
    pairs = [f"{first} {second}" for first in SPREAD_TEXTS for second in SPREAD_TEXTS]
    chosen = spread(pairs, MOST - len(SPREAD_TEXTS))
    together = [*SPREAD_TEXTS, *chosen]
    return [together[(37 * i) % len(together)] for i in range(len(together))]  # lengths in disorder


def spread(texts: Sequence[str], count: int) -> list[str]:
    """``count`` of them at even distances, or all."""
    if len(texts) <= count:
        return list(texts)
    return [texts[i * len(texts) // count] for i in range(count)]
