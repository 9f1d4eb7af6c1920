"""A packed transformer encoder, written once for every device and family.

The forward pass has two parts, so that each can be captured on its own:

    trunk   all layers but the rest of the last: (T,) ids to hidden states and the last K, V
    tail    what only the first token of each sequence needs: (N, D), then the head

Classification, and embedding by the first token, read one token a sequence. So
the last layer computes keys and values for all tokens and everything else for
the first tokens alone; this is exact, as no other row of the last layer is ever
read. Where the head reads all tokens, the trunk is all layers.

A layer adds to what came in and normalises, twice. Post-norm families carry on
with the normalised sum, pre-norm ones with the sum itself, and normalise for the
next product alone: there a layer's norms are those of what comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from packhorse.models.backend import (
    PLAIN,
    Backend,
    Dense,
    EmbeddingTables,
    Layout,
    Norm,
    Relation,
)
from packhorse.models.heads import Head
from packhorse.models.masked_lm import SparseHead

TrunkOutput = tuple[Tensor, Tensor | None]
"""Hidden states (T, D), and the last layer's keys and values (T, 2 D) if it reads first tokens."""


@dataclass(frozen=True, slots=True)
class TrunkBuffers:
    """Memory for a trunk of up to T tokens, taken once: every layer uses it in turn.

    hidden     (T, D): a layer's input and, once that is read, its output
    key_value  (T, 2 D): what the trunk hands to the tail besides
    projected  (T, D): the hidden states between attention and feed-forward
    attended   (T D,): what attention gives; embeddings before they are projected
    wide       (T max(3 D, F),): queries, keys and values; then the inner activations
    scores     (T x B heads,) or (2 T x B heads,): of B relative positions, where there are some
    """

    hidden: Tensor
    key_value: Tensor
    projected: Tensor
    attended: Tensor
    wide: Tensor
    scores: Tensor | None

    @classmethod
    def allocate(cls, model: PackedEncoder, tokens: int) -> TrunkBuffers:
        """Zeros for ``tokens`` tokens, of the model's type and on its device."""
        word, width, inner = model.embeddings.word, model.hidden_size, model.intermediate_size

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=word.dtype, device=word.device)

        return cls(
            hidden=zeros(tokens, width),
            key_value=zeros(tokens, 2 * width),
            projected=zeros(tokens, width),
            attended=zeros(tokens * width),
            wide=zeros(tokens * max(3 * width, inner)),
            scores=zeros(tokens * model.scores_a_token) if model.scores_a_token else None,
        )

    def first(self, tokens: int) -> TrunkBuffers:
        """The same memory for a shorter row."""
        return TrunkBuffers(
            self.hidden[:tokens],
            self.key_value[:tokens],
            self.projected[:tokens],
            self.attended,
            self.wide,
            self.scores,
        )


def _shaped(memory: Tensor | None, rows: int, columns: int) -> Tensor | None:
    """The start of flat memory as (rows, columns); None stays None."""
    return None if memory is None else memory[: rows * columns].view(rows, columns)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One transformer layer (Vaswani et al. 2017; Devlin et al. 2018).

    qkv               (3 D, D): query, key and value weights, one below the other; or
    query, key_value  (D, D) and (2 D, D): in a last layer that reads the first tokens alone;
                      it has all three where it may have to read all of them as well
    attention_norm    of the sum with what attention gives
    mlp_in            (F, D), or (2 F, D) where it is gated
    mlp_norm          of the sum with what the feed-forward gives
    """

    attention_output: Dense
    attention_norm: Norm
    mlp_in: Dense
    mlp_out: Dense
    mlp_norm: Norm
    relation: Relation = PLAIN
    qkv: Dense | None = None
    query: Dense | None = None
    key_value: Dense | None = None


@dataclass(frozen=True, slots=True)
class PackedEncoder:
    """The weights of a model for one task, ready on a device.

    projection  from the embeddings' width to the hidden size, where they differ
    pre_norm    sums are carried on as they are (ModernBERT: with gated feed-forwards)
    """

    embeddings: EmbeddingTables
    layers: tuple[EncoderLayer, ...]
    head: Head | SparseHead
    num_heads: int
    activation: str
    backend: Backend
    first_token_only: bool = True
    projection: Dense | None = None
    pre_norm: bool = False

    @property
    def hidden_size(self) -> int:
        """D."""
        return self.layers[0].attention_norm.gamma.shape[0]

    @property
    def intermediate_size(self) -> int:
        """F."""
        return self.layers[0].mlp_out.in_features

    @property
    def scores_a_token(self) -> int:
        """How many scores of relative positions a token has."""
        positions = self.layers[0].relation.positions
        if positions is None:
            return 0
        tables = (positions.keys is not None) + (positions.queries is not None)
        return tables * positions.rows * self.num_heads

    def trunk(
        self,
        input_ids: Tensor,
        layout: Layout,
        buffers: TrunkBuffers | None = None,
        *,
        whole: bool = False,
    ) -> TrunkOutput:
        """Hidden states (T, D) before the last layer, and its keys and values (T, 2 D).

        Without ``first_token_only``, or ``whole``, the last layer runs whole, and
        there are no keys and values to hand on. With ``buffers`` for T tokens
        nothing is allocated, and the result is in them.
        """
        whole = whole or not self.first_token_only
        hidden = self._embedded(input_ids, layout, buffers)
        normed = hidden
        for layer in self.layers if whole else self.layers[:-1]:
            hidden, normed = self._layer(layer, hidden, normed, layout, buffers)
        if whole:
            return hidden, None
        key_value = self.layers[-1].key_value
        assert key_value is not None
        out = None if buffers is None else buffers.key_value
        key_value_states = self.backend.dense(normed, key_value, out=out)
        self._rotate(self.layers[-1], key_value_states, layout, self.num_heads)
        return hidden, key_value_states

    def _embedded(self, input_ids: Tensor, layout: Layout, buffers: TrunkBuffers | None) -> Tensor:
        hidden = None if buffers is None else buffers.hidden
        if self.projection is None:
            return self.backend.embed(self.embeddings, input_ids, layout, out=hidden)
        attended = None if buffers is None else buffers.attended
        narrow = _shaped(attended, input_ids.shape[0], self.embeddings.word.shape[1])
        embedded = self.backend.embed(self.embeddings, input_ids, layout, out=narrow)
        return self.backend.dense(embedded, self.projection, out=hidden)

    def tail(
        self,
        hidden: Tensor,
        key_value: Tensor | None,
        layout: Layout,
        out: Tensor | None = None,
    ) -> Tensor:
        """What the head makes of it: float32 (N, width), or (T, width) at the token level."""
        x = hidden
        if self.head.reads_first_token:
            x = self.backend.first_tokens(hidden, layout)
        if key_value is not None:
            x = self._last_layer(x, key_value, layout)
        return self.head.output(x, layout, self.backend, out)

    def forward(self, input_ids: Tensor, layout: Layout, *, token_level: bool = False) -> Tensor:
        """The head's output, float32 (N or T, width), of a packed row of int32 ids (T,).

        ``token_level`` leaves the head out: the last hidden states, float32 (T, D).
        """
        if token_level:
            return self.trunk(input_ids, layout, whole=True)[0].float()
        return self.tail(*self.trunk(input_ids, layout), layout)

    def _layer(
        self,
        layer: EncoderLayer,
        hidden: Tensor,
        normed: Tensor,
        layout: Layout,
        buffers: TrunkBuffers | None,
    ) -> tuple[Tensor, Tensor]:
        """From what is carried, and that as the layer reads it, to the same of the next layer."""
        assert layer.qkv is not None
        tokens, width = hidden.shape
        wide, attended, scores = (
            (None, None, None)
            if buffers is None
            else (buffers.wide, buffers.attended, buffers.scores)
        )
        qkv = self.backend.dense(normed, layer.qkv, out=_shaped(wide, tokens, 3 * width))
        self._rotate(layer, qkv, layout, 2 * self.num_heads)
        attended = self.backend.attention(
            qkv,
            layout,
            self.num_heads,
            layer.relation,
            out=_shaped(attended, tokens, width),
            scratch=scores,
        )
        return self._after_attention(layer, attended, hidden, buffers)

    def _last_layer(self, first: Tensor, key_value: Tensor, layout: Layout) -> Tensor:
        """The last layer of first tokens; at position 0 no query is turned by a rotation."""
        layer = self.layers[-1]
        assert layer.query is not None
        normed = first
        if self.pre_norm and len(self.layers) > 1:
            normed = self.backend.norm(first, self.layers[-2].mlp_norm)
        query = self.backend.dense(normed, layer.query)
        attended = self.backend.cls_attention(
            query, key_value, layout, self.num_heads, layer.relation
        )
        return self._after_attention(layer, attended, first, None)[0]

    def _rotate(self, layer: EncoderLayer, states: Tensor, layout: Layout, heads: int) -> None:
        if layer.relation.rotation is not None:
            self.backend.rotate(states, layout, layer.relation.rotation, heads)

    def _after_attention(
        self,
        layer: EncoderLayer,
        attended: Tensor,
        residual: Tensor,
        buffers: TrunkBuffers | None,
    ) -> tuple[Tensor, Tensor]:
        if self.pre_norm:
            return self._after_attention_pre_norm(layer, attended, residual, buffers)
        projected, hidden, wide = (
            (None, None, None)
            if buffers is None
            else (buffers.projected, buffers.hidden, buffers.wide)
        )
        projected = self.backend.dense_residual_norm(
            attended, layer.attention_output, residual, layer.attention_norm, out=projected
        )
        hidden = self.backend.feed_forward(
            projected,
            layer.mlp_in,
            self.activation,
            layer.mlp_out,
            layer.mlp_norm,
            inner=wide,
            out=hidden,
        )
        return hidden, hidden

    def _after_attention_pre_norm(
        self,
        layer: EncoderLayer,
        attended: Tensor,
        residual: Tensor,
        buffers: TrunkBuffers | None,
    ) -> tuple[Tensor, Tensor]:
        """``residual`` is added to in place; after the last layer its norm is all that is left."""
        normed, hidden, wide = (
            (None, None, None)
            if buffers is None
            else (buffers.projected, buffers.hidden, buffers.wide)
        )
        normed = self.backend.dense_add_norm(
            attended, layer.attention_output, residual, layer.attention_norm, out=normed
        )
        inner = self.backend.dense_gated(
            normed,
            layer.mlp_in,
            self.activation,
            out=_shaped(wide, residual.shape[0], self.intermediate_size),
        )
        if layer is self.layers[-1]:
            hidden = self.backend.dense_residual_norm(
                inner, layer.mlp_out, residual, layer.mlp_norm, out=hidden
            )
            return hidden, hidden
        normed = self.backend.dense_add_norm(
            inner, layer.mlp_out, residual, layer.mlp_norm, out=normed
        )
        return residual, normed
