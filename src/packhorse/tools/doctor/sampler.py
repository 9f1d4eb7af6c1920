"""Where a thread spends its time: its stack, looked at again and again by another thread."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from torch import nn

INTERVAL = 0.002
"""Seconds between two looks."""

_LIBRARIES = ("/tokenizers/", "/tokenization_", "/sentencepiece/", "/nltk/", "/spacy/")
_OURS = "/packhorse/tokenizing/"
_MODULE = nn.modules.module.__file__
"""Where calls of a ``torch.nn.Module`` go through."""


def is_tokenizing(frame: FrameType | None) -> bool:
    """Whether a tokenizer's code is on this stack: a library's file, or a function of that name.

    A model that such a function calls (``tokenize_and_predict``) is no part of it.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _MODULE:
            return False
        if "tokeniz" in frame.f_code.co_name or any(p in name for p in (*_LIBRARIES, _OURS)):
            return True
        frame = frame.f_back
    return False


class Sampler:
    """Looks at the thread that made it, within a with block. ``share`` is of the looks, 0 to 1."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._is_over = threading.Event()
        self._looks = self._hits = 0
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    @property
    def share(self) -> float:
        return self._hits / max(1, self._looks)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._watcher.join()

    def _watch(self) -> None:
        """A look that came late counts for the time that it missed: the GIL was held."""
        last = time.perf_counter()
        while not self._is_over.wait(INTERVAL):
            frame = sys._current_frames().get(self._thread)
            now = time.perf_counter()
            weight = max(1, round((now - last) / INTERVAL))
            last = now
            self._looks += weight
            self._hits += weight * is_tokenizing(frame)
