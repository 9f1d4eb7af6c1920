"""The route for entities, with an engine that gives every token the label of its id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from packhorse.request import Completions, Sequences
from packhorse.server.pending import Block, Pending
from packhorse.server.routes import token_classify
from tests import tiny_checkpoints
from tests.unit.test_app import Rig, rig

LABELS = 5


def send(requests: Sequence[Pending], sequences: Sequences) -> None:
    """A row of logits for each token of the only request."""
    logits = np.eye(LABELS, dtype=np.float32)[sequences.input_ids % LABELS]
    completions = Completions(
        tickets=np.zeros(1, np.uint64),
        offsets=np.zeros(1, np.int32),
        counts=np.array([len(sequences)], np.int32),
        codes=np.zeros(len(sequences), np.uint8),
        values=logits,
        queue_wait=np.zeros(1, np.float32),
        inference=0.001,
        row_counts=sequences.lengths,
    )
    (pending,) = requests
    pending.take(Block(completions), 0, 0, len(sequences))


def test_entities_of_many_tokens_are_found_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []
    found = token_classify.entities_in

    def spying(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return found(*given)

    monkeypatch.setattr(token_classify, "entities_in", spying)

    async def ask(r: Rig, texts: int) -> Any:
        r.engine.send = send  # type: ignore[method-assign]
        body = {"inputs": ["good film"] * texts, "ignore_labels": []}
        answer = await r.client.post("/v1/token_classify", json=body)
        assert answer.status_code == 200
        return answer.json()["data"]

    async def main() -> None:
        folder = tiny_checkpoints.shared(head="ForTokenClassification", num_labels=LABELS)
        async with rig(folder) as r:
            (one,) = await ask(r, 1)
            assert one
            assert await ask(r, 1000) == [one] * 1000

    asyncio.run(main())
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
