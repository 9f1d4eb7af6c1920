"""The operations a packed encoder is made of, as one interface for every device.

A model is written once against ``Backend``. Each implementation decides how the
weights of a dense layer are stored and what is fused with what: the CPU's
oneDNN path, and the kernels (Triton's, or their twins in plain PyTorch).

``out``, where a method has it, is a tensor for the result: the captured graphs
of a GPU hand the trunk's result to the tail at a fixed address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from packhorse.kernels.reference import PositionVectors


class Run(NamedTuple):
    """Neighbouring sequences of equal length: ``sequences`` of them from token ``start`` on."""

    start: int
    sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the sequences of a packed row lie.

    position_ids    int32 (T,)
    token_type_ids  int32 (T,), or None: segment 0 everywhere
    cu_seqlens      int32 (N+1,)
    starts, ends    int32 (T,): the bounds of each token's own sequence
    runs            host-side runs of equal length; only the CPU path has them
    marks           int32 (N,), or None: see ``Sequences``
    """

    position_ids: Tensor
    token_type_ids: Tensor | None
    cu_seqlens: Tensor
    starts: Tensor
    ends: Tensor
    runs: tuple[Run, ...] = ()
    marks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense layer, y = x W^T + b, in whatever storage its ``Backend`` chose.

    weight  (out, in)
    bias    (out,) or None
    """

    weight: Tensor
    bias: Tensor | None

    @property
    def in_features(self) -> int:
        """Columns of its input."""
        return self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm: gamma and beta (D,), eps added to the variance."""

    gamma: Tensor
    beta: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """word (vocab, D); position (positions, D) and token_type (types, D) or None; then a Norm."""

    word: Tensor
    position: Tensor | None
    token_type: Tensor | None
    norm: Norm


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos, sin  float32 (L, Dh/2): queries and keys are turned by position times angle."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Relation:
    """What attention makes of the places of two tokens, besides the bounds of their sequence.

    score_bias  float32 (heads, 2 L - 1): added to scores by distance (key - query)
    window      keys farther away than this are not seen
    rotation    applied to queries and keys before they meet
    positions   DeBERTa's vectors of relative positions, scored with queries and keys
    scale       what scores are multiplied by; None: 1 / sqrt Dh
    """

    score_bias: Tensor | None = None
    window: int | None = None
    rotation: Rotation | None = None
    positions: PositionVectors | None = None
    scale: float | None = None


PLAIN = Relation()
"""BERT's: places enter by the embeddings alone."""


class Backend(Protocol):
    """T tokens, N sequences, D hidden, F intermediate; formulas in kernels/reference.py."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> Dense:
        """Store a dense layer for this device; ``weight`` (out, in) is already in its dtype."""

    def embed(
        self,
        tables: EmbeddingTables,
        input_ids: Tensor,
        layout: Layout,
        out: Tensor | None = None,
    ) -> Tensor:
        """(T, D) from int32 ids (T,)."""

    def dense(self, x: Tensor, layer: Dense, out: Tensor | None = None) -> Tensor:
        """x W^T + b: (rows, in) to (rows, out)."""

    def dense_residual_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        """LayerNorm(x W^T + b + residual): (rows, in) and (rows, D) to (rows, D)."""

    def feed_forward(
        self,
        x: Tensor,
        mlp_in: Dense,
        activation: str,
        mlp_out: Dense,
        norm: Norm,
        inner: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """LayerNorm(activation(x W^T + b) V^T + c + x): (rows, D) to (rows, D).

        ``inner`` is memory for the (rows, F) between the products, of rows F elements;
        ``out`` is not x.
        """

    def dense_add_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        """residual += x W^T + b, in place; LayerNorm(residual): (rows, in) to (rows, D)."""

    def dense_gated(
        self, x: Tensor, layer: Dense, activation: str, out: Tensor | None = None
    ) -> Tensor:
        """activation(a) * b for [a b] = x W^T + b: (rows, D) to (rows, F), W (2 F, D)."""

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """LayerNorm(x) over the last axis."""

    def rotate(self, x: Tensor, layout: Layout, rotation: Rotation, num_heads: int) -> None:
        """Turn the first ``num_heads`` heads of each row of x (T, …), in place."""

    def attention(
        self,
        qkv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
        out: Tensor | None = None,
        scratch: Tensor | None = None,
    ) -> Tensor:
        """Block-diagonal attention of every token: (T, 3 D) to (T, D).

        A rotation is not applied here: see ``rotate``. ``scratch`` is flat
        memory for scores of positions.
        """

    def cls_attention(
        self,
        query: Tensor,
        kv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
    ) -> Tensor:
        """Attention of each sequence's first token: (N, D) and (T, 2 D) to (N, D)."""

    def first_tokens(self, hidden_states: Tensor, layout: Layout) -> Tensor:
        """The rows of each sequence's first token: (T, D) to (N, D)."""

    def pool(self, hidden_states: Tensor, layout: Layout, mode: str) -> Tensor:
        """Each sequence's hidden states as one row, by a ``Pooling``: (T, D) to float32 (N, D).

        Those before a sequence's mark are left out.
        """

    def head_layer(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        activation: str | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """activation(x W^T + b) in float32, weights float32: (N, in) of any type to (N, out)."""
