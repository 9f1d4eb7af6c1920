"""How long a request would wait, predicted from what is in flight and how fast engines are.

Engines say on the board how many tokens a second they work off and how many
clients wait. Clients take turns, so a request waits for what its own client
has before it, as often as there are clients, but never longer than for all
that is in flight. How much its client has is known of this front end alone;
connections are spread evenly, so its share of the whole is taken to be the same.
"""

from __future__ import annotations

from packhorse.channel.board import Board
from packhorse.metrics import PREDICTED_RATE, TOKENS_IN_FLIGHT, WAITING_CLIENTS
from packhorse.server.terms import Terms

LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""Bounds of what a refused client is told to wait."""

_Shares = dict[int, dict[int, int]]
"""Tokens by client and priority."""


class Backlog:
    """One front end's view. Tokens are those of the estimate, from ``add`` to ``remove``."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._shares: _Shares = {}
        self._tokens = 0

    def add(self, terms: Terms, tokens: int) -> None:
        """A request is let in."""
        share = self._shares.setdefault(terms.client, {})
        share[terms.priority] = share.get(terms.priority, 0) + tokens
        self._tokens += tokens

    def remove(self, terms: Terms, tokens: int) -> None:
        """The same request is over."""
        share = self._shares[terms.client]
        share[terms.priority] -= tokens
        self._tokens -= tokens
        if not share[terms.priority]:
            del share[terms.priority]
            if not share:
                del self._shares[terms.client]

    def wait(self, terms: Terms) -> float:
        """Seconds until a request that comes now would be begun; 0 while nothing is known."""
        share = self._shares.get(terms.client)
        rate = self._board.total(PREDICTED_RATE.first)
        if not share or rate <= 0:
            return 0.0
        before = sum([n for priority, n in share.items() if priority >= terms.priority])
        in_flight = self._board.total(TOKENS_IN_FLIGHT.first)
        own = in_flight * before / self._tokens
        return min(in_flight, own * max(1.0, self._board.total(WAITING_CLIENTS.first))) / rate

    def drain(self) -> float:
        """Seconds until all that is in flight is done, within the bounds."""
        rate = self._board.total(PREDICTED_RATE.first)
        seconds = self._board.total(TOKENS_IN_FLIGHT.first) / rate if rate > 0 else 0.0
        return min(max(seconds, LEAST_SECONDS), MOST_SECONDS)
