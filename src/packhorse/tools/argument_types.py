"""Numbers as arguments of commands: types for argparse, which say what they expect."""

from __future__ import annotations

from argparse import ArgumentTypeError

MOST_SECONDS = 1e9


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise ArgumentTypeError("expected a whole number of at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """A number above 0, such as seconds."""
    number = _number(text)
    if not 0 < number < MOST_SECONDS:
        raise ArgumentTypeError("expected a number above 0")
    return number


def at_least_zero(text: str) -> float:
    """0 or more."""
    number = _number(text)
    if not 0 <= number < MOST_SECONDS:
        raise ArgumentTypeError("expected a number of at least 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
