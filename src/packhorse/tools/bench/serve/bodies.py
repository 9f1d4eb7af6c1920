"""What is asked: distinct requests, written out in full before the clock starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.bench.serve.answers import (
    Check,
    classify_fault,
    embed_fault,
    json_fault,
    openai_fault,
    predict_fault,
    rerank_fault,
)
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.demo_split import REVIEWS, read_reviews

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request as bytes, and how many texts it asks about (0: not known)."""

    data: bytes
    texts: int


@dataclass(frozen=True, slots=True)
class Route:
    """How texts become the body of a route, and how its answers are checked."""

    body: Callable[[list[str]], Any]
    check: Check


def _predict_body(texts: list[str]) -> Any:
    return {"inputs": texts[0] if len(texts) == 1 else [[text] for text in texts]}


def _embed_body(texts: list[str]) -> Any:
    return {"inputs": texts[0] if len(texts) == 1 else texts}


ROUTES = {
    "/predict": Route(_predict_body, predict_fault),
    "/inference": Route(_predict_body, predict_fault),
    "/classify": Route(lambda texts: {"input": texts}, classify_fault),
    "/embed": Route(_embed_body, embed_fault),
    "/v1/embeddings": Route(lambda texts: {"input": texts}, openai_fault),
    "/rerank": Route(lambda texts: {"query": texts[0], "texts": texts}, rerank_fault),
}
"""The routes whose bodies can be made of texts. /inference is mosec's; the first text of /rerank is
the query too."""


def check_of(route: str) -> Check:
    """How answers of this route are checked: in full, or as JSON where it is not known."""
    return ROUTES[route].check if route in ROUTES else json_fault


def read_texts(file: Path | None) -> tuple[str, ...]:
    """The distinct lines of a text file that are not empty; of the checkout's reviews without one.

    Raises ConfigError when it is missing or has no text.
    """
    try:
        if file is None:
            texts = [review.text for review in read_reviews()]
        else:
            texts = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(
            f"{file or REVIEWS} is missing: run this in a checkout's root, or give --texts FILE"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: byte {error.start}") from None
    distinct = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if not distinct:
        raise ConfigError(f"{file or REVIEWS} has no text")
    return distinct


def read_bodies(file: Path) -> tuple[bytes, ...]:
    """The lines of a JSON Lines file, each one body.

    Raises ConfigError when it is missing, empty, or a line is not JSON.
    """
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        raise ConfigError(f"--body-file {file} is missing") from None
    bodies = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if (fault := json_fault(line, 0)) is not None:
            raise ConfigError(f"--body-file {file}, line {number}: {fault}")
        bodies.append(line)
    if not bodies:
        raise ConfigError(f"--body-file {file} has no body")
    return tuple(bodies)


def check_plan(plan: Plan) -> None:
    """Raises ConfigError where a plan's bodies cannot be made, or not as many distinct ones."""
    if plan.bodies:
        return
    if plan.route not in ROUTES:
        raise ConfigError(
            f"--route {plan.route}: bodies are made for {', '.join(ROUTES)}; "
            "for another route give --body-file FILE with a JSON body a line"
        )
    if plan.distinct > len(plan.texts) and min(plan.batches) == 1:
        raise ConfigError(
            f"--distinct {plan.distinct}: there are only {len(plan.texts)} distinct texts; "
            "give --texts FILE with more, or a smaller number"
        )


def requests_of(plan: Plan, process: int) -> list[Request]:
    """The requests of one load process: every so many-th body, so that no two send the same.

    They are the same for the same plan. Where there are more processes than bodies, all send all.
    """
    number = len(plan.bodies) or plan.distinct
    step = plan.processes if number >= plan.processes else 1
    if plan.bodies:
        mine: Iterable[tuple[bytes, int]] = [
            (body, 0) for body in plan.bodies[process % step :: step]
        ]
    else:
        mine = _bodies(plan, process % step, step)
    return [Request(_request(plan, body), texts) for body, texts in mine]


def _bodies(plan: Plan, first: int, step: int) -> Iterator[tuple[bytes, int]]:
    """Every so many-th body: the texts in an order drawn anew for each pass, sizes in turn."""
    body = ROUTES[plan.route].body
    texts = _shuffled_for_ever(plan.texts, random.Random(plan.seed))
    for number in range(plan.distinct):
        size = plan.batches[number % len(plan.batches)]
        drawn = [next(texts) for _ in range(size)]
        if number % step == first:
            yield _encode(body(drawn)), size


def _shuffled_for_ever(texts: Sequence[str], chance: random.Random) -> Iterator[str]:
    while True:
        yield from chance.sample(texts, len(texts))


def _request(plan: Plan, body: bytes) -> bytes:
    head = [
        f"POST {plan.route} HTTP/1.1",
        f"host: {plan.target.authority}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in plan.headers),
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
