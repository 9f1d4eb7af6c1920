"""A packed transformer encoder, written once for every device and BERT-kin family.

The forward pass has two parts, so that each can be captured on its own:

    trunk   all layers but the rest of the last: (T,) ids to hidden states and the last K, V
    tail    what only the first token of each sequence needs: (N, D), then the head's logits

Classification reads one token a sequence. So the last layer computes keys and
values for all tokens and everything else for the first tokens alone; this is
exact, as no other row of the last layer is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from packhorse.models.backend import Backend, Dense, EmbeddingTables, Layout, Norm
from packhorse.models.heads import ClassificationHead

TrunkOutput = tuple[Tensor, Tensor | None]
"""Hidden states (T, D), and the last layer's keys and values (T, 2 D) if it reads first tokens."""


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One post-norm transformer layer (Vaswani et al. 2017; Devlin et al. 2018).

    qkv               (3 D, D): query, key and value weights, one below the other; or
    query, key_value  (D, D) and (2 D, D): in a last layer that reads the first tokens alone
    """

    attention_output: Dense
    attention_norm: Norm
    mlp_in: Dense
    mlp_out: Dense
    mlp_norm: Norm
    qkv: Dense | None = None
    query: Dense | None = None
    key_value: Dense | None = None


@dataclass(frozen=True, slots=True)
class PackedEncoder:
    """The weights of a classifier, ready on a device.

    projection  from the embeddings' width to the hidden size, where they differ
    score_bias  float32 (heads, 2 L - 1): added to attention scores by distance (key - query)
    """

    embeddings: EmbeddingTables
    layers: tuple[EncoderLayer, ...]
    head: ClassificationHead
    num_heads: int
    activation: str
    backend: Backend
    first_token_only: bool = True
    projection: Dense | None = None
    score_bias: Tensor | None = None

    def trunk(
        self, input_ids: Tensor, layout: Layout, out: TrunkOutput | None = None
    ) -> TrunkOutput:
        """Hidden states (T, D) before the last layer, and its keys and values (T, 2 D).

        Without ``first_token_only`` the last layer runs whole, and there are
        no keys and values to hand on. ``out`` are buffers for both.
        """
        hidden_out, key_value_out = (None, None) if out is None else out
        whole = self.layers[:-1] if self.first_token_only else self.layers
        hidden = self.backend.embed(
            self.embeddings, input_ids, layout, out=hidden_out if self._ends_at_embedding else None
        )
        if self.projection is not None:
            hidden = self.backend.dense(hidden, self.projection, out=None if whole else hidden_out)
        for layer in whole:
            hidden = self._layer(
                layer, hidden, layout, out=hidden_out if layer is whole[-1] else None
            )
        if not self.first_token_only:
            return hidden, None
        key_value = self.layers[-1].key_value
        assert key_value is not None
        return hidden, self.backend.dense(hidden, key_value, out=key_value_out)

    @property
    def _ends_at_embedding(self) -> bool:
        """Whether the trunk is the embeddings alone: one layer, and that computed in the tail."""
        return self.first_token_only and len(self.layers) == 1 and self.projection is None

    def tail(self, hidden: Tensor, key_value: Tensor | None, layout: Layout) -> Tensor:
        """Logits, float32 (N, labels)."""
        first = self.backend.first_tokens(hidden, layout)
        if key_value is not None:
            first = self._last_layer(first, key_value, layout)
        return self.head.logits(first)

    def forward(self, input_ids: Tensor, layout: Layout) -> Tensor:
        """Logits, float32 (N, labels), of a packed row of int32 ids (T,)."""
        return self.tail(*self.trunk(input_ids, layout), layout)

    # In the three functions below no large intermediate outlives its last use: the memory of the
    # queries, keys and values is that of the inner activations a moment later.

    def _layer(
        self, layer: EncoderLayer, hidden: Tensor, layout: Layout, out: Tensor | None
    ) -> Tensor:
        assert layer.qkv is not None
        return self._after_attention(
            layer,
            self.backend.attention(
                self.backend.dense(hidden, layer.qkv), layout, self.num_heads, self.score_bias
            ),
            hidden,
            out,
        )

    def _last_layer(self, first: Tensor, key_value: Tensor, layout: Layout) -> Tensor:
        layer = self.layers[-1]
        assert layer.query is not None
        query = self.backend.dense(first, layer.query)
        attended = self.backend.cls_attention(
            query, key_value, layout, self.num_heads, self.score_bias
        )
        return self._after_attention(layer, attended, first, None)

    def _after_attention(
        self, layer: EncoderLayer, attended: Tensor, residual: Tensor, out: Tensor | None
    ) -> Tensor:
        hidden = self.backend.dense_residual_norm(
            attended, layer.attention_output, residual, layer.attention_norm
        )
        del attended
        inner = self.backend.dense_activation(hidden, layer.mlp_in, self.activation)
        return self.backend.dense_residual_norm(
            inner, layer.mlp_out, hidden, layer.mlp_norm, out=out
        )
