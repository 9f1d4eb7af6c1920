"""The families of encoders that are served, as data: one row each, and no code a family.

A row says where config.json keeps what, where positions start, and how the
checkpoint's tensors are named. Everything that reads a checkpoint asks the
row. A further family of the same kind is a further row: ``dataclasses.replace``
of its next of kin with what differs.

Neither torch nor Transformers is imported: the front ends stand on this too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packhorse.tasks import Task

ACTIVATIONS = (
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_fast",
    "quick_gelu",
    "relu",
    "silu",
    "swish",
    "tanh",
)
"""Every ``hidden_act`` that is computed, by the names of Transformers."""

_ALIASES = {
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_python_tanh": "gelu_pytorch_tanh",
}
"""Further names of the same functions there."""


def activation_named(value: object) -> str | None:
    """The one of ``ACTIVATIONS`` that this JSON value means; None if it means none of them."""
    name = _ALIASES.get(value, value) if isinstance(value, str) else None
    return name if name in ACTIVATIONS else None


SERVED_CLASSES = {
    "ForSequenceClassification": Task.CLASSIFY,
    "ForTokenClassification": Task.TOKEN_CLASSIFY,
    "Model": Task.EMBED,
    # What comes before their heads is an encoder; the heads of pre-training are not read.
    "ForMaskedLM": Task.EMBED,
    "ForPreTraining": Task.EMBED,
}
"""How the name of a class ends, to the task that it is served for unless another is asked for."""

OTHER_CLASSES = {
    "LMHeadModel": "a language model",
    "ForQuestionAnswering": "an extractive question answerer",
    "ForMultipleChoice": "a multiple choice model",
    "ForNextSentencePrediction": "a next sentence predictor",
    "ForSequenceClassification": "a sequence classifier of another family",
    "ForTokenClassification": "a token classifier of another family",
    "Model": "an encoder of another family",
}
"""How the name of a class ends, to what it is: for the message that refuses it."""

OTHER_HEADS = (
    "pooler.*",
    "classifier.*",
    "pre_classifier.*",
    "cls.*",
    "lm_head.*",
    "lm_predictions.*",
    "mask_predictions.*",
    "head.*",
    "decoder.*",
    "predictions.*",
    "sop_classifier.*",
    "discriminator_predictions.*",
    "generator_predictions.*",
    "generator_lm_head.*",
    "vocab_transform.*",
    "vocab_layer_norm.*",
    "vocab_projector.*",
    "qa_outputs.*",
)
"""Patterns of tensors of heads, which are not read where another head, or none, is served."""


def classes(prefix: str) -> dict[str, Task]:
    """The class names of one family in Transformers, to the task each is served for."""
    return {f"{prefix}{end}": task for end, task in SERVED_CLASSES.items()}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where config.json keeps one number or name, and what holds when it does not say.

    A key of None means that the family has no such setting: the default always holds.
    """

    key: str | None
    default: Any


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of checkpoint.

    model_type      its name in config.json
    prefix          what its trunk's tensors are called after, without the dot
    architectures   class names in config.json, to the task each is served for
    first_position  position id of the first token; None: pad_token_id + 1
    settings        field of ``Architecture`` to its place in config.json
    only            key of config.json to the values it may have; a missing one is fine
    ignorable       patterns of tensors (prefix removed) that no served task reads
    positions       how places enter attention: by a table alone, "rotary" or "disentangled"
    """

    model_type: str
    prefix: str
    architectures: Mapping[str, Task]
    first_position: int | None
    settings: Mapping[str, Setting]
    only: Mapping[str, tuple[Any, ...]]
    ignorable: tuple[str, ...]
    positions: str | None = None


BERT = Family(
    model_type="bert",
    prefix="bert",
    architectures=classes("Bert"),
    first_position=0,
    settings={
        "vocab_size": Setting("vocab_size", 30522),
        "embedding_size": Setting(None, 0),
        "hidden_size": Setting("hidden_size", 768),
        "num_layers": Setting("num_hidden_layers", 12),
        "num_heads": Setting("num_attention_heads", 12),
        "intermediate_size": Setting("intermediate_size", 3072),
        "hidden_act": Setting("hidden_act", "gelu"),
        "layer_norm_eps": Setting("layer_norm_eps", 1e-12),
        "max_position_embeddings": Setting("max_position_embeddings", 512),
        "type_vocab_size": Setting("type_vocab_size", 2),
        "pad_token_id": Setting("pad_token_id", 0),
    },
    only={
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "is_encoder_decoder": (False, None),
        "add_cross_attention": (False, None),
        "pruned_heads": ({}, None),
        "quantization_config": (None,),
    },
    ignorable=(
        # Buffers: counted anew for every batch.
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        # Heads of the pre-training that some fine-tuned checkpoints still carry.
        "cls.predictions.*",
        "cls.seq_relationship.*",
    ),
)

ROBERTA = replace(
    BERT,
    model_type="roberta",
    prefix="roberta",
    architectures=classes("Roberta"),
    first_position=None,
    settings=dict(BERT.settings)
    | {"vocab_size": Setting("vocab_size", 50265), "pad_token_id": Setting("pad_token_id", 1)},
    ignorable=(
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "pooler.dense.*",  # its classification head has a dense layer of its own
        "lm_head.*",
    ),
)

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures=classes("XLMRoberta"),
    settings=dict(ROBERTA.settings) | {"vocab_size": Setting("vocab_size", 30522)},
)

CAMEMBERT = replace(
    XLM_ROBERTA,
    model_type="camembert",
    architectures=classes("Camembert"),
)

ERNIE = replace(
    BERT,
    model_type="ernie",
    prefix="ernie",
    architectures=classes("Ernie"),
)

ELECTRA = replace(
    BERT,
    model_type="electra",
    prefix="electra",
    architectures=classes("Electra"),
    settings=dict(BERT.settings)
    | {
        "embedding_size": Setting("embedding_size", 128),
        "hidden_size": Setting("hidden_size", 256),
        "num_heads": Setting("num_attention_heads", 4),
        "intermediate_size": Setting("intermediate_size", 1024),
    },
    ignorable=(
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "discriminator_predictions.*",
        "generator_predictions.*",
        "generator_lm_head.*",
    ),
)

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    prefix="distilbert",
    architectures=classes("DistilBert"),
    settings=dict(BERT.settings)
    | {
        "hidden_size": Setting("dim", 768),
        "num_layers": Setting("n_layers", 6),
        "num_heads": Setting("n_heads", 12),
        "intermediate_size": Setting("hidden_dim", 3072),
        "hidden_act": Setting("activation", "gelu"),
        "layer_norm_eps": Setting(None, 1e-12),
        "type_vocab_size": Setting(None, 0),
    },
    ignorable=(
        "embeddings.position_ids",
        "vocab_transform.*",
        "vocab_layer_norm.*",
        "vocab_projector.*",
    ),
)

MPNET = replace(
    BERT,
    model_type="mpnet",
    prefix="mpnet",
    architectures=classes("MPNet"),
    first_position=2,  # counted from a pad id of 1, whatever the config's pad id is
    settings=dict(BERT.settings)
    | {
        "vocab_size": Setting("vocab_size", 30527),
        "type_vocab_size": Setting(None, 0),
        "pad_token_id": Setting("pad_token_id", 1),
    },
    ignorable=("embeddings.position_ids", "pooler.dense.*", "lm_head.*"),
)

ALBERT = replace(
    BERT,
    model_type="albert",
    prefix="albert",
    architectures=classes("Albert"),
    settings=dict(BERT.settings)
    | {
        "vocab_size": Setting("vocab_size", 30000),
        "embedding_size": Setting("embedding_size", 128),
        "hidden_size": Setting("hidden_size", 4096),
        "num_heads": Setting("num_attention_heads", 64),
        "intermediate_size": Setting("intermediate_size", 16384),
        "hidden_act": Setting("hidden_act", "gelu_new"),
    },
    only=dict(BERT.only) | {"inner_group_num": (1, None)},
    ignorable=("embeddings.position_ids", "embeddings.token_type_ids", "predictions.*"),
)

MODERNBERT = replace(
    BERT,
    model_type="modernbert",
    prefix="model",
    architectures=classes("ModernBert"),
    settings=dict(BERT.settings)
    | {
        "vocab_size": Setting("vocab_size", 50368),
        "num_layers": Setting("num_hidden_layers", 22),
        "intermediate_size": Setting("intermediate_size", 1152),
        "hidden_act": Setting("hidden_activation", "gelu"),
        "head_act": Setting("classifier_activation", "gelu"),
        "layer_norm_eps": Setting("norm_eps", 1e-5),
        "max_position_embeddings": Setting("max_position_embeddings", 8192),
        "type_vocab_size": Setting(None, 0),
        "pad_token_id": Setting("pad_token_id", 50283),
    },
    only=dict(BERT.only) | {"classifier_pooling": ("cls", "mean", None)},
    ignorable=(),
    positions="rotary",
)

DEBERTA_V2 = replace(
    BERT,
    model_type="deberta-v2",
    prefix="deberta",
    architectures=classes("DebertaV2"),
    settings=dict(BERT.settings)
    | {
        "vocab_size": Setting("vocab_size", 128100),
        "hidden_size": Setting("hidden_size", 1536),
        "num_layers": Setting("num_hidden_layers", 24),
        "num_heads": Setting("num_attention_heads", 24),
        "intermediate_size": Setting("intermediate_size", 6144),
        "head_act": Setting("pooler_hidden_act", "gelu"),
        "layer_norm_eps": Setting("layer_norm_eps", 1e-7),
        "type_vocab_size": Setting("type_vocab_size", 0),
    },
    ignorable=(
        "embeddings.position_ids",
        # Without position_biased_input nothing is added to the embeddings.
        "embeddings.position_embeddings.*",
        "lm_predictions.*",
        "mask_predictions.*",
        "cls.predictions.*",
    ),
    positions="disentangled",
)

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        ERNIE,
        ELECTRA,
        DISTILBERT,
        MPNET,
        ALBERT,
        MODERNBERT,
        DEBERTA_V2,
    )
}


def served() -> str:
    """The architectures that are served, for a message."""
    ends = tuple(SERVED_CLASSES)
    names = [next(iter(family.architectures)) for family in FAMILIES.values()]
    return f"{', '.join(names)}, and the same with {', '.join(ends[1:])}"
