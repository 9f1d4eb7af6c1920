"""What is read and written as JSON. Shapes are those of text-embeddings-inference."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from packhorse.errors import (
    EmptyRequestError,
    MalformedRequestError,
    ServedError,
    ValidationError,
)
from packhorse.request import TextOrPair


class TextPair(msgspec.Struct):
    """A text or a pair, as Transformers' pipelines read them."""

    text: str
    text_pair: str | None = None


class PredictRequest(msgspec.Struct):
    """``POST /predict``. Unknown keys are ignored; of a key that occurs twice the last counts.

    inputs     a text "a" or ["a"], a pair ["a", "b"], or a batch [["a"], ["b", "c"], …] of both;
               {"text": "b", "text_pair": "c"} is a pair too, and a list of such a batch
    truncate   whether inputs that are too long are cut; null for the server's --auto-truncate
    truncation_direction   which end is cut off; null for the tokenizer's own, mostly the right
    raw_scores             the model's logits instead of probabilities
    stride     read long texts in windows that share so many tokens; null: cut them
    """

    inputs: str | TextPair | list[str | list[str] | TextPair]
    truncate: bool | None = None
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = None
    raw_scores: bool | None = None
    stride: int | None = None


class ErrorBody(msgspec.Struct):
    """Every answer that is not a success."""

    error: str
    error_type: str


class Score(msgspec.Struct):
    """A label and its score."""

    score: float
    label: str


class Usage(msgspec.Struct):
    """Tokens that the model saw: after truncation, with special tokens."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> Usage:
        """There is no other kind of token."""
        return cls(tokens, tokens)


Ids = list[int]

TextsOrIds = str | list[str | int | list[int]]
"""A text, a list of texts, the token ids of one text, or a list of such lists."""

Body = TypeVar("Body")

_encode = msgspec.json.Encoder().encode

BOM = codecs.BOM_UTF8
"""What some clients put before UTF-8; a reader may ignore it (RFC 8259, section 8.1)."""

_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F])|.)",
    re.DOTALL,
)
"""Every escape of a JSON string, two that are one character together; a half of such two is
the group."""

SHAPES = 'a text "a", a pair ["a", "b"], or a batch [["a"], ["b", "c"], ...]'


def decoded(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Raises MalformedRequestError for what is not JSON, ValidationError for another shape."""
    try:
        return decoder.decode(body.removeprefix(BOM))
    except msgspec.ValidationError as error:
        raise ValidationError(f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"the body is not JSON: {_place(body, error)}") from None
    except RecursionError:
        raise MalformedRequestError("the body is nested too deeply") from None


def inputs_of(request: PredictRequest) -> tuple[list[TextOrPair], bool]:
    """The inputs, and whether it was a batch.

    Raises EmptyRequestError or ValidationError naming the input at fault.
    """
    inputs = request.inputs
    if isinstance(inputs, str):
        return [inputs], False
    if isinstance(inputs, TextPair):
        return [pair_in(inputs, "inputs")], False
    if not inputs:
        raise EmptyRequestError(f"`inputs` is an empty list; send {SHAPES}")
    if isinstance(inputs[0], str):
        return [_text_or_pair(inputs)], False
    return [
        one[0] if type(one) is list and len(one) == 1 else _pair(one, index)
        for index, one in enumerate(inputs)
    ], True


def texts_or_ids(inputs: str | Sequence[Any], name: str) -> list[str] | list[Ids]:
    """What ``TextsOrIds`` means: texts, or token ids of each text. ``name`` is for messages.

    Raises EmptyRequestError or ValidationError naming the input at fault.
    """
    if isinstance(inputs, str):
        return [inputs]
    if not inputs:
        raise EmptyRequestError(f"`{name}` is an empty list")
    kind = type(inputs[0])
    for index, one in enumerate(inputs):
        if type(one) is not kind:
            raise ValidationError(
                f"`{name}[{index}]` is of another kind than `{name}[0]`: send texts or token ids, "
                "not both"
            )
    if kind is int:
        return [list(inputs)]
    for index, one in enumerate(inputs):
        if kind is list and not one:
            raise ValidationError(f"`{name}[{index}]` is an empty list of token ids")
    return list(inputs)


def error_body(error: ServedError) -> bytes:
    """The JSON that a client gets for this error."""
    return error_text(str(error), error.error_type)


def error_text(message: str, error_type: str) -> bytes:
    """The same for an error that has no class of ours."""
    return _encode(ErrorBody(message, error_type))


def pair_in(one: str | list[str] | TextPair, name: str) -> TextOrPair:
    """A text or a pair, in whichever way it is written. Raises ValidationError."""
    if isinstance(one, TextPair):
        return one.text if one.text_pair is None else (one.text, one.text_pair)
    if isinstance(one, list) and len(one) != 2:
        raise ValidationError(f"`{name}` is a list of {len(one)} strings, which is no pair")
    return one if isinstance(one, str) else (one[0], one[1])


def _text_or_pair(strings: list[str | list[str] | TextPair]) -> TextOrPair:
    for index, one in enumerate(strings):
        if not isinstance(one, str):
            what = "a list" if isinstance(one, list) else "an object"
            raise ValidationError(f"`inputs[{index}]` is {what} next to strings; send {SHAPES}")
    if len(strings) > 2:
        raise ValidationError(
            f"`inputs` has {len(strings)} strings, which is neither a text nor a pair; "
            f"send {SHAPES}"
        )
    return strings[0] if len(strings) == 1 else (strings[0], strings[1])  # type: ignore[return-value]


def _pair(one: str | list[str] | TextPair, index: int) -> TextOrPair:
    if isinstance(one, TextPair):
        return pair_in(one, f"inputs[{index}]")
    if isinstance(one, str) or len(one) != 2:
        what = "a string in a batch" if isinstance(one, str) else f"a list of {len(one)} strings"
        raise ValidationError(f"`inputs[{index}]` is {what}; send {SHAPES}")
    return one[0], one[1]


def _place(body: bytes, error: Exception) -> str:
    """What is wrong and at which byte; the decoder does not always say where."""
    if not body:
        return "it is empty"
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"invalid UTF-8 (byte {broken.start})"
    for escape in _ESCAPES.finditer(body):
        if escape.group(1):
            return f"a \\u escape is half of a surrogate pair (byte {escape.start()})"
    message = str(error)
    return message if "(byte " in message else f"{message} (byte {len(body)})"
