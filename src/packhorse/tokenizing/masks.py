"""Masks in texts, and what they are filled with, as Transformers' fill-mask pipeline does it.

The rules are those of pipelines/fill_mask.py: a softmax over the vocabulary at each mask, the
likeliest tokens or those of the caller's, and the text with each of them in the mask's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokenizers

from packhorse.checkpoint import read_json
from packhorse.errors import CheckpointError, ValidationError
from packhorse.postprocess import softmax
from packhorse.request import Float32Array, Int32Array, Sequences
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tokenizing.tokenizer import Tokenizer

TOP_K = 5
"""How many tokens are given for a mask unless the caller says."""

_MASK_TOKENS = ("[MASK]", "<mask>")
"""What it is called where tokenizer_config.json does not say."""

_CLEANED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
"""What ``clean_up_tokenization_spaces`` means, in order."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A token in the place of a mask.

    score      its probability there
    token      its id
    token_str  as text
    sequence   the text with it; other masks stay
    """

    score: float
    token: int
    token_str: str
    sequence: str


Fills = list[list[Fill]]
"""For each mask of a text the tokens that fill it, likeliest first."""


@dataclass(frozen=True, slots=True)
class MaskedTexts:
    """N tokenised texts, one sequence for each of their masks, which it marks.

    sequences  of a text that was cut the first says so
    counts     int32 (N,): masks of each text
    """

    sequences: Sequences
    counts: Int32Array

    @property
    def text_of(self) -> list[int]:
        """The text that each sequence is of."""
        return np.repeat(np.arange(len(self.counts)), self.counts).tolist()


class Masks:
    """Finds and fills the masks of texts for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises CheckpointError where the tokenizer has no mask token."""
        path = tokenizer.folder / "tokenizer_config.json"
        config = read_json(path) if path.exists() else {}
        library = tokenizer.library
        named = _name(config.get("mask_token"))
        candidates = _MASK_TOKENS if named is None else (named,)
        numbers = {each: library.token_to_id(each) for each in candidates}
        token = next((each for each in candidates if numbers[each] is not None), None)
        if token is None:
            raise CheckpointError(
                f"{path}: the tokenizer has no mask token ({' or '.join(candidates)}): its model "
                "cannot fill masks"
            )
        self.token = token
        self._tokenizer = tokenizer
        self._mask_id: int | None = numbers[token]
        pad = _name(config.get("pad_token"))
        self._pad_id = None if pad is None else library.token_to_id(pad)
        is_bpe = isinstance(library.model, tokenizers.models.BPE)
        self._cleans = bool(config.get("clean_up_tokenization_spaces", False)) and not is_bpe

    def encode(
        self, texts: Sequence[str], *, truncate: bool = True, direction: Direction | None = None
    ) -> MaskedTexts:
        """Raises ValidationError for a text without a mask, and as ``Tokenizer.encode`` does."""
        read = self._tokenizer.encode(texts, truncate=truncate, direction=direction)
        places = np.flatnonzero(read.input_ids == self._mask_id)
        owners = np.searchsorted(read.cu_seqlens, places, side="right") - 1
        counts = np.bincount(owners, minlength=len(read)).astype(np.int32)
        if not counts.all():
            i = int(counts.argmin())
            cut = ", as far as it was not cut" if read.truncated[i] else ""
            raise ValidationError(
                f"inputs[{i}] has no mask{cut}: put {self.token} where a token is to be found"
            )
        marked = read.take(owners)
        is_first = np.diff(owners, prepend=-1) > 0
        return MaskedTexts(
            replace(
                marked,
                marks=(places - read.cu_seqlens[owners]).astype(np.int32),
                truncated=marked.truncated & is_first,
            ),
            counts,
        )

    def target_ids(self, targets: str | Sequence[str]) -> Int32Array:
        """The ids of these tokens, each once; of what is no token the first that it is made of.

        Raises ValidationError where none is left.
        """
        library, found = self._tokenizer.library, []
        for target in [targets] if isinstance(targets, str) else targets:
            number = library.token_to_id(target)
            if number is None:
                number = next(iter(library.encode(target, add_special_tokens=False).ids), None)
            if number is not None:
                found.append(number)
        if not found:
            raise ValidationError("`targets` names no token: send at least one word")
        return np.unique(np.array(found, np.int32))

    def filled(
        self,
        texts: MaskedTexts,
        logits: Float32Array,
        top_k: int = TOP_K,
        targets: Int32Array | None = None,
    ) -> list[Fills]:
        """What fills the masks of each text, from their logits, float32 (masks, vocabulary)."""
        found: list[Fills] = []
        mask = 0
        for count in texts.counts.tolist():
            found.append(
                [
                    self._filled(texts.sequences, one, logits[one], top_k, targets, count == 1)
                    for one in range(mask, mask + count)
                ]
            )
            mask += count
        return found

    def _filled(
        self,
        sequences: Sequences,
        mask: int,
        logits: Float32Array,
        top_k: int,
        targets: Int32Array | None,
        is_only: bool,
    ) -> list[Fill]:
        """One mask; in the text of a single one no special token is shown."""
        scores = softmax(logits)
        tokens = _best(scores, top_k, targets).tolist()
        assert sequences.marks is not None
        start, stop = sequences.cu_seqlens[mask : mask + 2].tolist()
        ids = sequences.input_ids[start:stop].tolist()
        place = int(sequences.marks[mask])
        whole = [self._without_pads([*ids[:place], token, *ids[place + 1 :]]) for token in tokens]
        return [
            Fill(float(scores[token]), token, word, text)
            for token, word, text in zip(
                tokens,
                self._decoded([[token] for token in tokens], False),
                self._decoded(whole, is_only),
                strict=True,
            )
        ]

    def _without_pads(self, ids: list[int]) -> list[int]:
        return [number for number in ids if number != self._pad_id]

    def _decoded(self, lists: list[list[int]], skip_special: bool) -> list[str]:
        texts = self._tokenizer.library.decode_batch(lists, skip_special_tokens=skip_special)
        return [_cleaned(text) for text in texts] if self._cleans else texts


def first_masks(sequences: Sequences) -> Int32Array:
    """Which of the sequences of ``MaskedTexts`` are of the first mask of a text, in order.

    The next mask of a text has its ids and a later place; the next text begins anew.
    """
    assert sequences.marks is not None
    bounds, marks = sequences.cu_seqlens.tolist(), sequences.marks.tolist()
    data, last, firsts = sequences.input_ids, (b"", 0), []
    for i, mark in enumerate(marks):
        ids = data[bounds[i] : bounds[i + 1]].tobytes()
        if ids != last[0] or mark <= last[1]:
            firsts.append(i)
        last = ids, mark
    return np.array(firsts, np.int32)


def _best(scores: Float32Array, top_k: int, targets: Int32Array | None) -> Any:
    """The ids of the highest scores, among ``targets`` if they are given, best first."""
    if targets is not None:
        return targets[np.argsort(-scores[targets], kind="stable")[:top_k]]
    if top_k >= len(scores):
        return np.argsort(-scores, kind="stable")
    among = np.argpartition(-scores, top_k - 1)[:top_k]
    return among[np.lexsort((among, -scores[among]))]


def _name(value: Any) -> str | None:
    """Of a token as tokenizer_config.json has it: a string, or an object with it."""
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None


def _cleaned(text: str) -> str:
    for found, put in _CLEANED:
        text = text.replace(found, put)
    return text
