"""How the places of tokens enter attention, as config.json says it: turned, windowed, disentangled.

Two kinds beside the position tables of BERT's kin. Every value is checked; one
that would be computed otherwise than Transformers does is refused by its key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packhorse.config_values import LARGEST, is_integer

Refuse = Callable[[str, object, str], Exception]
"""From a key, its value and what is accepted to the error to raise."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""The ``layer_types`` of Transformers."""

_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""Where configs before Transformers 5 keep the base of the angles, and its default."""


@dataclass(frozen=True, slots=True)
class RotaryPositions:
    """ModernBERT: queries and keys are turned by their position; some layers see near keys alone.

    thetas   base of the angles of each layer
    windows  how far away a key of each layer may be, itself included; None: no limit
    """

    thetas: tuple[float, ...]
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class DisentangledPositions:
    """DeBERTa-v2 and v3: content attends to relative positions and the other way round.

    relative             whether there is a table of distances at all
    content_to_position  c2p: a query's content with the key's distance
    position_to_content  p2c: a key's content with the query's distance
    shared               positions pass the layer's own query and key weights
    span                 half the rows of the table of distances
    buckets              from half of this on, distances share rows; 0: each has its own
    max_distance         the distance at which the last row is reached
    normed               LayerNorm on the table
    """

    relative: bool
    content_to_position: bool
    position_to_content: bool
    shared: bool
    span: int
    buckets: int
    max_distance: int
    normed: bool

    @property
    def score_parts(self) -> int:
        """How many products a score is the sum of: it is divided by the square root of this."""
        return 1 + self.content_to_position + self.position_to_content


def positions_of(
    kind: str | None, config: Mapping[str, Any], refuse: Refuse
) -> RotaryPositions | DisentangledPositions | None:
    """What a family's ``positions`` says of its config; None where a table is all there is."""
    if kind == "rotary":
        return rotary_positions(config, refuse)
    return disentangled_positions(config, refuse) if kind == "disentangled" else None


def rotary_positions(config: Mapping[str, Any], refuse: Refuse) -> RotaryPositions:
    """ModernBERT's, from the keys of Transformers 5 or those of older checkpoints."""
    kinds = _layer_types(config, refuse)
    wide = config.get("local_attention", 128)
    if not is_integer(wide, 1):
        raise refuse("local_attention", wide, "a whole number of tokens from 1 on")
    thetas = {kind: _theta(config, kind, refuse) for kind in (FULL, SLIDING)}
    return RotaryPositions(
        thetas=tuple(thetas[kind] for kind in kinds),
        windows=tuple(wide // 2 if kind == SLIDING else None for kind in kinds),
    )


def _layer_types(config: Mapping[str, Any], refuse: Refuse) -> list[str]:
    layers = config.get("num_hidden_layers", 22)
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.get("global_attn_every_n_layers", 3)
        if not is_integer(every, 1):
            raise refuse("global_attn_every_n_layers", every, "a whole number from 1 on")
        return [SLIDING if i % every else FULL for i in range(layers)]
    known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not known or len(kinds) != layers:
        raise refuse("layer_types", kinds, f"{FULL} or {SLIDING} for each of {layers} layers")
    return list(kinds)


def _theta(config: Mapping[str, Any], kind: str, refuse: Refuse) -> float:
    """The base of the angles of one kind of layer."""
    if config.get("rope_scaling") is not None:
        raise refuse("rope_scaling", config["rope_scaling"], "no such key")
    both = config.get("rope_parameters")
    if both is not None and not isinstance(both, dict):
        raise refuse("rope_parameters", both, f"an object with {FULL} and {SLIDING}")
    own = (both or {}).get(kind) or {}
    if not isinstance(own, dict) or own.get("rope_type", "default") != "default":
        raise refuse("rope_parameters", both, 'objects with the rope_type "default"')
    key, default = _THETAS[kind]
    theta = own.get("rope_theta", config.get(key, default))
    if theta is None and kind == SLIDING:  # null once meant: as in the other layers
        return _theta(config, FULL, refuse)
    is_number = isinstance(theta, (int, float)) and not isinstance(theta, bool)
    if not is_number or not 1 <= theta < float("inf"):
        raise refuse(key, theta, "a number from 1 on")
    return float(theta)


def disentangled_positions(config: Mapping[str, Any], refuse: Refuse) -> DisentangledPositions:
    """DeBERTa-v2's and v3's."""
    _check_deberta(config, refuse)
    kinds = _attention_types(config, refuse)
    longest = config.get("max_relative_positions", -1)
    if not isinstance(longest, int) or longest < 1:
        longest = config.get("max_position_embeddings", 512)
    buckets = config.get("position_buckets", -1)
    if not isinstance(buckets, int) or isinstance(buckets, bool) or buckets > LARGEST:
        raise refuse("position_buckets", buckets, "a whole number")
    if buckets > 0 and not 2 <= buckets < 2 * (longest - 1):
        raise refuse("position_buckets", buckets, f"from 2 to {2 * longest - 3}, or none")
    relative = bool(config.get("relative_attention", False))
    return DisentangledPositions(
        relative=relative,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        shared=bool(config.get("share_att_key", False)),
        span=buckets if buckets > 0 else longest,
        buckets=max(0, buckets),
        max_distance=longest,
        normed="layer_norm" in [part.strip() for part in _norm_kind(config, refuse).split("|")],
    )


def _attention_types(config: Mapping[str, Any], refuse: Refuse) -> list[str]:
    """``pos_att_type``: a list, or its parts in one string."""
    kinds = config.get("pos_att_type")
    if kinds is None:
        return []
    if isinstance(kinds, str):
        kinds = [kind.strip() for kind in kinds.lower().split("|") if kind.strip()]
    if not isinstance(kinds, list) or not all(kind in ("c2p", "p2c") for kind in kinds):
        raise refuse("pos_att_type", config["pos_att_type"], '"c2p", "p2c", both, or none')
    return kinds


def _norm_kind(config: Mapping[str, Any], refuse: Refuse) -> str:
    kind = config.get("norm_rel_ebd", "none")
    if not isinstance(kind, str):
        raise refuse("norm_rel_ebd", kind, '"layer_norm" or "none"')
    return kind.lower()


def _check_deberta(config: Mapping[str, Any], refuse: Refuse) -> None:
    """Raise for what some checkpoints of the family have and nothing here computes."""
    width, heads = config.get("hidden_size", 1536), config.get("num_attention_heads", 24)
    equal = {
        "embedding_size": width,
        "pooler_hidden_size": width,
        "attention_head_size": width // heads,
    }
    for key, value in equal.items():
        if config.get(key, value) != value:
            raise refuse(key, config[key], f"{value}, or no such key")
    if config.get("conv_kernel_size", 0):
        raise refuse("conv_kernel_size", config["conv_kernel_size"], "0, or no such key")
