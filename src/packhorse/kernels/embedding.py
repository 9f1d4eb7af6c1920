"""The sum of a token's embeddings and its LayerNorm, in one pass.

    y[t] = LayerNorm(word[id_t] + position[p_t] + type[s_t])

Devlin et al. 2018, arXiv:1810.04805, figure 2. Bytes moved: T x D x itemsize
read from each table that is given (the position and type tables stay in cache)
and as many written.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.layer_norm import normalise
from packhorse.kernels.overlap import follow


def embedding_layer_norm(
    input_ids: Tensor,
    position_ids: Tensor,
    token_type_ids: Tensor | None,
    word_table: Tensor,
    position_table: Tensor | None,
    type_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """(T, D) in the tables' dtype; see ``reference.embedding_layer_norm``.

    Ids are trusted: the front end has checked their range.
    """
    (tokens,) = input_ids.shape
    hidden = word_table.shape[1]
    if out is None:
        out = torch.empty((tokens, hidden), dtype=word_table.dtype, device=word_table.device)
    tile = tiles.normalised_rows(triton.next_power_of_2(hidden))
    overlap = tiles.overlaps(word_table.device)
    _embedding_layer_norm[(triton.cdiv(tokens, tile.rows),)](
        input_ids,
        position_ids,
        token_type_ids,
        word_table,
        position_table,
        type_table,
        gamma,
        beta,
        out,
        tokens,
        eps,
        HIDDEN=hidden,
        ROWS=tile.rows,
        BLOCK=tile.columns,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


@triton.jit
def _table_rows(table, ids, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """Rows ``ids`` of a table as float32 (ROWS, BLOCK), 0 from column HIDDEN on."""
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (columns < HIDDEN) | (HIDDEN == BLOCK)
    return tl.load(table + ids.to(tl.int64)[:, None] * HIDDEN + columns, inside, 0.0).to(tl.float32)


@triton.jit(do_not_specialize=["num_tokens"])
def _embedding_layer_norm(
    input_ids, position_ids, token_type_ids, word_table, position_table, type_table, gamma, beta,
    out, num_tokens, eps, HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.minimum(tokens, num_tokens - 1)
    h = _table_rows(word_table, tl.load(input_ids + source), HIDDEN, BLOCK)
    if type_table is not None:
        if token_type_ids is None:
            h += _table_rows(type_table, tl.zeros_like(source), HIDDEN, BLOCK)
        else:
            h += _table_rows(type_table, tl.load(token_type_ids + source), HIDDEN, BLOCK)
    if position_table is not None:
        h += _table_rows(position_table, tl.load(position_ids + source), HIDDEN, BLOCK)
    y = normalise(h, gamma, beta, eps, HIDDEN, BLOCK).to(out.dtype.element_ty)
    columns = tl.arange(0, BLOCK)[None, :]
    target = out + tokens.to(tl.int64)[:, None] * HIDDEN + columns
    tl.store(target, y, (tokens < num_tokens)[:, None] & (columns < HIDDEN))
