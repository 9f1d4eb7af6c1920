"""POST /predict: texts and pairs to labels with scores, as text-embeddings-inference does it.

This is the hot path: it runs for every request, so what can be prepared is prepared once.
"""

from __future__ import annotations

from functools import partial

import msgspec

from packhorse.server.answers import answer_in
from packhorse.server.model_route import Asking, ModelRoute, characters_of
from packhorse.server.schemas import PredictRequest, Score, inputs_of
from packhorse.server.scores import ScoreWriter
from packhorse.server.service import Service
from packhorse.tasks import Task
from packhorse.tokenizing.windows import Windows

PREDICTIONS = list[Score | list[Score]]
"""The answer to one input: its labels, best first; to a batch: such a list for each."""


class Predict(ModelRoute):
    """The route."""

    name = "predict"
    tasks = (Task.CLASSIFY, Task.RERANK)
    answers = PREDICTIONS
    _decoder = msgspec.json.Decoder(PredictRequest)

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._writer = ScoreWriter(service.checkpoint.labels, service.checkpoint.problem_type)

    async def answer(self, asking: Asking) -> bytes:
        """The labels of each input with their scores, best first."""
        request = self.read(self._decoder, asking)
        inputs, is_batch = inputs_of(request)
        windows, encode, raw = None, None, bool(request.raw_scores)
        if request.stride is not None:
            windows = Windows(self.service.tokenizer, request.stride)
            encode = partial(self.in_windows, windows, inputs)  # type: ignore[arg-type]
        pending = self.submit(
            asking,
            inputs,
            characters_of(inputs),
            request.truncate,
            request.truncation_direction,
            encode,
        )
        await pending.future
        if windows is None:
            rows = self._writer.rows(pending, raw)
        else:
            scores = self._writer.scores(answer_in(pending, windows.text_of).values, raw)
            rows = self._writer.written(windows.per_text(scores))
        return b"[" + b",".join(rows) + b"]" if is_batch else rows[0]
