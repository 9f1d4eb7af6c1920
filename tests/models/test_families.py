"""Every family against Transformers, with what sets it apart from BERT switched on."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.families import FAMILIES
from packhorse.request import TextOrPair
from tests import tiny_checkpoints
from tests.models.test_fidelity import RELATIVE, difference, pairs, texts

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
}


def test_every_family_is_tried() -> None:
    assert {family for family, _ in VARIANTS.values()} == set(FAMILIES)


@pytest.mark.parametrize("problem", ["single_label_classification", "regression"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, problem: str) -> None:
    family, options = VARIANTS[variant]
    labels = 1 if problem == "regression" else 3
    folder = tiny_checkpoints.shared(family, num_labels=labels, problem_type=problem, **options)
    inputs: list[TextOrPair] = [*texts(40)]
    if "token_type" in folder.joinpath("tokenizer_config.json").read_text() or family in (
        "bert",
        "ernie",
        "electra",
        "albert",
    ):
        inputs += pairs(15)
    assert difference(folder, inputs) < RELATIVE
