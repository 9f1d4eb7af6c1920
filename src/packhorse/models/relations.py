"""What attention makes of the places of tokens, from a checkpoint's tensors: a Relation a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.kernels.reference import PositionVectors
from packhorse.models.backend import PLAIN, Relation, Rotation
from packhorse.models.distances import bias_by_distance, log_buckets, rotation_tables
from packhorse.models.names import Names
from packhorse.positions import DisentangledPositions, RotaryPositions


@dataclass(frozen=True, slots=True)
class Relations:
    """Makes the relations of all layers; what layers share is made once."""

    checkpoint: Checkpoint
    names: Names
    tensors: Mapping[str, Tensor]
    device: torch.device
    dtype: torch.dtype
    made: dict[object, Tensor | Rotation] = field(default_factory=dict)

    def of_layer(self, i: int) -> Relation:
        positions = self.checkpoint.architecture.positions
        if isinstance(positions, RotaryPositions):
            theta, window = positions.thetas[i], positions.windows[i]
            return Relation(window=window, rotation=self._rotation(theta))
        if isinstance(positions, DisentangledPositions):
            return self._disentangled(i, positions)
        if self.names.relative_bias is not None:
            return Relation(score_bias=self._score_bias(self.names.relative_bias[0]))
        return PLAIN

    def _rotation(self, theta: float) -> Rotation:
        if theta not in self.made:
            shape = self.checkpoint.architecture
            tables = rotation_tables(theta, shape.max_positions, shape.head_size)
            self.made[theta] = Rotation(*(table.to(self.device) for table in tables))
        rotation = self.made[theta]
        assert isinstance(rotation, Rotation)
        return rotation

    def _score_bias(self, name: str) -> Tensor:
        """float32 (heads, 2 L - 1): what is added to a score, by distance, for L positions."""
        positions = self.checkpoint.architecture.max_positions
        table = partial(self._float32, f"{name}.weight")
        return self._once("score bias", lambda: bias_by_distance(table(), positions))

    def _disentangled(self, i: int, kind: DisentangledPositions) -> Relation:
        shape = self.checkpoint.architecture
        scale = (shape.head_size * kind.score_parts) ** -0.5
        if not kind.relative or kind.score_parts == 1:
            return Relation(scale=scale)
        names, keys = self.names, self.names.layer_keys(i, self.checkpoint.config)
        key, query = names.position_key, names.position_query
        if kind.shared:
            key, query = names.key, names.query
        vectors = PositionVectors(
            self._projected(key.format(**keys)) if kind.content_to_position else None,
            self._projected(query.format(**keys)) if kind.position_to_content else None,
            self._once("buckets", lambda: self._buckets(kind)),
        )
        return Relation(positions=vectors, scale=scale)

    def _buckets(self, kind: DisentangledPositions) -> Tensor:
        positions = self.checkpoint.architecture.max_positions
        buckets = log_buckets(positions, kind.span, kind.buckets, kind.max_distance)
        return buckets.to(self.device)

    def _projected(self, name: str) -> Tensor:
        """The table of distances, (B, D), through a dense layer; computed in float32."""
        table = self._once("table", self._table)
        weight, bias = self._float32(f"{name}.weight"), self._float32(f"{name}.bias")
        return F.linear(table, weight, bias).to(self.dtype).contiguous()

    def _table(self) -> Tensor:
        """The table of distances, float32 (B, D), normalised where the checkpoint says so."""
        shape, norm = self.checkpoint.architecture, self.names.position_norm
        table = self._float32(f"{self.names.position_table}.weight")
        assert isinstance(shape.positions, DisentangledPositions)
        if not shape.positions.normed:
            return table
        gamma, beta = self._float32(f"{norm}.weight"), self._float32(f"{norm}.bias")
        return F.layer_norm(table, (table.shape[1],), gamma, beta, shape.layer_norm_eps)

    def _once(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            self.made[key] = make()
        value = self.made[key]
        assert isinstance(value, Tensor)
        return value

    def _float32(self, name: str) -> Tensor:
        return self.tensors[name].to(self.device, torch.float32, copy=True)
