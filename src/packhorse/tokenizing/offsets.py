"""Texts with the place of every token in them, for reading labels of tokens back as text.

``tokenizers`` does it: offsets are what nanotoken does not give. They count code points, and
a text that is too long is cut, or read in windows that overlap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import tokenizers

from packhorse.request import BoolArray, Int32Array, Sequences, bounds_of
from packhorse.tokenizing.backends import guarded
from packhorse.tokenizing.safe_cuts import SafeCuts
from packhorse.tokenizing.special_tokens import TextLayout

_CHARACTERS_PER_TOKEN = 16
"""How much of a huge text is read at first when no windows are asked for."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Tokenised texts, and where their tokens stand.

    sequences     one a text, or several where windows were asked for
    text_of       int32 (N,)  the text that a sequence is of
    starts, ends  int32 (T,)  code points of the text; 0 for special tokens
    is_special    bool  (T,)  tokens that the template put there
    """

    sequences: Sequences
    text_of: Int32Array
    starts: Int32Array
    ends: Int32Array
    is_special: BoolArray


_SPACE = "Ġ"
"""What byte-level tokenizers call a space."""


@dataclass(frozen=True, slots=True)
class OffsetReader:
    """How the texts for one model are read.

    layout  the special tokens around a text
    cuts    where a huge text may be cut; None: it is read whole
    """

    library: tokenizers.Tokenizer
    layout: TextLayout
    max_length: int
    cuts: SafeCuts | None

    def read(self, texts: Sequence[str], stride: int | None) -> Spans:
        """All texts; of one that is too long the start, or all of it in windows.

        ``stride`` is how many tokens neighbouring windows share, None for no windows.
        Raises LibraryFaultError for a text that cannot be tokenised.
        """
        pieces = [
            (number, *window)
            for number, text in enumerate(texts)
            for window in self._windows(text, stride)
        ]
        before, after = self.layout.before.tolist(), self.layout.after.tolist()
        none = [(0, 0)]
        ids = chain.from_iterable((*before, *piece, *after) for _, piece, _, _ in pieces)
        places = chain.from_iterable(
            (*none * len(before), *offsets, *none * len(after)) for _, _, offsets, _ in pieces
        )
        inner = np.array([len(piece) for _, piece, _, _ in pieces], np.int32)
        bounds = bounds_of(inner + np.int32(self.layout.num_tokens))
        offsets = np.fromiter(chain.from_iterable(places), np.int32).reshape(-1, 2)
        special = np.ones(bounds[-1], np.bool_)
        for start, length in zip((bounds[:-1] + len(before)).tolist(), inner.tolist(), strict=True):
            special[start : start + length] = False
        return Spans(
            Sequences(
                np.fromiter(ids, np.int32, bounds[-1]),
                bounds,
                np.array([is_cut for _, _, _, is_cut in pieces], np.bool_),
            ),
            np.array([number for number, _, _, _ in pieces], np.int32),
            np.ascontiguousarray(offsets[:, 0]),
            np.ascontiguousarray(offsets[:, 1]),
            special,
        )

    def _windows(
        self, text: str, stride: int | None
    ) -> list[tuple[list[int], list[tuple[int, int]], bool]]:
        """Ids and offsets without special tokens, of at most the room that those leave.

        The last item says whether some of the text is in none of them.
        """
        room = self.max_length - self.layout.num_tokens
        ids, offsets = self._encoded(text, None if stride is not None else room + 1)
        if stride is None or len(ids) <= room:
            return [(ids[:room], offsets[:room], len(ids) > room)]
        starts = range(0, len(ids) - stride, room - stride)
        windows = [(ids[at : at + room], offsets[at : at + room], False) for at in starts]
        if _leaves_first_space(self.library):
            for inner, places, _ in windows[1:]:
                places[0] = _with_space(self.library, inner[0], *places[0])
        return windows

    def _encoded(self, text: str, enough: int | None) -> tuple[list[int], list[tuple[int, int]]]:
        """All ids with their offsets, or at least ``enough`` of them."""
        part = text
        characters = _CHARACTERS_PER_TOKEN * (enough or 0)
        while True:
            if enough is not None and self.cuts is not None:
                part = self.cuts.shorten(text, characters, "right")
            encoding = guarded("tokenizers", partial(self._encoding, part))
            if enough is None or len(part) == len(text) or len(encoding.ids) >= enough:
                return encoding.ids, encoding.offsets
            characters *= 4

    def _encoding(self, text: str) -> tokenizers.Encoding:
        return self.library.encode(text, add_special_tokens=False)


def _leaves_first_space(library: tokenizers.Tokenizer) -> bool:
    """Whether spans lose the spaces before their words, but for one before a sequence's first.

    Byte-level post-processors do that, for a space that is put before texts; and where windows
    are cut by ``tokenizers``, as in Transformers' pipeline, to the first token of each window.
    """
    if library.post_processor is None:
        return False
    state = json.loads(library.post_processor.__getstate__())
    return any(
        step.get("trim_offsets", False) and step.get("add_prefix_space", False)
        for step in state.get("processors", [state])
        if step.get("type") in ("RobertaProcessing", "ByteLevel")
    )


def _with_space(library: tokenizers.Tokenizer, token: int, start: int, end: int) -> tuple[int, int]:
    """The span of a window's first token, from one space before it.

    It decides which of two entities is the longer where windows overlap.
    """
    name = library.id_to_token(token) or ""
    if not name.startswith(_SPACE):
        return start, end
    return start - 1, end if name.strip(_SPACE) else start - 1
