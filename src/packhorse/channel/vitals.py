"""Whether a process is alive and gets on: it writes three words, everybody may look.

A dead process is noticed by its sockets. These words tell of one that still
has them open: stopped, stuck in a forward pass, or not ready yet.
"""

from __future__ import annotations

from packhorse.channel.board import Board

WORDS = 3
_BEAT, _WAITING_SINCE, _PATIENCE = range(WORDS)

BEAT_SECONDS = 0.5
"""A process writes at least that often; see ``SILENCE_SECONDS``."""

SILENCE_SECONDS = 4.0
"""A process that has not written for so long is not ready."""


class Vitals:
    """The last words of a slot. Times are those of time.monotonic()."""

    def __init__(self, board: Board, slot: int) -> None:
        self._words = board.slots[slot][-WORDS:]

    def clear(self) -> None:
        """No process is there, or it is not ready yet."""
        for word in range(WORDS):
            self._words[word] = 0.0

    def beat(self, now: float, waiting_since: float, patience: float) -> None:
        """By the process itself, each time it looks around.

        waiting_since  since when an engine waits for its device to finish anything; 0 when not
        patience       seconds after which such a wait is a fault
        """
        self._words[_BEAT] = now
        self._words[_WAITING_SINCE] = waiting_since
        self._words[_PATIENCE] = patience

    def fault(self, now: float) -> str | None:
        """What is wrong, or None."""
        beat, waiting_since, patience = self._words
        if beat == 0.0:
            return "is not ready yet"
        if now - beat > SILENCE_SECONDS:
            return f"has not responded for {now - beat:.0f} s"
        if waiting_since and now - waiting_since > patience:
            return f"has been stuck in a batch for {now - waiting_since:.0f} s"
        return None
