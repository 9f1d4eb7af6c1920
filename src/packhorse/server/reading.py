"""How much of a text is read, in the words of OpenAI's, Cohere's, Jina's and vLLM's clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.tokenizing.tokenizer import Direction, Tokenizer

Truncation = Literal["right", "left", "Right", "Left"]

TO_THE_LIMIT = -1
"""Of ``truncate_prompt_tokens``: as many tokens as the model reads."""


class ReadingOptions(msgspec.Struct, kw_only=True):
    """What becomes of texts that are too long. Each may be null, which is as if it were not there.

    truncate                whether they are cut; null for the server's --auto-truncate
    truncation_direction    which end is cut off; null for the tokenizer's own, mostly the right
    truncation_side         vLLM's word for it
    truncate_prompt_tokens  vLLM's: cut to so many tokens, special tokens included; -1: to as many
                            as the model reads
    """

    truncate: bool | None = None
    truncation_direction: Truncation | None = None
    truncation_side: Truncation | None = None
    truncate_prompt_tokens: int | None = None

    @property
    def cuts(self) -> bool | None:
        """Whether what is too long is cut; None where the request does not say."""
        return self.truncate if self.truncate_prompt_tokens is None else True

    @property
    def direction(self) -> Truncation | None:
        """Which end is cut off; None where the request does not say."""
        return self.truncation_direction or self.truncation_side

    def most_tokens(self, tokenizer: Tokenizer) -> int | None:
        """The limit that the request sets, None for the model's own. Raises ValidationError."""
        most = self.truncate_prompt_tokens
        if most is None or most == TO_THE_LIMIT:
            return None
        if not 1 <= most <= tokenizer.max_length:
            raise ValidationError(
                f"`truncate_prompt_tokens` is {most}; send 1 to {tokenizer.max_length}, or "
                f"{TO_THE_LIMIT} for as many tokens as the model reads"
            )
        return most

    def encoding(
        self,
        tokenizer: Tokenizer,
        inputs: Sequence[Any],
        auto_truncate: bool,
        most_of_second: int | None = None,
    ) -> Callable[[], Sequences] | None:
        """How texts and pairs are tokenised; None for the tokenizer's own way.

        ``most_of_second`` is how many tokens of a pair's second text are read. Raises
        ValidationError.
        """
        most = self.most_tokens(tokenizer)
        if most is None and most_of_second is None:
            return None
        side: dict[str, Direction] = {"right": "right", "left": "left"}
        return partial(
            tokenizer.encode,
            inputs,
            truncate=auto_truncate if self.cuts is None else self.cuts,
            direction=None if self.direction is None else side[self.direction.lower()],
            most=most,
            most_of_second=most_of_second,
        )
