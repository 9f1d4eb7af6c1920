"""Batches on a CPU, padded a little, so that few shapes occur and each is prepared once.

oneDNN makes a kernel for every number of rows that it meets, and keeps up to a
thousand of them: each new size of batch costs milliseconds, and without
bounds on the sizes hundreds of megabytes in the end. So a batch gets a tail of
sequences that nobody reads. No other sequence sees them.
"""

from __future__ import annotations

import numpy as np

from packhorse.request import Sequences, bounds_of


def tokens_bucket(tokens: int) -> int:
    """The next number of rows, at most a sixteenth more, or 16."""
    step = 16 if tokens <= 256 else 32 if tokens <= 512 else 64
    return -(-tokens // step) * step


def sequences_bucket(sequences: int) -> int:
    """The next power of two, or the one and a half of one, from 8 on."""
    bucket = 1 << max(0, sequences - 1).bit_length()
    return bucket * 3 // 4 if bucket >= 16 and sequences <= bucket * 3 // 4 else bucket


def with_tail(batch: Sequences, pad_token_id: int, first_position: int) -> Sequences:
    """The batch and a tail, by which it has tokens and sequences of a bucket.

    The tail's sequences have one token each but for the last.
    """
    sequences, tokens = sequences_bucket(len(batch)), tokens_bucket(batch.num_tokens)
    if sequences == len(batch) and tokens > batch.num_tokens:
        sequences = sequences_bucket(len(batch) + 1)  # the tail's tokens need a sequence
    extra = sequences - len(batch)
    if not extra:
        return batch
    tokens = tokens_bucket(max(tokens, batch.num_tokens + extra))
    tail = tokens - batch.num_tokens
    lengths = np.ones(extra, np.int32)
    lengths[-1] = tail - extra + 1
    return Sequences(
        input_ids=np.concatenate([batch.input_ids, np.full(tail, pad_token_id, np.int32)]),
        cu_seqlens=bounds_of(np.concatenate([batch.lengths, lengths])),
        truncated=np.concatenate([batch.truncated, np.zeros(extra, np.bool_)]),
        segment_starts=None
        if batch.segment_starts is None
        else np.concatenate([batch.segment_starts, lengths]),
        position_ids=None
        if batch.position_ids is None
        else np.concatenate([batch.position_ids, np.full(tail, first_position, np.int32)]),
        marks=None
        if batch.marks is None
        else np.concatenate([batch.marks, np.zeros(extra, np.int32)]),
    )
