"""The libraries that turn text into ids, behind one method.

``tokenizers`` is the reference: whatever it says is right. ``nanotoken`` (for
WordPiece) and ``gigatoken`` (for BPE) are many times faster and young. None
truncates here.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from packhorse.errors import CheckpointError
from packhorse.request import Int32Array, bounds_of

Result = TypeVar("Result")

_IMPORTED_IN = os.getpid()

_OFF = {"", "off", "false", "f", "no", "n", "0"}
"""Values of TOKENIZERS_PARALLELISM with which `tokenizers` leaves its thread pool alone."""


class Rows(NamedTuple):
    """Ids of N texts: row i is ids[bounds[i]:bounds[i+1]]; int32 (T,) and int32 (N+1,)."""

    ids: Int32Array
    bounds: Int32Array

    @property
    def lengths(self) -> Int32Array:
        """int32 (N,): ids in each row."""
        return self.bounds[1:] - self.bounds[:-1]  # a third of the time of np.diff, for one text

    def replaced(self, places: NDArray[np.intp], others: Rows) -> Rows:
        """These rows, but those at ``places``, intp (M,), are the M others in their order."""
        starts, lengths = self.bounds[:-1].copy(), self.lengths
        starts[places] = others.bounds[:-1] + len(self.ids)
        lengths[places] = others.lengths
        return Rows(*gathered(np.concatenate([self.ids, others.ids]), starts, lengths))


def gathered(
    source: Int32Array, starts: Int32Array, lengths: Int32Array
) -> tuple[Int32Array, Int32Array]:
    """Pieces of ``source``, one after the other, and the bounds between them.

    Piece i is source[starts[i] : starts[i] + lengths[i]]; both int32 (N,).
    Gives int32 (sum of lengths,) and int32 (N+1,).
    """
    bounds = bounds_of(lengths)
    places = np.arange(bounds[-1], dtype=np.int32)
    places += np.repeat(starts - bounds[:-1], lengths)
    return source[places], bounds


class Backend(Protocol):
    """What a tokenizing library must do for us. Safe from several threads."""

    name: str

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        """Ids of each text, untruncated, with special tokens around them if ``special``."""


class TokenizersBackend:
    """Hugging Face ``tokenizers``. Its truncation and padding are off and must stay off."""

    name = "tokenizers"

    def __init__(self, text: str, parallel: bool | None = None) -> None:
        try:
            self.library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise CheckpointError(f"tokenizer.json cannot be used: {error}") from error
        self.library.no_truncation()
        self.library.no_padding()
        self._parallel = parallel

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        # For batches it frees the interpreter's lock: a huge text stops no other thread. That it
        # leaves out offsets and types of tokens does not matter, as only ids are read.
        if pool_is_off() or (len(texts) > 1 and may_use_threads(self._parallel)):
            encodings = self.library.encode_batch_fast(list(texts), add_special_tokens=special)
        else:
            encode = self.library.encode  # the one call that never touches the thread pool
            encodings = [encode(text, add_special_tokens=special) for text in texts]
        rows = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        bounds = bounds_of(lengths)
        return Rows(np.fromiter(chain.from_iterable(rows), np.int32, bounds[-1]), bounds)


class NanotokenBackend:
    """nanotoken. Its result already is the packed layout, but for the types of the integers.

    Raises ImportError where it is not installed, and nanotoken's
    UnsupportedTokenizerError, a ValueError, for what is not WordPiece.
    """

    name = "nanotoken"

    def __init__(self, text: str, parallel: bool | None = None) -> None:
        import nanotoken

        self._library = nanotoken.Tokenizer.from_json(text)
        self._parallel = parallel

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        rows = self._library.encode_batch(
            texts, add_special_tokens=special, parallel=may_use_threads(self._parallel)
        )
        return Rows(rows.ids.view(np.int32), rows.offsets.astype(np.int32))


class LibraryFaultError(Exception):
    """A library failed on some text. Says how, and never holds the text."""


def guarded(library: str, call: Callable[[], Result]) -> Result:
    """What a library's ``call`` gives.

    Raises LibraryFaultError for whatever that raises, a panic of Rust too.
    """
    try:
        return call()
    except BaseException as error:  # a panic derives from nothing narrower
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        fault = f"{library} raised {type(error).__name__}"
    # Raised out here: the error above may quote the text, and must not even be the context.
    raise LibraryFaultError(fault)


def rows_of(backend: Backend, texts: Sequence[str], special: bool) -> Rows:
    """``backend.rows``. Raises LibraryFaultError as ``guarded`` does."""
    return guarded(backend.name, lambda: backend.rows(texts, special))


def may_use_threads(parallel: bool | None) -> bool:
    """Whether a library's thread pool may be used, if ``parallel`` asks for it.

    Never in a forked child: the threads of a pool that was started before the
    fork are not there, and the first batch would wait for them for ever. None
    means yes, except in a worker of ``multiprocessing``: the workers would
    fight for the cores.
    """
    if parallel is False or os.getpid() != _IMPORTED_IN:
        return False
    return parallel is True or multiprocessing.parent_process() is None


def pool_is_off() -> bool:
    """Whether `tokenizers` is told to use no thread pool, so that a batch is safe after a fork."""
    return os.environ.get("TOKENIZERS_PARALLELISM", "on").lower() in _OFF
