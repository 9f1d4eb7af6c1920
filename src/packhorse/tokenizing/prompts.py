"""A prompt's tokens at the start of sequences, where a model's pooling leaves them out."""

from __future__ import annotations

import dataclasses

import numpy as np

from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.sentence import SentenceModules
from packhorse.tokenizing.tokenizer import Tokenizer


def tokens_left_out(tokenizer: Tokenizer, sentence: SentenceModules, prompt: str) -> int:
    """How many tokens a text with this prompt begins with that are not pooled: mostly none.

    As sentence-transformers counts them: those of the prompt alone, special tokens included, but
    for a special token at its end. A text may go on within the prompt's last token, which is left
    out all the same.
    """
    if sentence.pools_prompt or not prompt:
        return 0
    ids = tokenizer.encode([sentence.text_with_prompt("", prompt)]).input_ids
    last = tokenizer.library.get_added_tokens_decoder().get(int(ids[-1]))
    return len(ids) - (1 if last is not None and last.special else 0)


def pooled_after(sequences: Sequences, tokens: int, direction: str = "right") -> Sequences:
    """The sequences, pooled from their token ``tokens`` on; 0 for all of them as they are.

    Raises ValidationError for a sequence without further tokens, and for one that was cut at its
    left, where its prompt was.
    """
    if not tokens:
        return sequences
    if direction.lower() == "left" and sequences.truncated.any():
        raise ValidationError(
            f"inputs[{int(sequences.truncated.argmax())}] is too long, and its left end is "
            "a prompt that the model leaves out when it pools: shorten it, or cut it at its right"
        )
    short = sequences.lengths <= tokens
    if short.any():
        raise ValidationError(
            f"inputs[{int(short.argmax())}] has no token besides its prompt, which the "
            "model leaves out when it pools: shorten the prompt"
        )
    return dataclasses.replace(sequences, marks=np.full(len(sequences), tokens, np.int32))
