"""What the engine's device has in use, looked at once a second."""

from __future__ import annotations

import os
from typing import Protocol

from packhorse.metrics import DEVICE_MEMORY, PADDING_TOKENS

SECONDS = 1.0

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Engine(Protocol):
    @property
    def padding_tokens(self) -> int: ...

    def memory(self) -> dict[str, int]: ...


class DeviceGauges:
    """For one engine and its slot of the board."""

    def __init__(self, engine: _Engine, slot: memoryview[float]) -> None:
        self._engine = engine
        self._slot = slot
        self._due = 0.0
        self._padding = engine.padding_tokens

    def observe(self, now: float) -> None:
        """Count what is new, if it is time; ``now`` is time.monotonic()."""
        if now < self._due:
            return
        self._due = now + SECONDS
        padding = self._engine.padding_tokens
        self._slot[PADDING_TOKENS.first] += padding - self._padding
        self._padding = padding
        memory = self._engine.memory()
        for kind, bytes_ in (
            ("used", memory.get("device_memory_used", 0)),
            ("total", memory.get("device_memory_total", 0)),
            ("reserved", memory.get("device_memory_reserved", 0)),
            ("process", _resident()),
        ):
            self._slot[DEVICE_MEMORY.word(kind)] = bytes_


def _resident() -> int:
    """Bytes of this process in the machine's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE
