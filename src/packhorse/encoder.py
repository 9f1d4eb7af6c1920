"""The library: a model in this process, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import torch

from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import (
    AUTO,
    Config,
    EngineOptions,
    ModelOptions,
    resolve,
    tokenizer_choice,
)
from packhorse.configured import pooling_of, task_of
from packhorse.engine.engine import Engine
from packhorse.engine.local import LocalEngine
from packhorse.errors import SERVED_ERRORS, RequestError, ValidationError
from packhorse.hardware import detect
from packhorse.postprocess import scores_of
from packhorse.request import Answer, Float32Array, Sequences, TextOrPair
from packhorse.tokenizing.choice import BackendChoice
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tokenizing.tokenizer import Tokenizer

FIRST_TEXTS, MOST_TEXTS = 2048, 8192
"""How many texts are tokenised before the engine gets them. The first piece is small, so that the
device begins soon, yet fills a GPU's batch; each next one is twice as large, and is tokenised while
the device works."""


@dataclass(frozen=True, slots=True)
class Classification:
    """One label of one input, and its score."""

    label: str
    score: float


class _Call:
    """One caller's pieces; another thread may give the call up while they are submitted."""

    def __init__(self) -> None:
        self.pieces: list[Future[Answer]] = []
        self._given_up = threading.Event()

    @property
    def given_up(self) -> bool:
        return self._given_up.is_set()

    def add(self, piece: Future[Answer]) -> None:
        self.pieces.append(piece)
        if self.given_up:  # after the append: either we see it here, or the other thread the piece
            piece.cancel()

    def give_up(self) -> None:
        self._given_up.set()
        for piece in list(self.pieces):
            piece.cancel()


class _Loaded:
    """A checkpoint with its tokenizer and its engine: what both kinds of encoder share."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.overlap = "overlap" not in config.engine.without
        backend = cast(BackendChoice, tokenizer_choice(config))
        self.tokenizer = Tokenizer.load(checkpoint, backend=backend)
        # A thread that asks torch for the first time gets the number that was set last, which
        # would be the engine's: have the caller's thread ask before.
        torch.get_num_threads()
        self.engine = LocalEngine(
            lambda: _warm(Engine.load(config, checkpoint, notify=True)),
            checkpoint.width,
            by_length=config.model.device == "cpu",
        )

    def submit(
        self, inputs: Sequence[TextOrPair], truncate: bool, direction: Direction, call: _Call
    ) -> list[Future[Answer]]:
        """Tokenise in pieces, so that the engine works on one while the next is tokenised.

        The futures of the pieces, in order; those of a call that is given up are cancelled.
        """
        self.engine.check()  # before tokenising, which takes time and, after a fork, threads
        size = FIRST_TEXTS if self.overlap else max(1, len(inputs))
        start = 0
        try:
            while start < len(inputs) and not call.given_up:
                piece = inputs[start : start + size]
                call.add(self.engine.submit(self._encoded(piece, inputs, truncate, direction)))
                start += size
                size = min(2 * size, MOST_TEXTS)
        except BaseException:
            call.give_up()
            raise
        return call.pieces

    def _encoded(
        self,
        piece: Sequence[TextOrPair],
        inputs: Sequence[TextOrPair],
        truncate: bool,
        direction: Direction,
    ) -> Sequences:
        try:
            return self.tokenizer.encode(piece, truncate=truncate, direction=direction)
        except RequestError:
            # Once more with all of them, for the same error with the right index.
            self.tokenizer.encode(inputs, truncate=truncate, direction=direction)
            raise

    def joined(self, answers: Sequence[Answer]) -> Float32Array:
        """The logits of all pieces, float32 (N, labels).

        Raises the error of the first row that failed, naming its index.
        """
        if not answers:
            return np.empty((0, self.checkpoint.width), np.float32)
        codes = np.concatenate([answer.codes for answer in answers])
        if codes.any():
            first = int(codes.argmax())
            failed = SERVED_ERRORS[int(codes[first])]
            raise failed(f"input {first} has no answer: {failed.__doc__}")
        return np.concatenate([answer.values for answer in answers])

    def scores(self, logits: Float32Array) -> Float32Array:
        return scores_of(logits, self.checkpoint.problem_type)

    def classified(
        self, logits: Float32Array, top_k: int | None, raw_scores: bool
    ) -> list[list[Classification]]:
        """Labels with scores for each row, best first; all, or ``top_k`` of them."""
        scores = logits if raw_scores else self.scores(logits)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        labels = self.checkpoint.labels
        return [
            [Classification(labels[i], score) for i, score in zip(row, values, strict=True)]
            for row, values in zip(
                order.tolist(), np.take_along_axis(scores, order, axis=1).tolist(), strict=True
            )
        ]


class _Base:
    """Loading and closing, alike for both encoders.

    model       hub id or folder; None for the embedded demo model
    device      auto, cpu, cuda or cuda:N
    dtype       auto, float32, bfloat16 or (on a GPU) float16
    task        auto, classify, rerank, token_classify or embed; auto: what the model was made for
    pooling     auto, cls, mean, max, mean_sqrt_len, weighted_mean or last, where texts are embedded
    revision, token, offline, cache_dir   of the hub
    allow_pickle  whether pytorch_model.bin may be read where there are no safetensors
    tokenizer   auto, nanotoken, gigatoken or tokenizers
    threads     of the CPU engine; None for the container's quota
    max_batch_tokens, max_batch_time      bounds of a batch; time in ms, None for no bound
    without     names of optimisations to switch off (``config.OPTIMISATIONS``), for comparison

    Raises ConfigError, CheckpointError or DeviceError, each saying what to do.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        device: str = AUTO,
        dtype: str = AUTO,
        *,
        task: str = AUTO,
        pooling: str = AUTO,
        revision: str | None = None,
        token: str | None = None,
        offline: bool = False,
        cache_dir: str | Path | None = None,
        allow_pickle: bool = False,
        tokenizer: str = AUTO,
        threads: int | None = None,
        max_batch_tokens: int | None = None,
        max_batch_time: float | None = None,
        without: Sequence[str] = (),
    ) -> None:
        config = Config(
            ModelOptions(
                model_id=None if model is None else str(model),
                task=task,
                pooling=pooling,
                device=device,
                dtype=dtype,
                allow_pickle=allow_pickle,
                tokenizer=tokenizer,
            ),
            EngineOptions(
                max_batch_tokens=AUTO if max_batch_tokens is None else max_batch_tokens,
                max_batch_time=math.inf if max_batch_time is None else max_batch_time,
                threads=AUTO if threads is None else threads,
                # A text stays one, to be refused as such and not by its first letter.
                without=cast(Any, without) if isinstance(without, str) else tuple(without),
            ),
        )
        config = resolve(config, detect())  # first: a wrong option needs no download
        checkpoint = load_checkpoint(
            model,
            revision=revision,
            token=token,
            offline=offline,
            cache_dir=cache_dir,
            task=task_of(config),
            pooling=pooling_of(config),
            allow_pickle=config.model.allow_pickle,
        )
        self._loaded = _Loaded(config, checkpoint)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the checkpoint's order: the columns of ``predict_proba``."""
        return self._loaded.checkpoint.labels

    @property
    def info(self) -> dict[str, Any]:
        """Model, device, dtype, limits and tokenizer that are in use."""
        tokenizer = self._loaded.tokenizer
        return self._loaded.engine.info | {
            "tokenizer": tokenizer.backend,
            "max_input_length": tokenizer.max_length,
        }


class Encoder(_Base):
    """A model in this process; safe to use from several threads.

    >>> with Encoder() as encoder:
    ...     encoder.classify(["This product is amazing and I love it!"])[0][0].label
    'POSITIVE'
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what other threads asked for, then free the device."""
        self._loaded.engine.close()

    def classify(
        self,
        inputs: Iterable[TextOrPair],
        top_k: int | None = None,
        raw_scores: bool = False,
        *,
        truncate: bool = True,
        truncation_direction: Direction = "right",
    ) -> list[list[Classification]]:
        """For each text or pair: its labels and scores, best first.

        top_k       how many labels of each; None for all
        raw_scores  logits instead of probabilities

        Raises ValidationError or TokenizationError naming the input at fault, and
        NonFiniteOutputError when the model gives NaN or infinity for one.
        """
        logits = self._logits(inputs, truncate, truncation_direction)
        return self._loaded.classified(logits, _checked_top_k(top_k), raw_scores)

    def predict_proba(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction = "right",
    ) -> Float32Array:
        """Scores, float32 (n, labels), in the order of ``labels``. Errors as in ``classify``."""
        return self._loaded.scores(self._logits(inputs, truncate, truncation_direction))

    def encode(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction = "right",
    ) -> Sequences:
        """The tokenised inputs, packed; ``truncated`` says which were cut."""
        return self._loaded.tokenizer.encode(
            _checked_inputs(inputs), truncate=truncate, direction=truncation_direction
        )

    def logits(self, sequences: Sequences) -> Float32Array:
        """float32 (n, labels) of inputs that ``encode`` returned."""
        return self._loaded.joined([self._loaded.engine.submit(sequences).result()])

    def _logits(
        self, inputs: Iterable[TextOrPair], truncate: bool, direction: Direction
    ) -> Float32Array:
        pieces = self._loaded.submit(_checked_inputs(inputs), truncate, direction, _Call())
        return self._loaded.joined([piece.result() for piece in pieces])


class AsyncEncoder(_Base):
    """The same for asyncio: concurrent awaits share batches.

    >>> async with AsyncEncoder() as encoder:                             # doctest: +SKIP
    ...     await encoder.classify(["This product is amazing and I love it!"])
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was asked for, then free the device."""
        await asyncio.to_thread(self._loaded.engine.close)

    async def classify(
        self,
        inputs: Iterable[TextOrPair],
        top_k: int | None = None,
        raw_scores: bool = False,
        *,
        truncate: bool = True,
        truncation_direction: Direction = "right",
    ) -> list[list[Classification]]:
        """As ``Encoder.classify``."""
        logits = await self._logits(inputs, truncate, truncation_direction)
        return self._loaded.classified(logits, _checked_top_k(top_k), raw_scores)

    async def predict_proba(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction = "right",
    ) -> Float32Array:
        """As ``Encoder.predict_proba``."""
        return self._loaded.scores(await self._logits(inputs, truncate, truncation_direction))

    async def _logits(
        self, inputs: Iterable[TextOrPair], truncate: bool, direction: Direction
    ) -> Float32Array:
        checked, call = _checked_inputs(inputs), _Call()
        try:
            pieces = await asyncio.to_thread(
                self._loaded.submit, checked, truncate, direction, call
            )
            answers = await asyncio.gather(*(asyncio.wrap_future(piece) for piece in pieces))
        except asyncio.CancelledError:
            call.give_up()
            raise
        return self._loaded.joined(answers)


def _warm(engine: Engine) -> Engine:
    try:
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    return engine


def _checked_inputs(inputs: Iterable[TextOrPair]) -> Sequence[TextOrPair]:
    if isinstance(inputs, str):
        raise ValidationError("give a list of texts, not one text: ['…']")
    return inputs if isinstance(inputs, list) else list(inputs)


def _checked_top_k(top_k: int | None) -> int | None:
    if top_k is not None and top_k < 1:
        raise ValidationError(f"top_k must be at least 1, not {top_k}")
    return top_k
