"""Positions of tokens where they are not simply counted."""

from __future__ import annotations

import numpy as np

from packhorse.request import BoolArray, Int32Array


def positions_among_pads(cu_seqlens: Int32Array, pads: BoolArray, pad_token_id: int) -> Int32Array:
    """Position ids, int32 (T,), where ``pads``, bool (T,), marks literal pad tokens.

    As the RoBERTa kin count them: a pad is at pad_token_id, and the others are
    numbered from pad_token_id + 1 as if no pad were there.
    """
    counted = np.cumsum(~pads, dtype=np.int32)
    before = np.concatenate([np.zeros(1, np.int32), counted])[cu_seqlens[:-1]]
    positions = counted - np.repeat(before, np.diff(cu_seqlens)) + np.int32(pad_token_id)
    return np.where(pads, np.int32(pad_token_id), positions)
