"""What vLLM's requests to pooling models may say beside their inputs, whatever the route."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from packhorse.server.reading import ReadingOptions
from packhorse.server.terms import Terms

MOST = 127
"""Of a priority, either way: it travels as one byte."""


class PoolingParameters(ReadingOptions, kw_only=True):
    """They may be null, which is as if they were not there; see ``ReadingOptions``, too.

    model, user     accepted and not read: there is one model
    add_special_tokens  they are always added to texts, and never to token ids
    use_activation  false for logits, or for vectors as the model's folder makes them
    activation      its older name
    priority        lower goes first among the requests of one client; null or 0: as the header
                    x-priority says
    request_id      stands in the answer's id
    """

    model: str | None = None
    user: str | None = None
    add_special_tokens: Literal[True] | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    priority: int | None = None
    request_id: str | None = None

    @property
    def is_raw(self) -> bool:
        """Whether what the model gives is wanted as it is."""
        said = self.activation if self.use_activation is None else self.use_activation
        return said is False

    def terms(self, of_headers: Terms) -> Terms:
        """The terms of the headers, with the priority of the body if that has one."""
        if not self.priority:
            return of_headers
        return replace(of_headers, priority=-max(-MOST, min(MOST, self.priority)))
