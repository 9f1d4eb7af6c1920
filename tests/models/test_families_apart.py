"""ModernBERT and DeBERTa where they differ in kind: in company, faults, limits, old configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import packhorse.models.relations
from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.models import distances
from packhorse.models.backend import Relation
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.encoder import PackedEncoder
from packhorse.models.relations import Relations
from packhorse.positions import RotaryPositions
from packhorse.request import TextOrPair
from tests import tiny_checkpoints
from tests.models.test_families import DEBERTA_V3, MODERN_IDS
from tests.models.test_fidelity import RELATIVE, difference, pairs, texts

MODERN = {"layers": 4, "local_attention": 16, **MODERN_IDS}
FAMILIES = {"modernbert": MODERN, "deberta-v2": DEBERTA_V3}


def folder_of(family: str, **options: object) -> Path:
    settings = {"num_labels": 3, "initializer_range": 0.1} | FAMILIES[family] | options
    return tiny_checkpoints.shared(family, **settings)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.case(75)
def test_a_text_alone_equals_itself_in_any_batch(family: str) -> None:
    inputs = [*texts(20), *pairs(4)]
    with Encoder(folder_of(family), device="cpu", dtype="float32") as encoder:
        together = encoder.logits(encoder.encode(inputs))
        alone = np.concatenate([encoder.logits(encoder.encode([one])) for one in inputs])
    assert np.abs(together - alone).max() < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_last_layer_gives_the_same(family: str) -> None:
    from packhorse.engine.cpu_runner import packed_layout
    from packhorse.models.load import load_encoder

    folder = folder_of(family)
    checkpoint = load_checkpoint(folder)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        batch = encoder.encode(sorted(texts(10), key=len))
    ids, layout = packed_layout(batch.take(np.argsort(batch.lengths)), checkpoint.architecture)
    models = [
        load_encoder(
            checkpoint,
            CpuBackend(),
            torch.device("cpu"),
            torch.float32,
            first_token_only=first_token_only,
        )
        for first_token_only in (True, False)
    ]
    assert models[0].first_token_only
    few, whole = (model.forward(ids, layout) for model in models)
    assert (few - whole).abs().max() < 1e-5 * whole.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.case(69)
def test_bfloat16_is_finite_and_near(family: str) -> None:
    folder, inputs = folder_of(family, initializer_range=0.05), texts(20)
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()
    with Encoder(folder, device="cpu", dtype="bfloat16") as encoder:
        got = encoder.logits(encoder.encode(inputs))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def window_one_wider(patch: pytest.MonkeyPatch) -> None:
    of_layer = Relations.of_layer

    def wrong(self: Relations, i: int) -> Relation:
        right = of_layer(self, i)
        return right if right.window is None else replace(right, window=right.window + 1)

    patch.setattr(Relations, "of_layer", wrong)


def local_angles_everywhere(patch: pytest.MonkeyPatch) -> None:
    tables = distances.rotation_tables
    patch.setattr(
        packhorse.models.relations,
        "rotation_tables",
        lambda theta, length, size: tables(10_000.0, length, size),
    )


def keys_left_unturned_in_the_last_layer(patch: pytest.MonkeyPatch) -> None:
    rotate = PackedEncoder._rotate

    def wrong(self: PackedEncoder, layer: object, *rest: object) -> None:
        if layer is not self.layers[-1]:
            rotate(self, layer, *rest)  # type: ignore[arg-type]

    patch.setattr(PackedEncoder, "_rotate", wrong)


def norm_of_the_sum_is_carried_on(patch: pytest.MonkeyPatch) -> None:
    add_norm = CpuBackend.dense_add_norm

    def wrong(self: CpuBackend, x: object, layer: object, residual: torch.Tensor, *rest: object,
              **options: object) -> torch.Tensor:  # fmt: skip
        return residual.copy_(add_norm(self, x, layer, residual, *rest, **options))  # type: ignore[arg-type]

    patch.setattr(CpuBackend, "dense_add_norm", wrong)


def distances_turned_round(patch: pytest.MonkeyPatch) -> None:
    right = distances.log_buckets
    patch.setattr(packhorse.models.relations, "log_buckets", lambda *sizes: right(*sizes).flip(0))


def linear_buckets(patch: pytest.MonkeyPatch) -> None:
    right = distances.log_buckets
    patch.setattr(
        packhorse.models.relations,
        "log_buckets",
        lambda length, span, buckets, longest: right(length, span, 0, longest),
    )


def scale_of_plain_attention(patch: pytest.MonkeyPatch) -> None:
    of_layer = Relations.of_layer

    def wrong(self: Relations, i: int) -> Relation:
        right = of_layer(self, i)
        return replace(right, scale=self.checkpoint.architecture.head_size**-0.5)

    patch.setattr(Relations, "of_layer", wrong)


def table_of_distances_not_normalised(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Relations) -> torch.Tensor:
        return self._float32(f"{self.names.position_table}.weight")

    patch.setattr(Relations, "_table", wrong)


Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[tuple[str, Fault]] = [
    ("modernbert", window_one_wider),
    ("modernbert", local_angles_everywhere),
    ("modernbert", keys_left_unturned_in_the_last_layer),
    ("modernbert", norm_of_the_sum_is_carried_on),
    ("deberta-v2", distances_turned_round),
    ("deberta-v2", linear_buckets),
    ("deberta-v2", scale_of_plain_attention),
    ("deberta-v2", table_of_distances_not_normalised),
]


@pytest.mark.parametrize(
    ("family", "fault"), FAULTS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_planted_fault_is_seen(
    family: str, fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, inputs = folder_of(family, initializer_range=0.3), texts(30)
    assert difference(folder, inputs) < RELATIVE
    fault(monkeypatch)
    assert difference(folder, inputs) > RELATIVE


@pytest.mark.case(39)
def test_both_poolings_read_what_they_say() -> None:
    """Equal weights, other numbers, each as Transformers has them."""
    inputs, logits = texts(12), {}
    for pooling in ("cls", "mean"):
        folder = folder_of("modernbert", classifier_pooling=pooling)
        assert difference(folder, inputs) < RELATIVE
        with Encoder(folder, device="cpu", dtype="float32") as encoder:
            logits[pooling] = encoder.logits(encoder.encode(inputs))
    assert np.abs(logits["cls"] - logits["mean"]).max() > 0.01


@pytest.mark.case(9)
def test_a_text_is_read_as_far_as_the_model_has_positions() -> None:
    """No limit of 512 tokens where the checkpoint has more."""
    folder = folder_of("modernbert", max_position_embeddings=8192, layers=2)
    same = "good " * 600
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        batch = encoder.encode([same + "film " * 80, same + "bad " * 80])
        assert batch.lengths.min() > 600
        assert not batch.truncated.any()
        first, second = encoder.logits(batch)
    assert np.abs(first - second).max() > 1e-4


@pytest.mark.case(69)
def test_mixed_lengths_around_the_window_equal_transformers() -> None:
    """No row is NaN or wrong because its neighbours are longer than its window."""
    inputs: list[TextOrPair] = ["a good film", *("good " * n for n in (61, 62, 63, 126, 254, 318))]
    for window in (16, 128):
        folder = folder_of("modernbert", local_attention=window, max_position_embeddings=512)
        assert difference(folder, inputs) < RELATIVE


@pytest.mark.case(43)
def test_deberta_has_no_tables_of_positions_and_segments() -> None:
    """A table longer than the tokenizer, segments ignored, long texts cut at the limit."""
    folder = folder_of("deberta-v2", max_position_embeddings=64)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        batch = encoder.encode(["good film " * 100, ("a good film", "a bad one")])
        assert batch.lengths[0] == 64
        assert batch.truncated.tolist() == [True, False]
        assert batch.segment_starts is None
        assert np.isfinite(encoder.logits(batch)).all()


OLD = {
    "global_rope_theta": 500.0,
    "local_rope_theta": 40.0,
    "global_attn_every_n_layers": 2,
    "norm_eps": 1e-5,
    "local_attention": 16,
}


def test_configs_of_older_versions_mean_the_same(tmp_path: Path) -> None:
    options = {"num_labels": 3} | MODERN | {
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
        },
    }  # fmt: skip
    new = tiny_checkpoints.make(tmp_path / "new", "modernbert", **options)
    old = tiny_checkpoints.make(tmp_path / "old", "modernbert", **options)
    tiny_checkpoints.edit_config(old, without=("rope_parameters", "layer_types"), **OLD)
    assert load_checkpoint(old).architecture == load_checkpoint(new).architecture
    assert difference(old, texts(10)) < RELATIVE
    tiny_checkpoints.edit_config(old, local_rope_theta=None)
    rotary = load_checkpoint(old).architecture.positions
    assert isinstance(rotary, RotaryPositions)
    assert set(rotary.thetas) == {500.0}


@pytest.mark.parametrize(
    ("family", "key", "value", "said"),
    [
        ("modernbert", "classifier_pooling", "max", '"cls" or "mean"'),
        ("modernbert", "layer_types", ["full_attention"], "for each of 4 layers"),
        ("modernbert", "local_attention", 0, "from 1 on"),
        ("modernbert", "rope_scaling", {"type": "linear"}, "no such key"),
        ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "yarn"}}, "default"),
        ("deberta-v2", "conv_kernel_size", 3, "0, or no such key"),
        ("deberta-v2", "pos_att_type", ["c2p", "p2p"], '"c2p", "p2c"'),
        ("deberta-v2", "embedding_size", 16, "32, or no such key"),
        ("deberta-v2", "position_buckets", "many", "whole number"),
        ("deberta-v2", "pooler_hidden_act", "mish", "gelu"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    family: str, key: str, value: object, said: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoints.make(tmp_path, family, **FAMILIES[family])
    tiny_checkpoints.edit_config(folder, **{key: value})
    with pytest.raises(CheckpointError, match=f'"{key}".*{said}'):
        load_checkpoint(folder)
