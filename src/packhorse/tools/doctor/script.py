"""The user's callable: where it is, how it is loaded, and how it wants its texts."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packhorse.errors import ConfigError

AUTO, LIST, TEXT = "auto", "list", "text"
CALLS = (AUTO, LIST, TEXT)
"""How the callable is called: with a list of texts, or with one text at a time."""

_NAMES_OF_ONE = {"text", "sentence", "document", "doc", "review", "query", "string", "message", "s"}
"""Names of a parameter without annotation that mean one text."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file and the dotted name of a callable in it.

    folder  that of the file, from before the script ran: it may go elsewhere
    """

    file: Path
    name: str
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.file.resolve().parent)

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def place_of(text: str) -> Place:
    """What FILE.py:NAME means.

    Raises ConfigError for another form or a file that is not there.
    """
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"--script {text}: write FILE.py:NAME, for example predict.py:predict")
    if not Path(file).is_file():
        raise ConfigError(f"--script {text}: there is no file {file}")
    return Place(Path(file), name)


def load(place: Place) -> Callable[..., Any]:
    """Import the file, its folder first in the path, and get the callable.

    Raises ConfigError when it is not there or not callable; whatever the
    script raises comes out as it is.
    """
    file = place.file.resolve()
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in place.name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"--script {place}: {place.file} has no {place.name}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"--script {place}: {place.name} cannot be called")
    return found  # type: ignore[no-any-return]


def takes_one_text(function: Callable[..., Any]) -> bool:
    """By the annotation of its first parameter, else by that parameter's name."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    if first.annotation is not inspect.Parameter.empty:
        return first.annotation is str or first.annotation == "str"
    return first.name in _NAMES_OF_ONE


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded callable that can be given any number of texts."""

    function: Callable[..., Any]
    calls: str

    @classmethod
    def of(cls, function: Callable[..., Any], calls: str) -> Program:
        """``calls`` is one of CALLS.

        Raises ConfigError for a coroutine function: nothing runs when it is called.
        """
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                "--script: the callable is asynchronous; name a plain function that runs it, with "
                "asyncio.run for one"
            )
        if calls == AUTO:
            calls = TEXT if takes_one_text(function) else LIST
        return cls(function, calls)

    def __call__(self, texts: Sequence[str]) -> None:
        """Answer all texts; the answers are dropped, those that are made when asked for, too."""
        for given in [list(texts)] if self.calls == LIST else texts:
            answer = self.function(given)
            if isinstance(answer, Iterator):
                deque(answer, maxlen=0)
