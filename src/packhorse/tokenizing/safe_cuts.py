"""Where a huge text may be cut before it is tokenised, so that the tokens that stay are the same.

A megabyte of text must not cost more than the few hundred tokens of it that a
model reads. Which places are safe to cut at is read off the tokenizer's parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import tokenizers

Direction = Literal["right", "left"]
"""The side of a text that is cut off."""

_LETTERS = (
    "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"  # Latin
    "\u0391-\u03a1\u03a3-\u03c9\u0400-\u0481\u048a-\u052f"  # Greek, Cyrillic
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a"  # Hebrew, Arabic
    "\u0904-\u0939\u0e01-\u0e30"  # Devanagari, Thai
    "\u3041-\u3094\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # kana, Han, Hangul
)
"""Characters, for a regular expression's class, that join neither the one before nor the next."""

_ENDS = (
    f"{_LETTERS}!\"'),.:;?\u2019\u201d"
    "\u3001\u3002\u300d\u300f\uff01\uff09\uff0c\uff1a\uff1b\uff1f"  # of Chinese and Japanese
)
"""Letters, and the punctuation that may stand before a space."""

_AT_SPACE = r"(?=[ \t\n\r])"
_AT_SPACE_MARK_OR_HAN = r"(?=[ \t\n\r!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff])"
_BEFORE_WORD = f"(?<=[{_ENDS}])(?= [{_LETTERS}])"
_BEFORE_WORD_OR_LINE = f"(?<=[{_ENDS}])(?=[ \n][{_LETTERS}])"

_SPACE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
"""Normalisers whose result on one side of a space does not depend on the other side."""

_SPACE_FOLDERS = {" {2,}", r"\s+", r"\s{2,}|[\n\r\t]"}
"""Regular expressions that the known tokenizers fold white space with."""

_CONTEXT = 64
"""Characters before a piece in which a place to begin with is looked for."""

_TRIES = 64
"""Places to look at before a stretch of text counts as having none to cut at."""


class Piece(NamedTuple):
    """``text[start:stop]``; from ``before`` on, which is safe to cut at, the text says enough."""

    before: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SafeCuts:
    """The places where a text may be cut without changing the tokens on either side.

    ``place`` matches, with no width, where the tokenizer's own parts are sure
    to split, whatever stands on the other side. An added token such as
    ``[SEP]`` is found before those parts see the text, so a place within one
    is not safe; nor, if ``beside``, is a place next to one: some look at their
    neighbour, or swallow it.
    """

    place: re.Pattern[str]
    added: re.Pattern[str] | None
    longest_added: int
    beside: bool

    def shorten(self, text: str, characters: int, direction: Direction) -> str:
        """The start (``right``) or the end (``left``) of the text, one to two times ``characters``.

        The tokens of the result are the first, or the last, of the tokens of
        the whole text. It is the whole text where that is no longer than
        twice ``characters``, or has no safe place to cut at.
        """
        if len(text) <= 2 * characters:
            return text
        if direction == "right":
            place = self._first_safe(text, characters, 2 * characters)
            return text if place is None else text[:place]
        place = self._first_safe(text, len(text) - 2 * characters, len(text) - characters)
        return text if place is None else text[place:]

    def pieces(self, text: str, characters: int) -> Iterator[Piece]:
        """The text in pieces of one to three times ``characters``, or more where none is safe.

        Their tokens, one piece after the other, are those of the text. The place of a piece's first
        token is the same only if something stands before it: some libraries count a space in there
        that they do not count within a text.
        """
        before = start = 0
        for end in range(2 * characters, len(text), characters):
            if end - start >= 2 * characters:
                place = self._first_safe(text, end - characters, end)
                if place is not None:
                    yield Piece(before, start, place)
                    near = self._first_safe(text, max(start, place - _CONTEXT), place)
                    before, start = start if near is None else near, place
        yield Piece(before, start, len(text))

    def _first_safe(self, text: str, start: int, stop: int) -> int | None:
        places = (match.start() for match in self.place.finditer(text, start, stop))
        return next((place for place in islice(places, _TRIES) if self._is_safe(text, place)), None)

    def _is_safe(self, text: str, place: int) -> bool:
        if self.added is None:
            return True
        first, last = max(0, place - self.longest_added), place + self.longest_added
        return not any(
            match.start() < place + self.beside and match.end(1) > place - self.beside
            for match in self.added.finditer(text, first, last)
        )


def safe_cuts(tokenizer: tokenizers.Tokenizer) -> SafeCuts | None:
    """Where texts for this tokenizer may be cut; None when no place is known to be safe.

    Only pipelines whose every part is known here are trusted. Any other gets
    the same tokens at more cost: its texts are tokenised whole, however long.
    """
    place = _place(tokenizer)
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if token.content]
    if place is None or any(map(_hides_a_space, added)):
        return None
    if place == _AT_SPACE_MARK_OR_HAN and any(token.normalized for token in added):
        place = _AT_SPACE  # where such a token stands in the raw text is not known
    contents = sorted((token.content for token in added), key=len, reverse=True)
    return SafeCuts(
        place=re.compile(place),
        added=re.compile(f"(?=({'|'.join(map(re.escape, contents))}))") if contents else None,
        longest_added=max(map(len, contents), default=0),
        beside=any(token.single_word or token.rstrip for token in added),
    )


def _hides_a_space(token: tokenizers.AddedToken) -> bool:
    """Whether a space may be part of it unseen: the text that it is found in is not the raw one."""
    return token.normalized and (token.rstrip or any(map(str.isspace, token.content)))


def _place(tokenizer: tokenizers.Tokenizer) -> str | None:
    """A pattern for where the normaliser and the pre-tokenizer are sure to split, if known."""
    normalizers = _parts_of(tokenizer.normalizer)
    splitters = _parts_of(tokenizer.pre_tokenizer)
    if normalizers is None or splitters is None:
        return None
    normal_kinds = {part["type"] for part in normalizers}
    kinds = [part["type"] for part in splitters]
    if (
        normal_kinds <= _LOCAL | {"BertNormalizer"}
        and _SPACE_SPLITTERS.intersection(kinds)
        and set(kinds) <= _SPACE_SPLITTERS | {"Punctuation", "Digits"}
    ):
        bert = normal_kinds == {"BertNormalizer"} and kinds == ["BertPreTokenizer"]
        spaced_han = all(part.get("handle_chinese_chars") for part in normalizers)
        return _AT_SPACE_MARK_OR_HAN if bert and spaced_han else _AT_SPACE
    if not all(map(_leaves_words_apart, normalizers)) or not _keeps_letters(tokenizer):
        return None
    if kinds == ["ByteLevel"] and splitters[0]["use_regex"] and "Strip" not in normal_kinds:
        return _BEFORE_WORD
    if kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]) and splitters[-1]["split"]:
        if "Strip" in normal_kinds and splitters[-1]["prepend_scheme"] != "always":
            return None
        line_splits = "WhitespaceSplit" in kinds or _makes_lines_spaces(tokenizer)
        return _BEFORE_WORD_OR_LINE if line_splits else _BEFORE_WORD
    return None


def _leaves_words_apart(normalizer: dict[str, Any]) -> bool:
    """Whether it keeps a single space between two words, and treats each side by itself."""
    if normalizer["type"] != "Replace":
        return normalizer["type"] in _LOCAL | {"Nmt", "Precompiled", "Strip"}
    pattern, content = normalizer["pattern"], normalizer["content"]
    if "Regex" in pattern:
        return pattern["Regex"] in _SPACE_FOLDERS and content in (" ", "▁")
    return not any(map(str.isspace, pattern["String"] + content))


def _keeps_letters(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether the normaliser turns no character of ``_ENDS`` into white space or into nothing."""
    if tokenizer.normalizer is None:
        return True
    ends = re.findall(f"[{_ENDS}]", "".join(map(chr, range(0x10000))))
    normalized = tokenizer.normalizer.normalize_str("+".join(ends))
    return "++" not in normalized and not re.search(r"\s", normalized)


def _makes_lines_spaces(tokenizer: tokenizers.Tokenizer) -> bool:
    normalizer = tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("a\nb") == "a b"


def _parts_of(component: Any) -> list[dict[str, Any]] | None:
    """A normaliser's or pre-tokenizer's parts in order, each as in tokenizer.json.

    None where that cannot be had: of a part that is written in Python.
    """
    if component is None:
        return []
    try:
        return _flattened(json.loads(component.__getstate__()))
    except Exception:
        return None


def _flattened(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    inner = part.get("normalizers") or part.get("pretokenizers") or []
    return [flat for each in inner for flat in _flattened(each)]
