"""Token classification and embedding on a GPU against Transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse import Encoder
from packhorse.sentence import POOLINGS
from tests import tiny_checkpoints
from tests.models.test_fallback import INPUTS, make
from tests.models.test_families import VARIANTS
from tests.models.test_sparse import dense_weights, sparse_difference
from tests.models.test_tasks import (
    embedding_difference,
    output_of,
    token_embedding_difference,
    token_logits_difference,
)

pytestmark = pytest.mark.gpu

SPREAD: dict[str, Any] = {"initializer_range": 0.1}


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_logits_equal_transformers(variant: str) -> None:
    assert token_logits_difference(variant, "cuda", **SPREAD) < 1e-5


def test_every_pooling_equals_its_formula() -> None:
    assert embedding_difference(tuple(POOLINGS.values()), "cuda", **SPREAD) < 1e-5


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_token_embeddings_are_the_last_hidden_states(pooling: str) -> None:
    assert token_embedding_difference(pooling, "cuda", **SPREAD) < 1e-5


@pytest.mark.parametrize("head", ["ForTokenClassification", "Model"])
@pytest.mark.parametrize("pooling", [None, "max"])
def test_graphs_equal_eager_launches(head: str, pooling: str | None) -> None:
    folder = tiny_checkpoints.shared("bert", head=head, num_labels=5, **SPREAD)
    pooling = pooling if head == "Model" else None
    captured = output_of(folder, device="cuda", pooling=pooling)
    eager = output_of(folder, device="cuda", pooling=pooling, without=("graphs",))
    assert np.abs(captured.values - eager.values).max() < 1e-5 * np.abs(eager.values).max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("pooling", POOLINGS.values())
def test_half_types_pool_in_float32(dtype: str, pooling: str) -> None:
    folder = tiny_checkpoints.shared("bert", head="Model", num_labels=None, **SPREAD)
    exact = output_of(folder, device="cuda", pooling=pooling).values
    half = output_of(folder, device="cuda", pooling=pooling, dtype=dtype).values
    tolerance = {"float16": 0.01, "bfloat16": 0.08}[dtype]
    assert np.abs(half - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize("without", [(), ("graphs",)])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_sparse_weights_equal_transformers(family: str, without: tuple[str, ...]) -> None:
    folder = tiny_checkpoints.shared(family, head="ForMaskedLM", num_labels=None, **SPREAD)
    assert sparse_difference(folder, device="cuda", without=without) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2"])
def test_masks_are_filled_as_on_a_cpu(family: str, dtype: str) -> None:
    options = next(options for name, options in VARIANTS.values() if name == family)
    folder = tiny_checkpoints.shared(family, head="ForMaskedLM", num_labels=None, **options)
    found = {}
    for device, kind in (("cpu", "float32"), ("cuda", dtype)):
        with Encoder(folder, device=device, dtype=kind, task="fill_mask") as encoder:
            token = encoder._loaded.masks.token
            texts = [f"a {token} film", f"{token} and {token}"] * 20
            found[device] = [
                {fill.token: fill.score for fill in mask}
                for fills in encoder.fill_mask(texts, 10**6)
                for mask in fills
            ]
    tolerance = {"float32": 1e-4, "float16": 0.02}[dtype]
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        assert max(abs(cpu[token] - score) for token, score in cuda.items()) < tolerance


@pytest.mark.parametrize("mode", [mode for mode in POOLINGS if mode != "cls"])
def test_prompts_are_left_out_as_on_a_cpu(mode: str, tmp_path: Path) -> None:
    folder = tiny_checkpoints.make(tmp_path / "m", "bert", head="Model", num_labels=None, **SPREAD)
    module = {"type": "Pooling", "embedding_dimension": 32, "pooling_mode": mode}
    tiny_checkpoints.add_modules(folder, module | {"include_prompt": False})
    with (
        Encoder(folder, device="cpu", dtype="float32") as cpu,
        Encoder(folder, device="cuda", dtype="float32") as gpu,
    ):
        expected = cpu.embed(INPUTS, prompt="find this: ")
        got = gpu.embed(INPUTS, prompt="find this: ")
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["FNet", "SqueezeBert"])
def test_a_family_without_a_packed_path_runs_through_transformers(
    family: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", family, "ForSequenceClassification", num_labels=3)
    expected = tiny_checkpoints.reference_logits(folder, INPUTS).numpy()
    with Encoder(folder, device="cuda") as encoder:
        got = encoder.logits(encoder.encode(INPUTS))
    assert np.abs(got - expected).max() < 1e-3 * np.abs(expected).max()
    folder = make(tmp_path / "e", family, "Model")
    with Encoder(folder, device="cuda") as gpu, Encoder(folder, device="cpu") as cpu:
        expected = cpu.embed(INPUTS)
        assert np.abs(gpu.embed(INPUTS) - expected).max() < 1e-3 * np.abs(expected).max()


def test_sparse_embeddings_of_one_text_after_another_do_not_mix() -> None:
    """The output of a graph stays in its buffer until it is collected."""
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None, **SPREAD)
    texts = ["a good film", "", "the story was slow"] * 50
    together = dense_weights(folder, texts, device="cuda")
    apart = dense_weights(folder, texts[:3], device="cuda", max_batch_tokens=128)
    assert np.abs(together.reshape(50, 3, -1) - apart).max() < 1e-4 * apart.max()
