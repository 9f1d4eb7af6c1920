"""Whether there is room for a request: all of it is let in, or nothing.

Each front end counts what it has in flight in its own words of the board and
adds up the words of all before it lets something in. Two that do so in the
same microsecond do not see each other, so the limit is overshot by at most
one request of each other front end.

Tokens are not known before tokenising, and tokenising is work that refused
requests must not cost. So they are reserved by an estimate and settled after.

A request with a deadline that it would spend waiting is refused at once: it
can be sent elsewhere, and the device works for those that it can still serve.
"""

from __future__ import annotations

import math
import time

from packhorse.channel.board import Board
from packhorse.errors import OverloadedError, ValidationError
from packhorse.metrics import INPUTS_IN_FLIGHT, TOKENS_IN_FLIGHT
from packhorse.server.backlog import Backlog
from packhorse.server.pending import Pending
from packhorse.server.terms import ANYONE, Terms

USABLE_SHARE = 0.8
"""Of the time left, that a request may be predicted to wait: predictions are a little wrong."""

_INPUTS, _TOKENS = INPUTS_IN_FLIGHT.first, TOKENS_IN_FLIGHT.first


class Admission:
    """One front end's view.

    limit       inputs in flight in all front ends together
    max_length  tokens of the longest input, for the estimate
    """

    def __init__(self, board: Board, slot: int, limit: int, max_length: int) -> None:
        self._own = board.slots[slot]
        self._all = board.slots
        self._limit = limit
        self._max_length = max_length
        self._backlog = Backlog(board)
        # Characters and tokens seen so far; English has about 4 a token.
        self._characters, self._tokens = 4000.0, 1000.0
        self._own[_INPUTS] = self._own[_TOKENS] = 0.0  # a predecessor's, which is dead

    def reserve(self, inputs: int, characters: int, terms: Terms = ANYONE) -> int:
        """Let a request in; returns the estimate of its tokens.

        Raises OverloadedError, or ValidationError for a request that never fits.
        """
        self._check_room(inputs)
        if terms.deadline < math.inf:
            self._check_deadline(terms)
        tokens = int(characters * self._tokens / self._characters) + 2 * inputs
        tokens = min(tokens, inputs * self._max_length)
        self._own[_INPUTS] += inputs
        self._own[_TOKENS] += tokens
        self._backlog.add(terms, tokens)
        return tokens

    def reserve_thread(self, inputs: int) -> None:
        """Let in what needs no engine: it counts as well, but has no tokens that others wait for.

        Raises as ``reserve`` does.
        """
        self._check_room(inputs)
        self._own[_INPUTS] += inputs

    def _check_room(self, inputs: int) -> None:
        if inputs > self._limit:
            raise ValidationError(
                f"{inputs} inputs in one request are more than the {self._limit} that may be in "
                "flight (--max-concurrent-requests): send fewer at once"
            )
        in_flight = sum([slot[_INPUTS] for slot in self._all])
        if in_flight + inputs > self._limit:
            raise OverloadedError(
                f"{in_flight:.0f} inputs wait or run already and this request has {inputs}; "
                f"at most {self._limit} may at once (--max-concurrent-requests)",
                self._backlog.drain(),
            )

    def settle(self, estimate: int, tokens: int, characters: int) -> None:
        """The tokens are known now; ``characters`` is 0 if there is nothing to learn from them,
        as inputs were cut."""
        self._own[_TOKENS] += tokens - estimate
        if not characters:
            return
        self._characters += characters
        self._tokens += tokens

    def release(self, pending: Pending) -> None:
        """The request is answered, failed or cancelled."""
        self._own[_INPUTS] -= len(pending.inputs)  # as was reserved, whatever became of them
        self._own[_TOKENS] -= pending.tokens
        if pending.estimate:
            self._backlog.remove(pending.terms, pending.estimate)

    def _check_deadline(self, terms: Terms) -> None:
        """Raise OverloadedError if the request would spend its time waiting."""
        wait, left = self._backlog.wait(terms), terms.deadline - time.monotonic()
        if wait > left * USABLE_SHARE:
            raise OverloadedError(
                f"the request would wait for about {wait:.1f} s and has {max(left, 0.0):.1f} s "
                "left: send it later, or allow more time",
                self._backlog.drain(),
            )
