"""A model that is loaded in this process: its tokenizer, its engine, and calls on their way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, cast

import torch

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, tokenizer_choice
from packhorse.engine.engine import Engine
from packhorse.engine.local import LocalEngine
from packhorse.entities import Vocabulary
from packhorse.errors import RequestError
from packhorse.request import Answer, Sequences
from packhorse.tasks import Task
from packhorse.tokenizing.choice import BackendChoice
from packhorse.tokenizing.masks import Masks
from packhorse.tokenizing.names import vocabulary_of
from packhorse.tokenizing.tokenizer import Tokenizer

FIRST_TEXTS, MOST_TEXTS = 2048, 8192
"""How many texts are tokenised before the engine gets them. The first piece is small, so that the
device begins soon, yet fills a GPU's batch; each next one is twice as large, and is tokenised while
the device works."""

Encode = Callable[[Sequence[Any]], Sequences]
"""From a piece of the inputs to their sequences."""


class Call:
    """One caller's pieces; another thread may give the call up while they are submitted."""

    def __init__(self) -> None:
        self.pieces: list[Future[Answer]] = []
        self._given_up = threading.Event()

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._given_up.is_set()

    def add(self, piece: Future[Answer]) -> None:
        """One more piece, which is cancelled at once if the call is given up."""
        self.pieces.append(piece)
        if self.given_up:  # after the append: either we see it here, or the other thread the piece
            piece.cancel()

    def give_up(self) -> None:
        """Cancel all pieces, those that come too."""
        self._given_up.set()
        for piece in list(self.pieces):
            piece.cancel()


class Loaded:
    """A checkpoint with its tokenizer and its engine: what both kinds of encoder share."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.overlap = "overlap" not in config.engine.without
        backend = cast(BackendChoice, tokenizer_choice(config))
        self.tokenizer = Tokenizer.load(checkpoint, backend=backend)
        if checkpoint.task is Task.FILL_MASK:
            _ = self.masks  # what it lacks is said now
        # A thread that asks torch for the first time gets the number that was set last, which
        # would be the engine's: have the caller's thread ask before.
        torch.get_num_threads()
        self.engine = LocalEngine(
            lambda: _warm(Engine.load(config, checkpoint, notify=True)),
            checkpoint.width,
            by_length=config.model.device == "cpu",
        )

    @cached_property
    def masks(self) -> Masks:
        """What finds and fills masks. Raises CheckpointError where there is no mask token."""
        return Masks(self.tokenizer)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The names of the tokenizer's tokens, read off when they are asked for first."""
        return vocabulary_of(self.tokenizer)

    def submit(self, inputs: Sequence[Any], encode: Encode, call: Call) -> list[Future[Answer]]:
        """Tokenise in pieces, so that the engine works on one while the next is tokenised.

        The futures of the pieces, in order; those of a call that is given up are cancelled.
        """
        self.engine.check()  # before tokenising, which takes time and, after a fork, threads
        size = FIRST_TEXTS if self.overlap else max(1, len(inputs))
        start = 0
        try:
            while start < len(inputs) and not call.given_up:
                call.add(self.engine.submit(_encoded(inputs[start : start + size], inputs, encode)))
                start += size
                size = min(2 * size, MOST_TEXTS)
        except BaseException:
            call.give_up()
            raise
        return call.pieces


def _encoded(piece: Sequence[Any], inputs: Sequence[Any], encode: Encode) -> Sequences:
    try:
        return encode(piece)
    except RequestError:
        encode(inputs)  # once more with all of them, for the same error with the right index
        raise


def _warm(engine: Engine) -> Engine:
    try:
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    return engine
