"""One setting: its default, its help, and how text becomes its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

AUTO = "auto"


def boolean(text: str) -> bool:
    """true or false; raises ValueError, as all of these do."""
    words = dict.fromkeys(("true", "1", "yes", "on"), True)
    words |= dict.fromkeys(("false", "0", "no", "off"), False)
    if text.lower() not in words:
        raise ValueError("expected true or false")
    return words[text.lower()]


def whole(text: str) -> int:
    """0 or more."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


def tcp_port(text: str) -> int:
    """A TCP port."""
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise ValueError("expected a port from 0 to 65535")
    return int(text)


def positive_or_auto(text: str) -> int | str:
    """The same, or "auto"."""
    return AUTO if text == AUTO else positive(text)


def duration(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ValueError("expected a number above 0")
    return number


def positive_or_none(text: str) -> int | None:
    """A whole number of at least 1, or "none"."""
    return None if text == "none" else positive(text)


def duration_or_auto(text: str) -> float | str:
    """A number above 0, or "auto"."""
    return AUTO if text == AUTO else duration(text)


def http_url(text: str) -> str:
    """An address that begins with http:// or https://."""
    if not text.startswith(("http://", "https://")):
        raise ValueError("expected an address such as http://localhost:4318")
    return text


def option(
    default: Any,
    help_text: str,
    parse: Callable[[str], Any] = str,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    tei: bool = False,
    repeatable: bool = False,
    in_code: tuple[Any, ...] = (),
    also: tuple[str, ...] = (),
) -> Any:
    """A field of an options class: its default, its help, and how text becomes its value.

    ``tei``: text-embeddings-inference has this setting under the same name.
    ``repeatable``: the flag may be given several times, which is the same as commas between.
    ``in_code``: values that no text means, for callers of the library.
    ``also``: other spellings of the flag, as users of other servers know it.
    """
    return field(
        default=default,
        metadata={
            "help": help_text,
            "parse": parse,
            "choices": choices,
            "secret": secret,
            "tei": tei,
            "repeatable": repeatable,
            "in_code": in_code,
            "also": also,
        },
    )
