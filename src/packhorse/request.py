"""What travels: inputs, tokenised sequences and outputs, all columnar.

A set of N tokenised sequences is one flat row of T tokens and the bounds
between them, never a list of objects: at 100,000 texts a second there is no
time for an object a sequence. The same layout goes from the tokenizer over
the channel to the scheduler and the model.

Nobody changes what is made of these; four are made for every request, and what
is frozen takes four times as long to make (2 to 4 µs), so they are not.
"""

from __future__ import annotations

from collections.abc import Sequence as PySequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.errors import SERVED_ERRORS

TextOrPair = str | tuple[str, str]
"""One input: a text, or a pair of texts that the model reads together."""

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(slots=True)
class Sequences:
    """N tokenised inputs, special tokens included, in the packed layout.

    input_ids      int32 (T,)    the ids of all sequences, one after the other
    cu_seqlens     int32 (N+1,)  sequence i is input_ids[cu[i]:cu[i+1]]
    segment_starts int32 (N,)    where segment B starts in sequence i; its length if it has none;
                                 None when no sequence has one
    position_ids   int32 (T,)    only where positions are not 0..length-1 from the family's first
                                 position (a literal pad token in a RoBERTa text); else None
    truncated      bool  (N,)    whether input i was cut to fit
    token_level    bool  (N,)    which sequences want a row for every token where the model's head
                                 gives one for the sequence (token embeddings); None: none does
    marks          int32 (N,)    the token of sequence i that a head is told of: the masked one
                                 that it fills, or the first that it pools, where a prompt is left
                                 out; None: the first of each
    """

    input_ids: Int32Array
    cu_seqlens: Int32Array
    truncated: BoolArray
    segment_starts: Int32Array | None = None
    position_ids: Int32Array | None = None
    token_level: BoolArray | None = None
    marks: Int32Array | None = None

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.cu_seqlens[-1])

    @property
    def lengths(self) -> Int32Array:
        """int32 (N,): tokens in each sequence."""
        return np.diff(self.cu_seqlens)

    def slice(self, start: int, stop: int) -> Sequences:
        """Sequences start..stop-1 as views; only the bounds are copied."""
        first, last = int(self.cu_seqlens[start]), int(self.cu_seqlens[stop])
        return Sequences(
            input_ids=self.input_ids[first:last],
            cu_seqlens=self.cu_seqlens[start : stop + 1] - np.int32(first),
            truncated=self.truncated[start:stop],
            segment_starts=None if self.segment_starts is None else self.segment_starts[start:stop],
            position_ids=None if self.position_ids is None else self.position_ids[first:last],
            token_level=None if self.token_level is None else self.token_level[start:stop],
            marks=None if self.marks is None else self.marks[start:stop],
        )

    def take(self, order: NDArray[np.intp]) -> Sequences:
        """The sequences in another order (a gather; copies)."""
        lengths = self.lengths[order]
        bounds = bounds_of(lengths)
        tokens = rows_of_pieces(self.cu_seqlens[:-1][order], bounds)
        return Sequences(
            input_ids=self.input_ids[tokens],
            cu_seqlens=bounds,
            truncated=self.truncated[order],
            segment_starts=None if self.segment_starts is None else self.segment_starts[order],
            position_ids=None if self.position_ids is None else self.position_ids[tokens],
            token_level=None if self.token_level is None else self.token_level[order],
            marks=None if self.marks is None else self.marks[order],
        )


def bounds_of(lengths: Int32Array) -> Int32Array:
    """cu_seqlens, int32 (N+1,), of sequences with these lengths, int32 (N,)."""
    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def rows_of_pieces(starts: Int32Array, bounds: Int32Array) -> Int32Array:
    """Where the rows of pieces lie in their source: starts[i], starts[i] + 1, … for piece i.

    starts  int32 (N,)    the first row of each piece in the source
    bounds  int32 (N+1,)  the bounds of the pieces once they lie one after the other
    """
    rows = np.repeat(starts - bounds[:-1], np.diff(bounds))
    rows += np.arange(bounds[-1], dtype=np.int32)
    return rows


def concatenate(parts: PySequence[Sequences], first_position: int = 0) -> Sequences:
    """One packed row of all parts, in order.

    ``first_position`` is the position id of a sequence's first token in this
    family; it is needed only when some parts carry explicit positions.
    """
    if len(parts) == 1:
        return parts[0]
    segment_starts = None
    if any(part.segment_starts is not None for part in parts):
        segment_starts = np.concatenate(
            [p.lengths if p.segment_starts is None else p.segment_starts for p in parts]
        )
    position_ids = None
    if any(part.position_ids is not None for part in parts):
        position_ids = np.concatenate(
            [
                counted_positions(p.cu_seqlens, first_position)
                if p.position_ids is None
                else p.position_ids
                for p in parts
            ]
        )
    token_level = None
    if any(part.token_level is not None for part in parts):
        token_level = np.concatenate(
            [np.zeros(len(p), np.bool_) if p.token_level is None else p.token_level for p in parts]
        )
    marks = None
    if any(part.marks is not None for part in parts):
        marks = np.concatenate(
            [np.zeros(len(p), np.int32) if p.marks is None else p.marks for p in parts]
        )
    return Sequences(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        cu_seqlens=_joined_bounds(parts),
        truncated=np.concatenate([part.truncated for part in parts]),
        segment_starts=segment_starts,
        position_ids=position_ids,
        token_level=token_level,
        marks=marks,
    )


def _joined_bounds(parts: PySequence[Sequences]) -> Int32Array:
    """cu_seqlens of all parts one after the other: those of each, moved by what is before it."""
    bounds = np.zeros(sum([len(part) for part in parts]) + 1, np.int32)
    row = tokens = 0
    for part in parts:
        own = part.cu_seqlens
        np.add(own[1:], tokens, out=bounds[row + 1 : row + len(own)])
        row += len(own) - 1
        tokens += int(own[-1])
    return bounds


def is_token_level(batch: Sequences) -> bool:
    """Whether a row is asked for each token; a batch is never mixed, see ``Batch.alike``."""
    return batch.token_level is not None and bool(batch.token_level[0])


def counted_positions(cu_seqlens: Int32Array, first_position: int = 0) -> Int32Array:
    """int32 (T,): first_position, first_position + 1, … in each sequence."""
    total = int(cu_seqlens[-1])
    positions = np.arange(first_position, first_position + total, dtype=np.int32)
    return positions - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))


@dataclass(slots=True)
class Output:
    """What the model gave for a batch of N sequences.

    values     float32 (R, width)  logits or vectors, those of each sequence in neighbouring rows
    codes      uint8   (N,)  0, or the ``code`` of the ServedError that this sequence ends in
    seconds    float         how long the device worked on the batch
    row_counts int32   (N,)  rows of each sequence, which sum to R; None: one row each
    """

    values: Float32Array
    codes: NDArray[np.uint8]
    seconds: float
    row_counts: Int32Array | None = None


TicketArray = NDArray[np.uint64]


@dataclass(slots=True)
class Arrivals:
    """R requests handed to an engine at once, columnar; their N sequences lie one after the other.

    tickets    uint64  (R,)  the sender's number for each request; unique among those in flight
    counts     int32   (R,)  sequences in each request; sums to N
    clients    uint64  (R,)  whose request it is, for fairness: a hash of the API key or address
    priorities int8    (R,)  higher goes first within a client; 0 is normal
    deadlines  float64 (R,)  time.monotonic() at which the answer is worthless; inf for none
    sequences  N tokenised inputs
    arrived    time.monotonic() when the requests were queued
    """

    tickets: TicketArray
    counts: Int32Array
    clients: NDArray[np.uint64]
    priorities: NDArray[np.int8]
    deadlines: NDArray[np.float64]
    sequences: Sequences
    arrived: float


@dataclass(slots=True)
class Completions:
    """Answers for P parts of requests, columnar; a long request is answered in several parts.

    tickets   uint64  (P,)    which request
    offsets   int32   (P,)    the first sequence of this part within its request
    counts    int32   (P,)    sequences in this part; sums to N
    codes     uint8   (N,)    0 for success, else the ``code`` of a ServedError
    values    float32 (R, width); rows of sequences whose code is not 0 are meaningless
    queue_wait float32 (P,)   seconds from arrival to the start of the batch
    inference float           seconds from the start of the batch to its answer
    row_counts int32  (N,)    rows of each sequence, which sum to R; None: one row each
    """

    tickets: TicketArray
    offsets: Int32Array
    counts: Int32Array
    codes: NDArray[np.uint8]
    values: Float32Array
    queue_wait: Float32Array
    inference: float
    row_counts: Int32Array | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What one ``Completions`` has of one request.

    offset      the first of its M sequences within the request
    values, codes, row_counts   of those sequences, as in ``Output``
    """

    offset: int
    values: Float32Array
    codes: NDArray[np.uint8]
    row_counts: Int32Array | None


def parts_of(completions: Completions) -> list[Part]:
    """The P parts, as views, in the order of the tickets."""
    parts, sequence = [], 0
    bounds = None if completions.row_counts is None else bounds_of(completions.row_counts).tolist()
    for offset, count in zip(
        completions.offsets.tolist(), completions.counts.tolist(), strict=True
    ):
        own = slice(sequence, sequence + count)
        rows = own if bounds is None else slice(bounds[own.start], bounds[own.stop])
        row_counts = None if completions.row_counts is None else completions.row_counts[own]
        parts.append(Part(offset, completions.values[rows], completions.codes[own], row_counts))
        sequence += count
    return parts


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request of N sequences got: ``values``, ``codes``, ``row_counts`` of an Output."""

    values: Float32Array
    codes: NDArray[np.uint8]
    row_counts: Int32Array | None = None

    def restored(self, order: NDArray[np.intp]) -> Answer:
        """In the order before ``Sequences.take(order)``."""
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        if self.row_counts is None:
            return Answer(self.values[inverse], self.codes[inverse])
        counts = self.row_counts[inverse]
        starts = bounds_of(self.row_counts)[:-1][inverse]
        rows = rows_of_pieces(starts, bounds_of(counts))
        return Answer(self.values[rows], self.codes[inverse], counts)


def answer_of(parts: list[Part]) -> Answer:
    """The answer that arrived in these parts, at least one, in any order."""
    if len(parts) == 1:
        return Answer(parts[0].values, parts[0].codes, parts[0].row_counts)
    parts = sorted(parts, key=lambda part: part.offset)
    codes = np.concatenate([part.codes for part in parts])
    # What failed may have no rows, and then not the width of the others either.
    filled = [part.values for part in parts if len(part.values)] or [parts[0].values]
    if all(part.row_counts is None for part in parts):
        return Answer(np.concatenate(filled), codes)
    row_counts = [
        np.ones(len(part.codes), np.int32) if part.row_counts is None else part.row_counts
        for part in parts
    ]
    return Answer(np.concatenate(filled), codes, np.concatenate(row_counts))


def joined(answers: PySequence[Answer]) -> Answer:
    """One answer of the pieces of a call, at least one of them.

    Raises the error of the first sequence that failed, naming its index.
    """
    whole = answers[0]
    if len(answers) > 1:
        whole = answer_of(
            [Part(n, each.values, each.codes, each.row_counts) for n, each in enumerate(answers)]
        )
    if whole.codes.any():
        first = int(whole.codes.argmax())
        failed = SERVED_ERRORS[int(whole.codes[first])]
        raise failed(f"input {first} has no answer: {failed.__doc__}")
    return whole
