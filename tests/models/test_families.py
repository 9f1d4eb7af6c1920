"""Every family against Transformers, with what sets it apart from BERT switched on."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.families import FAMILIES
from packhorse.request import TextOrPair
from tests import tiny_checkpoints
from tests.models.test_fidelity import RELATIVE, difference, pairs, texts

MODERN_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
"""Ids within a tiny vocabulary; nothing reads them."""

DEBERTA_V3 = {
    "relative_attention": True,
    "max_position_embeddings": 300,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
"""What sets the third version apart; its buckets are 256."""

# Positions of RoBERTa's kin start after the pad id, which is 0 in the tests' tokenizer.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "ernie": ("ernie", {}),
    "ernie with tasks": ("ernie", {"use_task_id": True}),
    "electra": ("electra", {"embedding_size": 16}),
    "electra, equal widths": ("electra", {"embedding_size": 32}),
    "distilbert": ("distilbert", {}),
    "distilbert, relu": ("distilbert", {"activation": "relu"}),
    "albert": ("albert", {"embedding_size": 16, "layers": 3}),
    "albert in two groups": ("albert", {"embedding_size": 16, "layers": 4, "num_hidden_groups": 2}),
    "albert, equal widths": ("albert", {"embedding_size": 32}),
    "mpnet": ("mpnet", {"pad_token_id": 0, "max_position_embeddings": 300}),
    "roberta": ("roberta", {"pad_token_id": 0, "layer_norm_eps": 1e-5}),
    "roberta, pad 3": ("roberta", {"pad_token_id": 3, "type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", {"pad_token_id": 0}),
    "camembert": ("camembert", {"pad_token_id": 0}),
    "modernbert": ("modernbert", {"layers": 4, "local_attention": 16, **MODERN_IDS}),
    "modernbert, mean": (
        "modernbert",
        {"layers": 3, "local_attention": 8, "classifier_pooling": "mean", **MODERN_IDS},
    ),
    "modernbert, every bias": (
        "modernbert",
        {
            **MODERN_IDS,
            "layers": 3,
            "local_attention": 6,
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
            "classifier_activation": "silu",
        },
    ),
    "modernbert, one layer": ("modernbert", {"layers": 1, **MODERN_IDS}),
    "modernbert, own layer types": (
        "modernbert",
        {
            **MODERN_IDS,
            "layers": 3,
            "local_attention": 10,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
            },
        },
    ),
    "deberta v3": ("deberta-v2", DEBERTA_V3),
    "deberta v3, few buckets": ("deberta-v2", DEBERTA_V3 | {"position_buckets": 4, "layers": 3}),
    "deberta v3, own projections": ("deberta-v2", DEBERTA_V3 | {"share_att_key": False}),
    "deberta v2, no buckets": (
        "deberta-v2",
        DEBERTA_V3 | {"position_buckets": -1, "norm_rel_ebd": "none", "max_relative_positions": 20},
    ),
    "deberta, c2p alone": ("deberta-v2", DEBERTA_V3 | {"pos_att_type": "c2p"}),
    "deberta, p2c alone": ("deberta-v2", DEBERTA_V3 | {"pos_att_type": ["p2c"]}),
    "deberta, with tables": (
        "deberta-v2",
        DEBERTA_V3
        | {"position_biased_input": True, "type_vocab_size": 2, "pooler_hidden_act": "tanh"},
    ),
    "deberta, no distances": (
        "deberta-v2",
        DEBERTA_V3 | {"relative_attention": False, "position_biased_input": True},
    ),
}


def test_every_family_is_tried() -> None:
    assert {family for family, _ in VARIANTS.values()} == set(FAMILIES)


@pytest.mark.parametrize("problem", ["single_label_classification", "regression"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.case(37, 41)
def test_logits_equal_transformers(variant: str, problem: str) -> None:
    family, options = VARIANTS[variant]
    labels = 1 if problem == "regression" else 3
    folder = tiny_checkpoints.shared(family, num_labels=labels, problem_type=problem, **options)
    inputs: list[TextOrPair] = [*texts(40)[::3]]  # of 0 to 39 words
    if "token_type" in folder.joinpath("tokenizer_config.json").read_text() or family in (
        "bert",
        "ernie",
        "electra",
        "albert",
        "modernbert",
        "deberta-v2",
    ):
        inputs += pairs(15)[::2]
    assert difference(folder, inputs) < RELATIVE
