"""Whether an answer is right: as many rows as there were texts, and numbers in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

Check = Callable[[bytes, int], str | None]
"""From the body of a 2xx answer and the number of texts asked (0: not known) to what is wrong
with it, or None."""


class Score(msgspec.Struct):
    """One label of /predict."""

    score: float
    label: str


class Rank(msgspec.Struct):
    """One text of /rerank."""

    index: int
    score: float


class Vector(msgspec.Struct):
    """One text of /v1/embeddings."""

    index: int
    embedding: list[float]


class VectorList(msgspec.Struct):
    """All texts of /v1/embeddings."""

    data: list[Vector]


class Classified(msgspec.Struct):
    """One text of /classify, as vLLM and this server answer it."""

    probs: list[float]


class ClassifiedList(msgspec.Struct):
    """All texts of /classify; Infinity answers it with rows of labels."""

    data: list[Classified | list[Score]]


_one = msgspec.json.Decoder(list[Score])
_batch = msgspec.json.Decoder(list[list[Score]])
_classified = msgspec.json.Decoder(ClassifiedList)
_ranks = msgspec.json.Decoder(list[Rank])
_vectors = msgspec.json.Decoder(list[list[float]])
_vector_list = msgspec.json.Decoder(VectorList)
_anything = msgspec.json.Decoder()


def predict_fault(body: bytes, texts: int) -> str | None:
    """Of /predict: labels with scores, for one text or for each of a batch."""
    try:
        if body[1:].lstrip().startswith(b"["):
            rows = [[label.score for label in row] for row in _batch.decode(body)]
        else:
            rows = [[label.score for label in _one.decode(body)]]
    except msgspec.DecodeError as error:
        return f"not the shape of /predict: {error}"
    return _table_fault(rows, texts)


def classify_fault(body: bytes, texts: int) -> str | None:
    """Of /classify: probabilities, or labels with scores, for each text."""
    try:
        data = _classified.decode(body).data
    except msgspec.DecodeError as error:
        return f"not the shape of /classify: {error}"
    rows = [
        one.probs if isinstance(one, Classified) else [label.score for label in one] for one in data
    ]
    return _table_fault(rows, texts)


def embed_fault(body: bytes, texts: int) -> str | None:
    """Of /embed: a vector for each text."""
    try:
        return _table_fault(_vectors.decode(body), texts)
    except msgspec.DecodeError as error:
        return f"not the shape of /embed: {error}"


def openai_fault(body: bytes, texts: int) -> str | None:
    """Of /v1/embeddings: a vector for each text, in their order."""
    try:
        data = _vector_list.decode(body).data
    except msgspec.DecodeError as error:
        return f"not the shape of /v1/embeddings: {error}"
    if [vector.index for vector in data] != list(range(len(data))):
        return "vectors out of order"
    return _table_fault([vector.embedding for vector in data], texts)


def rerank_fault(body: bytes, texts: int) -> str | None:
    """Of /rerank: every text once, the best first."""
    try:
        ranks = _ranks.decode(body)
    except msgspec.DecodeError as error:
        return f"not the shape of /rerank: {error}"
    if sorted(rank.index for rank in ranks) != list(range(len(ranks))):
        return "a text is missing or occurs twice"
    scores = [rank.score for rank in ranks]
    if scores != sorted(scores, reverse=True):
        return "not sorted"
    return _table_fault([[score] for score in scores], texts)


def json_fault(body: bytes, texts: int) -> str | None:
    """Of a route that is not known here: JSON."""
    try:
        _anything.decode(body)
    except msgspec.DecodeError as error:
        return f"not JSON: {error}"
    return None


def _table_fault(rows: Sequence[Sequence[float]], texts: int) -> str | None:
    """What is wrong with a row of numbers for each text."""
    if texts and len(rows) != texts:
        return f"{len(rows)} rows for {texts} texts"
    if not rows or not rows[0]:
        return "an empty row"
    width = len(rows[0])
    for row in rows:
        if len(row) != width:
            return "rows of different widths"
        if not math.isfinite(sum(row)):
            return "a number that is not finite"
    return None
