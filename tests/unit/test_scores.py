"""From an answer's parts to JSON."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from packhorse.checkpoint import ProblemType
from packhorse.errors import InternalError, NonFiniteOutputError
from packhorse.postprocess import scores_of
from packhorse.request import Completions
from packhorse.server.pending import Block, Pending
from packhorse.server.scores import FEW_SCORES, ScoreWriter

LABELS = ("no", 'a "quoted" one', "über")


def block_of(logits: np.ndarray, codes: list[int] | None = None) -> Block:
    n = len(logits)
    return Block(
        Completions(
            tickets=np.arange(n, dtype=np.uint64),
            offsets=np.zeros(n, np.int32),
            counts=np.ones(n, np.int32),
            codes=np.array(codes or [0] * n, np.uint8),
            values=logits.astype(np.float32),
            queue_wait=np.zeros(n, np.float32),
            inference=0.0,
        )
    )


def pending_of(parts: list[tuple[Block, int, int, int]]) -> Pending:
    loop = asyncio.new_event_loop()
    pending = Pending(["x"] * sum(p[3] for p in parts), 1, True, "right", 1, loop.create_future())
    loop.close()
    pending.parts = parts
    return pending


def logits_of(rows: int, labels: int = 3) -> np.ndarray:
    return np.random.default_rng(rows).normal(0, 4, (rows, labels)).astype(np.float32)


@pytest.mark.parametrize("problem", list(ProblemType))
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.case(47, 49)
@pytest.mark.parametrize("count", [1, 5, FEW_SCORES])
def test_rows_are_sorted_and_exact(problem: ProblemType, raw: bool, count: int) -> None:
    logits = logits_of(count)
    pending = pending_of([(block_of(logits), 0, 0, count)])
    rows = ScoreWriter(LABELS, problem).rows(pending, raw)
    expected = logits if raw else scores_of(logits, problem)
    for row, values in zip(rows, expected, strict=True):
        parsed = json.loads(row)
        assert [one["score"] for one in parsed] == sorted(values.tolist(), reverse=True)
        assert {one["label"]: np.float32(one["score"]) for one in parsed} == dict(
            zip(LABELS, values, strict=True)
        )
        assert all(list(one) == ["score", "label"] for one in parsed)


@pytest.mark.parametrize("count", [1, FEW_SCORES])
def test_equal_scores_keep_the_order_of_the_labels(count: int) -> None:
    logits = np.tile([0.0, -0.0, 0.0], (count, 1))
    pending = pending_of([(block_of(logits), 0, 0, count)])
    for row in ScoreWriter(LABELS, ProblemType.MULTI_LABEL).rows(pending, True):
        assert [one["label"] for one in json.loads(row)] == list(LABELS)


def test_parts_are_put_in_order() -> None:
    logits = np.eye(3) * 10
    first, second = block_of(logits[:2]), block_of(logits[2:])
    pending = pending_of([(second, 2, 0, 1), (first, 0, 0, 2)])
    rows = ScoreWriter(LABELS, ProblemType.SINGLE_LABEL).rows(pending, False)
    assert [json.loads(row)[0]["label"] for row in rows] == list(LABELS)


def test_a_block_is_written_once_for_all_its_requests() -> None:
    block = block_of(logits_of(4))
    writer = ScoreWriter(LABELS, ProblemType.SINGLE_LABEL)
    rows = [writer.rows(pending_of([(block, 0, at, 2)]), False) for at in (0, 2)]
    assert block.written[False] == rows[0] + rows[1]
    assert True not in block.written


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (NonFiniteOutputError.code, NonFiniteOutputError, "non_finite_output"),
        (InternalError.code, InternalError, "the forward pass failed"),
    ],
)
@pytest.mark.filterwarnings("error")
@pytest.mark.case(73)
def test_a_failed_row_fails_its_request_only(code: int, kind: type, message: str) -> None:
    logits = logits_of(4)
    logits[2] = np.nan
    block = block_of(logits, [0, 0, code, 0])
    writer = ScoreWriter(LABELS, ProblemType.SINGLE_LABEL)
    with pytest.raises(kind, match=rf"^`inputs\[1\]`: .*{message}"):
        writer.rows(pending_of([(block, 0, 1, 3)]), False)
    with pytest.raises(kind, match=r"^the"):
        writer.rows(pending_of([(block, 0, 2, 1)]), False)
    assert len(writer.rows(pending_of([(block, 0, 0, 2)]), False)) == 2
    assert b"null" not in b"".join(block.written[False])


def test_the_index_of_a_failed_row_counts_over_all_parts() -> None:
    good, bad = block_of(logits_of(2)), block_of(logits_of(2), [0, InternalError.code])
    with pytest.raises(InternalError, match=r"inputs\[3\]"):
        ScoreWriter(LABELS, ProblemType.SINGLE_LABEL).rows(
            pending_of([(good, 0, 0, 2), (bad, 2, 0, 2)]), False
        )
