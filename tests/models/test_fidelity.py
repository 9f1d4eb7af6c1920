"""Our logits against Transformers' in float32, and the proof that the comparison is sharp."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import packhorse.engine.cpu_runner
import packhorse.models.load
from packhorse import Encoder
from packhorse.kernels import reference
from packhorse.models import cpu_products
from packhorse.models.backend import Norm
from packhorse.models.cpu_backend import CpuBackend
from packhorse.request import Sequences, TextOrPair
from tests import tiny_checkpoints

RELATIVE = 1e-5
"""The largest difference that is rounding, as a share of the largest logit."""

SETTINGS = {
    "single label": {"num_labels": 3},
    "multi-label": {"num_labels": 4, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "one label": {"num_labels": 1},
}


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 2 to about 60 tokens, of all lengths."""
    source = random.Random(seed)
    return [" ".join(source.choices(tiny_checkpoints.WORDS, k=i % 59)) for i in range(count)]


def pairs(count: int) -> list[TextOrPair]:
    """The second is never empty: Transformers' tokenizer takes that for no second at all."""
    seconds = [f"{text} end" for text in texts(count, seed=1)]
    return list(zip(texts(count), seconds[::-1], strict=True))


def difference(folder: Path, inputs: list[TextOrPair], device: str = "cpu") -> float:
    """The largest difference to Transformers' logits, as a share of its largest logit."""
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()
    with Encoder(folder, device=device, dtype="float32") as encoder:
        got = encoder.logits(encoder.encode(inputs))
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("inputs", [texts(60), pairs(40)], ids=["texts", "pairs"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_logits_equal_transformers(setting: str, inputs: list[TextOrPair]) -> None:
    folder = tiny_checkpoints.shared(**SETTINGS[setting])
    assert difference(folder, inputs) < RELATIVE


@pytest.mark.parametrize("head", [{"hidden_size": 60, "heads": 3}, {"hidden_size": 48, "heads": 1}])
def test_odd_sizes_equal_transformers(head: dict[str, int]) -> None:
    folder = tiny_checkpoints.shared(layers=1, intermediate_size=70, **head)
    assert difference(folder, texts(40)) < RELATIVE


@pytest.mark.parametrize("activation", sorted(reference.ACTIVATIONS))
@pytest.mark.case(35)
def test_every_activation_equals_transformers(activation: str) -> None:
    assert difference(tiny_checkpoints.shared(hidden_act=activation), texts(20)) < RELATIVE


@pytest.mark.case(75)
def test_a_text_alone_equals_itself_in_any_batch() -> None:
    inputs = [*texts(59), *pairs(20)]
    order = random.Random(3).sample(range(len(inputs)), len(inputs))
    folder = tiny_checkpoints.shared(initializer_range=0.1)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        together = encoder.logits(encoder.encode(inputs))
        shuffled = encoder.logits(encoder.encode([inputs[i] for i in order]))
        alone = np.concatenate([encoder.logits(encoder.encode([one])) for one in inputs])
    assert np.abs(together - alone).max() < 1e-6
    assert np.abs(together[order] - shuffled).max() < 1e-6


@pytest.mark.case(45, 47)
def test_scores_equal_the_pipeline() -> None:
    for setting in SETTINGS.values():
        folder = tiny_checkpoints.shared(**setting)
        inputs = texts(10)
        logits = tiny_checkpoints.reference_logits(folder, inputs)
        softmax = setting["num_labels"] > 1 and "problem_type" not in setting
        expected = logits.softmax(-1) if softmax else logits.sigmoid()
        if setting.get("problem_type") == "regression":
            expected = logits
        with Encoder(folder, device="cpu", dtype="float32") as encoder:
            assert np.allclose(encoder.predict_proba(inputs), expected.numpy(), atol=1e-5)


@pytest.mark.case(27)
def test_leftover_buffers_and_legacy_names_change_nothing(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    inputs = texts(20)
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()

    def age(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        aged = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }
        return aged | {"bert.embeddings.position_ids": torch.arange(128)[None]}

    tiny_checkpoints.edit_tensors(folder, age)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        got = encoder.logits(encoder.encode(inputs))
    assert np.abs(got - expected).max() < RELATIVE * np.abs(expected).max()


@pytest.mark.case(31)
def test_shards_equal_the_single_file(tmp_path: Path) -> None:
    whole = tiny_checkpoints.shared()
    sharded = tiny_checkpoints.make_bert(tmp_path, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    inputs = texts(20)
    with Encoder(whole, device="cpu") as one, Encoder(sharded, device="cpu") as many:
        assert np.array_equal(one.predict_proba(inputs), many.predict_proba(inputs))


# The planted faults: each is what an implementer could get wrong, and each must be seen.


def tanh_gelu(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(reference.ACTIVATIONS, "gelu", lambda x: F.gelu(x, approximate="tanh"))
    patch.setitem(cpu_products.FUSED, "gelu", ("gelu", "tanh"))


def ten_times_eps(patch: pytest.MonkeyPatch) -> None:
    norm = packhorse.models.load._Builder.norm

    def wrong(self: packhorse.models.load._Builder, name: str) -> Norm:
        right = norm(self, name)
        return replace(right, eps=right.eps * 10)

    patch.setattr(packhorse.models.load._Builder, "norm", wrong)


def positions_off_by_one(patch: pytest.MonkeyPatch) -> None:
    count = packhorse.engine.cpu_runner.counted_positions
    patch.setattr(
        packhorse.engine.cpu_runner, "counted_positions", lambda cu, first: count(cu, first + 1)
    )


def last_token_lost(patch: pytest.MonkeyPatch) -> None:
    encode = Encoder.encode

    def wrong(self: Encoder, inputs: list[TextOrPair]) -> Sequences:
        whole = encode(self, inputs)
        cut = [whole.slice(i, i + 1) for i in range(len(whole))]
        lengths = np.maximum(whole.lengths - 1, 1)
        kept = np.concatenate([s.input_ids[:n] for s, n in zip(cut, lengths, strict=True)])
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return replace(whole, input_ids=kept, cu_seqlens=bounds)

    patch.setattr(Encoder, "encode", wrong)


def neighbours_key_visible(patch: pytest.MonkeyPatch) -> None:
    def wrong(
        self: CpuBackend,
        qkv: torch.Tensor,
        layout: object,
        heads: int,
        bias: None = None,
        out: None = None,
        scratch: None = None,
    ) -> torch.Tensor:
        tokens = qkv.shape[0]
        q, k, v = qkv.view(tokens, 3, heads, -1).permute(1, 2, 0, 3)
        keys = torch.arange(tokens)
        seen = (keys >= layout.starts[:, None]) & (keys < layout.ends[:, None] + 1)  # type: ignore[attr-defined]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return attended.transpose(0, 1).reshape(tokens, -1)

    patch.setattr(CpuBackend, "attention", wrong)


def segments_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packhorse.engine.cpu_runner, "_token_types", lambda batch, starts: None)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    tanh_gelu,
    ten_times_eps,
    positions_off_by_one,
    last_token_lost,
    neighbours_key_visible,
    segments_ignored,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.case(35, 75)
def test_a_planted_fault_is_seen(
    fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints.shared(num_labels=3, layer_norm_eps=1e-4)
    inputs: list[TextOrPair] = [*texts(30), *pairs(10)]
    assert difference(folder, inputs) < RELATIVE
    fault(monkeypatch)
    assert difference(folder, inputs) > RELATIVE
