"""Bodies of /predict: the shapes of text-embeddings-inference, and what is wrong with others."""

from __future__ import annotations

import json

import msgspec
import pytest

from packhorse.errors import (
    EmptyRequestError,
    MalformedRequestError,
    OverloadedError,
    RequestError,
    ValidationError,
)
from packhorse.server.schemas import PredictRequest, decoded, error_body, inputs_of


def decode_predict(body: bytes) -> PredictRequest:
    return decoded(msgspec.json.Decoder(PredictRequest), body)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("a", (["a"], False)),
        ("", ([""], False)),
        (["a"], (["a"], False)),
        (["a", "b"], ([("a", "b")], False)),
        ([["a"]], (["a"], True)),
        ([["a"], ["b"], ["c", "d"]], (["a", "b", ("c", "d")], True)),
        ([["a", "b"]], ([("a", "b")], True)),
        ([["\u0000"], ["🙂"]], (["\u0000", "🙂"], True)),
    ],
)
def test_inputs(inputs: object, expected: object) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    assert inputs_of(decode_predict(body)) == expected


def test_defaults_and_options() -> None:
    request = decode_predict(b'{"inputs": "a"}')
    assert request.truncate is None
    assert request.truncation_direction is None
    assert not request.raw_scores
    request = decode_predict(
        b'{"inputs":"a","truncate":false,"truncation_direction":"Left","raw_scores":true,"x":[1]}'
    )
    assert (request.truncate, request.truncation_direction) == (False, "Left")
    assert request.raw_scores is True


def test_of_duplicate_keys_the_last_counts() -> None:
    assert decode_predict(b'{"inputs":"a","inputs":"b"}').inputs == "b"


def error_of(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        inputs_of(decode_predict(body))
    return caught.value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{bad", "byte 1"),
        (b"", "it is empty"),
        (b'{"inputs":"\xff"}', "invalid UTF-8 (byte 11)"),
        (b'{"inputs":"\xed\xa0\x80"}', "invalid UTF-8 (byte 11)"),
        (b'{"inputs":NaN}', "byte 10"),
        (b'{"inputs":"a","x":Infinity}', "byte 18"),
        (b'{"inputs":"a"', "(byte 13)"),
        (b'{"inputs":"a"} x', "byte 16"),
        (b'{"inputs":"a","x":' + b"[" * 100_000, "nested too deeply"),
        (b"\x1f\x8b\x08\x00", "invalid UTF-8"),
    ],
)
@pytest.mark.case(109)
def test_what_is_not_json_is_malformed_and_says_where(body: bytes, message: str) -> None:
    error = error_of(body)
    assert type(error) is MalformedRequestError
    assert message in str(error)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"[" * 100_000, "Expected `object`"),
        (b"{}", "missing required field `inputs`"),
        (b'{"inputs":null}', "$.inputs"),
        (b'{"inputs":1}', "$.inputs"),
        (b'{"inputs":{"a":1}}', "$.inputs"),
        (b'{"inputs":[["a"],["b",1]]}', "$.inputs[1][1]"),
        (b'{"inputs":[["a"],[]]}', "`inputs[1]` is a list of 0 strings"),
        (b'{"inputs":[["a"],["b","c","d"]]}', "`inputs[1]` is a list of 3 strings"),
        (b'{"inputs":[["a"],"b"]}', "`inputs[1]` is a string in a batch"),
        (b'{"inputs":["a",["b"]]}', "`inputs[1]` is a list next to strings"),
        (b'{"inputs":["a","b","c"]}', "3 strings, which is neither a text nor a pair"),
        (b'{"inputs":"a","truncate":"yes"}', "$.truncate"),
        (b'{"inputs":"a","truncation_direction":"up"}', "$.truncation_direction"),
        (b'{"inputs":"a","raw_scores":1}', "$.raw_scores"),
        (b'{"inputs":[[["a"]]]}', "$.inputs[0][0]"),
    ],
)
@pytest.mark.case(109)
def test_another_shape_is_not_valid_and_says_what(body: bytes, message: str) -> None:
    error = error_of(body)
    assert type(error) is ValidationError
    assert message in str(error)


def test_an_empty_batch() -> None:
    assert type(error_of(b'{"inputs":[]}')) is EmptyRequestError


def test_errors_are_written_as_tei_does() -> None:
    assert json.loads(error_body(OverloadedError('full of "ä"'))) == {
        "error": 'full of "ä"',
        "error_type": "Overloaded",
    }
