"""The library that serves, shadowed by the reference, which takes over for good if they differ."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import numpy as np

from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.tokenizing.backends import Backend, LibraryFaultError, TokenizersBackend
from packhorse.tokenizing.inputs import Inputs

logger = logging.getLogger(__name__)

Read = Callable[[Backend, Inputs], Sequences]
"""Tokenises and truncates. Raises LibraryFaultError or ValidationError."""


class Shadowed:
    """Two libraries for the same ids. Safe from several threads.

    serving      the one that is asked
    reference    `tokenizers`, which is always right
    reason       why ``serving`` serves
    share        of inputs, 0 to 1, that are read again by the reference to compare
    checked      inputs that were
    differences  those of them for which the ids differed
    """

    def __init__(
        self, serving: Backend, reference: TokenizersBackend, reason: str, share: float
    ) -> None:
        self.serving = serving
        self.reference = reference
        self.reason = reason
        self.share = share
        self.checked = 0
        self.differences = 0
        self._lock = threading.Lock()

    def read(self, read: Read, inputs: Inputs) -> Sequences:
        """The inputs by whichever library serves; falls back when it fails or differs."""
        serving = self.serving
        if serving is self.reference:
            return read(serving, inputs)
        try:
            sequences = read(serving, inputs)
        except LibraryFaultError as fault:
            sequences = read(self.reference, inputs)  # raises if the text is at fault
            self._fall_back(str(fault))
            return sequences
        if self.share > 0 and self._differs(read, inputs, sequences):
            self._fall_back(f"{serving.name} gave other ids for a text while serving")
            return read(self.reference, inputs)
        return sequences

    def _differs(self, read: Read, inputs: Inputs, sequences: Sequences) -> bool:
        """Whether the reference gives other ids for any of a few inputs drawn at random."""
        count = int(self.share * len(sequences) + random.random())
        drawn = random.sample(range(len(sequences)), min(count, len(sequences)))
        different = [
            i for i in drawn if not self._confirmed(read, inputs.only(i), sequences.slice(i, i + 1))
        ]
        for i in different:
            logger.warning(
                "%s and tokenizers differ on %s", self.serving.name, inputs.fingerprint(i)
            )
        with self._lock:
            self.checked += len(drawn)
            self.differences += len(different)
        return bool(different)

    def _confirmed(self, read: Read, one: Inputs, found: Sequences) -> bool:
        try:
            expected = read(self.reference, one)
        except LibraryFaultError:
            return True  # says nothing about the other library, and must not fail the request
        except ValidationError:
            return False  # too long after all
        return np.array_equal(found.input_ids, expected.input_ids)

    def _fall_back(self, reason: str) -> None:
        with self._lock:
            self.serving = self.reference
            self.reason = reason
        logger.warning("tokenizer: tokenizers serves from now on: %s", reason)
