"""Which tensors a checkpoint of a family must hold, by name and shape."""

from __future__ import annotations

from packhorse.checkpoint import Architecture, Checkpoint
from packhorse.models.names import MaskedLmNames, Names
from packhorse.positions import DisentangledPositions
from packhorse.tasks import Task

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    """Every tensor the checkpoint must hold, by its name without the prefix."""
    return (
        _embedding_shapes(checkpoint, names)
        | _position_shapes(checkpoint, names)
        | _layer_shapes(checkpoint, names)
        | _head_shapes(checkpoint, names)
    )


def _embedding_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    shape = checkpoint.architecture
    width = shape.embedding_size
    expected: Shapes = {f"{names.word}.weight": (shape.vocab_size, width)}
    if has_position_table(checkpoint, names):
        expected[f"{names.position}.weight"] = (shape.max_position_embeddings, width)
    if has_token_types(checkpoint, names):
        expected[f"{names.token_type}.weight"] = (shape.type_vocab_size, width)
    if extra := extra_table(checkpoint, names):
        expected[f"{extra[0]}.weight"] = (extra[1], width)
    if is_projected(checkpoint, names):
        expected |= _dense_shapes(str(names.projection), shape.hidden_size, width)
    return expected | _norm_shapes(
        names.embedding_norm, width, _has_bias(checkpoint, names, "norm")
    )


def _position_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    """What makes distances count in attention, as far as layers share it."""
    shape = checkpoint.architecture
    expected: Shapes = {}
    if names.relative_bias is not None:
        table, buckets = names.relative_bias
        expected[f"{table}.weight"] = (checkpoint.config.get(buckets, 32), shape.num_heads)
    kind = shape.positions
    if isinstance(kind, DisentangledPositions) and kind.relative:
        expected[f"{names.position_table}.weight"] = (2 * kind.span, shape.hidden_size)
    if isinstance(kind, DisentangledPositions) and kind.normed:
        expected |= _norm_shapes(names.position_norm, shape.hidden_size)
    return expected


def _layer_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    shape, config = checkpoint.architecture, checkpoint.config
    hidden, inner = shape.hidden_size, shape.intermediate_size
    attention, mlp, norm = (
        _has_bias(checkpoint, names, role) for role in ("attention", "mlp", "norm")
    )
    expected: Shapes = {}
    for i in range(shape.num_layers):
        keys = names.layer_keys(i, config)
        if names.qkv is not None:
            expected |= _dense_shapes(names.qkv.format(**keys), 3 * hidden, hidden, attention)
        else:
            for part in (names.query, names.key, names.value, *_position_layers(shape, names)):
                expected |= _dense_shapes(part.format(**keys), hidden, hidden, attention)
        expected |= _dense_shapes(names.attention_output.format(**keys), hidden, hidden, attention)
        wide = inner if names.final_norm is None else 2 * inner
        expected |= _dense_shapes(names.mlp_in.format(**keys), wide, hidden, mlp)
        expected |= _dense_shapes(names.mlp_out.format(**keys), hidden, inner, mlp)
        if i > 0 or names.first_norm:
            expected |= _norm_shapes(names.attention_norm.format(**keys), hidden, norm)
        expected |= _norm_shapes(names.mlp_norm.format(**keys), hidden, norm)
    if names.final_norm is not None:
        expected |= _norm_shapes(names.final_norm, hidden, norm)
    return expected


def _head_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    hidden = checkpoint.architecture.hidden_size
    if checkpoint.task.reads_vocabulary:
        return _masked_lm_shapes(checkpoint, names)
    layers = head_layers(checkpoint, names)
    expected: Shapes = {}
    for name, _ in layers[:-1]:
        expected |= _dense_shapes(name, hidden, hidden, _has_bias(checkpoint, names, "head"))
        if names.head_norm is not None:
            expected |= _norm_shapes(names.head_norm, hidden, _has_bias(checkpoint, names, "norm"))
    if layers:
        expected |= _dense_shapes(layers[-1][0], len(checkpoint.labels), hidden)
    return expected


def _masked_lm_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    """What a masked language model's head must have; the decoder's weight if it is not tied."""
    shape, head = checkpoint.architecture, masked_lm_names(checkpoint, names)
    expected = _dense_shapes(
        head.dense, shape.embedding_size, shape.hidden_size, _has_bias(checkpoint, names, "head")
    )
    expected |= _norm_shapes(head.norm, shape.embedding_size, _has_bias(checkpoint, names, "norm"))
    if checkpoint.config.get("tie_word_embeddings") is False:
        expected[f"{head.decoder}.weight"] = (shape.vocab_size, shape.embedding_size)
    if head.bias is None and has_decoder_bias(checkpoint, names):
        expected[f"{head.decoder}.bias"] = (shape.vocab_size,)
    return expected


def optional_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    """Tensors that are read where they are there: those that another may stand in for."""
    if not checkpoint.task.reads_vocabulary:
        return {}
    shape, head = checkpoint.architecture, masked_lm_names(checkpoint, names)
    optional: Shapes = {f"{head.decoder}.weight": (shape.vocab_size, shape.embedding_size)}
    if head.bias is not None:
        optional |= dict.fromkeys((f"{head.decoder}.bias", head.bias), (shape.vocab_size,))
    return optional


def masked_lm_names(checkpoint: Checkpoint, names: Names) -> MaskedLmNames:
    """The names of the masked language model's head: DeBERTa's has others if its config says so."""
    if names.modern_masked_lm is not None and checkpoint.config.get("legacy") is False:
        return names.modern_masked_lm
    return names.masked_lm


def has_decoder_bias(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether a masked language model's logits have a bias: in ModernBERT unless switched off."""
    key = names.biases.get("decoder")
    return key is None or bool(checkpoint.config.get(key, True))


def head_layers(checkpoint: Checkpoint, names: Names) -> tuple[tuple[str, str | None], ...]:
    """Names and activations of the checkpoint's own head; none where texts are embedded."""
    if checkpoint.task.is_classifier:
        return names.head
    return names.token_head if checkpoint.task is Task.TOKEN_CLASSIFY else ()


def _position_layers(shape: Architecture, names: Names) -> list[str]:
    """The dense layers of a layer that DeBERTa's table of distances passes."""
    kind = shape.positions
    if not isinstance(kind, DisentangledPositions) or not kind.relative or kind.shared:
        return []
    both = {names.position_key: kind.content_to_position}
    both[names.position_query] = kind.position_to_content
    return [name for name, is_there in both.items() if is_there]


def _has_bias(checkpoint: Checkpoint, names: Names, role: str) -> bool:
    """Whether layers of this role have biases: always, or where the config says so."""
    return role not in names.biases or bool(checkpoint.config.get(names.biases[role], False))


def has_position_table(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether the embeddings have a table of positions that is added to them."""
    return (
        names.position is not None and checkpoint.config.get("position_biased_input") is not False
    )


def has_token_types(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether the embeddings have a table of segments."""
    return names.token_type is not None and checkpoint.architecture.type_vocab_size > 0


def extra_table(checkpoint: Checkpoint, names: Names) -> tuple[str, int] | None:
    """Name and rows of the extra table, if the config switches it on."""
    if names.extra_table is None:
        return None
    name, switch, rows = names.extra_table
    return (name, checkpoint.config.get(rows, 3)) if checkpoint.config.get(switch) else None


def is_projected(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether embeddings pass a dense layer: always, or only where their width is another."""
    shape = checkpoint.architecture
    differs = shape.embedding_size != shape.hidden_size
    return names.projection is not None and (differs or names.always_projected)


def _dense_shapes(name: str, rows: int, columns: int, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if bias else weight


def _norm_shapes(name: str, width: int, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{name}.weight": (width,)}
    return weight | {f"{name}.bias": (width,)} if bias else weight
