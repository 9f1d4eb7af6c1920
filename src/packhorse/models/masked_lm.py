"""The head of a masked language model, as SPLADE reads it: a weight for each token of a vocabulary.

For a text whose tokens have the logits x_1 … x_n over a vocabulary of V, SPLADE's weights are

    max over i of log1p(relu(x_i)), by element

(Formal et al. 2021, arXiv:2109.10086). The maximum is over all tokens, [CLS] and [SEP] too, as in
sentence-transformers' SpladePooling, which leaves out nothing but padding, and as in
text-embeddings-inference. log1p(relu(x)) never falls as x grows, so it is taken of the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from packhorse.models.backend import Backend, Dense, Layout
from packhorse.models.heads import HeadStep, stepped

VOCABULARY_BLOCK = 2048
"""Tokens of the vocabulary whose logits are there at a time: 64 MiB for 16,384 tokens in half
types. All of BERT's vocabulary would be a gigabyte."""


@dataclass(frozen=True, slots=True)
class SparseHead:
    """From hidden states to SPLADE's weights, float32 (N, V), most of them 0.

    steps        dense layer and LayerNorm before the vocabulary, in float32
    vocabulary   (block, E): the table that gives logits, block by block, in the trunk's type
    width        V
    twice_log1p  whether log1p is applied once more (Shen et al. 2025, arXiv:2504.14839)
    """

    steps: tuple[HeadStep, ...]
    vocabulary: tuple[Dense, ...]
    width: int
    twice_log1p: bool = False

    is_token_level = False
    reads_first_token = reads_marked_token = False
    is_sparse = True

    def output(
        self, x: Tensor, layout: Layout, backend: Backend, out: Tensor | None = None
    ) -> Tensor:
        """float32 (N, V) from hidden states (T, D)."""
        dtype, count = x.dtype, layout.cu_seqlens.shape[0] - 1
        for step in self.steps:
            x = stepped(x, step, backend)
        x = x.to(dtype)
        if out is None:
            out = torch.empty(count, self.width, dtype=torch.float32, device=x.device)
        first = 0
        for block in self.vocabulary:
            largest = backend.pool(backend.dense(x, block), layout, "max")
            last = first + largest.shape[1]
            out[:, first:last] = self._weights(largest)
            first = last
        return out

    def _weights(self, logits: Tensor) -> Tensor:
        weights = torch.relu_(logits).log1p_()
        return weights.log1p_() if self.twice_log1p else weights


def vocabulary_blocks(table: Tensor, bias: Tensor, backend: Backend) -> tuple[Dense, ...]:
    """A table (V, E) and bias (V,) as dense layers of at most ``VOCABULARY_BLOCK`` rows."""
    return tuple(
        backend.pack(rows, part.contiguous())
        for rows, part in zip(
            table.split(VOCABULARY_BLOCK), bias.split(VOCABULARY_BLOCK), strict=True
        )
    )
