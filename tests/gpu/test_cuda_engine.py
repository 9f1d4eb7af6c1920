"""The engine on a GPU against Transformers in float32 and in the same type."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import packhorse.models.load
from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.config import Config, EngineOptions, ModelOptions
from packhorse.engine.load import load_runner
from packhorse.errors import NonFiniteOutputError
from packhorse.kernels import mlp, reference
from packhorse.models.backend import Norm
from packhorse.models.encoder import PackedEncoder
from packhorse.models.kernel_backend import KernelBackend
from packhorse.request import Float32Array, Sequences, TextOrPair, bounds_of
from packhorse.tools.demo import REVIEWS, judged_reviews
from tests import tiny_checkpoints
from tests.models.test_families import VARIANTS
from tests.models.test_fidelity import SETTINGS, difference, last_token_lost, pairs, texts

pytestmark = pytest.mark.gpu

BASE = {"hidden_size": 256, "layers": 4, "heads": 4, "intermediate_size": 1024}
"""Large enough that half types round as in a real model."""


SPREAD = 0.1
"""Of the random weights: logits spread, and float32's rounding on two devices stays small."""


def gpu_difference(folder: Path, inputs: list[TextOrPair]) -> float:
    return difference(folder, inputs, device="cuda")


@pytest.mark.parametrize("setting", SETTINGS)
def test_float32_logits_equal_transformers(setting: str) -> None:
    folder = tiny_checkpoints.shared(initializer_range=SPREAD, **SETTINGS[setting])
    assert gpu_difference(folder, [*texts(60), *pairs(40)]) < 1e-5


@pytest.mark.parametrize("head", [16, 20, 48, 64, 80, 128])
def test_every_head_size_equals_transformers(head: int) -> None:
    folder = tiny_checkpoints.shared(
        hidden_size=2 * head, heads=2, layers=3, initializer_range=SPREAD
    )
    assert gpu_difference(folder, [*texts(60), *pairs(20)]) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_equals_transformers(variant: str) -> None:
    family, options = VARIANTS[variant]
    folder = tiny_checkpoints.shared(family, initializer_range=SPREAD, num_labels=3, **options)
    assert gpu_difference(folder, [*texts(30)]) < 1e-5


def reference_errors(folder: Path, inputs: list[str], dtype: torch.dtype) -> Float32Array:
    """How far Transformers in ``dtype`` is from itself in float32, for each text by itself."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa"
    )
    model = model.eval().cuda()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()
    rows = []
    with torch.no_grad():
        for text in inputs:
            encoded = tokenizer(text, truncation=True, return_tensors="pt").to("cuda")
            rows.append(model(**encoded).logits[0].float().cpu().numpy())
    return np.stack(rows) - expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_as_exact_as_transformers(dtype: str) -> None:
    folder = tiny_checkpoints.shared(initializer_range=0.05, num_labels=3, **BASE)
    inputs = texts(1000)
    theirs = reference_errors(folder, inputs, getattr(torch, dtype))
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()
    with Encoder(folder, device="cuda", dtype=dtype) as encoder:
        ours = encoder.logits(encoder.encode(inputs)) - expected
    assert np.sqrt((ours**2).mean()) <= 1.1 * np.sqrt((theirs**2).mean())
    assert np.abs(ours).max() <= 1.5 * np.abs(theirs).max()


def test_the_demo_model_gives_the_cpus_labels() -> None:
    inputs = [review.text for review in judged_reviews(REVIEWS)]
    assert len(inputs) > 1000
    with Encoder(device="cpu", dtype="float32") as cpu, Encoder(device="cuda") as gpu:
        expected, got = cpu.predict_proba(inputs), gpu.predict_proba(inputs)
    differs = expected.argmax(1) != got.argmax(1)
    assert np.abs(expected[differs] - 0.5).max(initial=0) < 1e-3


# Planted faults, as on the CPU.


def tanh_gelu(patch: pytest.MonkeyPatch) -> None:
    dense_activation = KernelBackend.dense_activation

    def wrong(
        self: KernelBackend, x: object, layer: object, activation: str, out: object
    ) -> object:
        assert activation == "gelu"
        return dense_activation(self, x, layer, "gelu_new", out)

    patch.setattr(KernelBackend, "dense_activation", wrong)


def ten_times_eps(patch: pytest.MonkeyPatch) -> None:
    norm = packhorse.models.load._Builder.norm

    def wrong(self: packhorse.models.load._Builder, name: str) -> Norm:
        right = norm(self, name)
        return replace(right, eps=right.eps * 10)

    patch.setattr(packhorse.models.load._Builder, "norm", wrong)


def positions_off_by_one(patch: pytest.MonkeyPatch) -> None:
    trunk = PackedEncoder.trunk

    def wrong(
        self: PackedEncoder, ids: torch.Tensor, layout: object, buffers: object = None
    ) -> object:
        shifted = replace(layout, position_ids=layout.position_ids + 1)  # type: ignore[type-var]
        return trunk(self, ids, shifted, buffers)

    patch.setattr(PackedEncoder, "trunk", wrong)


def neighbours_key_visible(patch: pytest.MonkeyPatch) -> None:
    attend = KernelBackend.attention

    def wrong(
        self: KernelBackend,
        qkv: torch.Tensor,
        layout: object,
        heads: int,
        bias: None = None,
        out: None = None,
        scratch: None = None,
    ) -> torch.Tensor:
        ends = (layout.ends + 1).clamp(max=qkv.shape[0])  # type: ignore[attr-defined]
        return attend(self, qkv, replace(layout, ends=ends), heads, bias, out)

    patch.setattr(KernelBackend, "attention", wrong)


def segments_ignored(patch: pytest.MonkeyPatch) -> None:
    embed = KernelBackend.embed

    def wrong(
        self: KernelBackend, tables: object, ids: object, layout: object, out: object = None
    ) -> object:
        return embed(self, tables, ids, replace(layout, token_type_ids=None), out)  # type: ignore[type-var]

    patch.setattr(KernelBackend, "embed", wrong)


@pytest.mark.parametrize(
    "fault",
    [
        tanh_gelu,
        ten_times_eps,
        positions_off_by_one,
        neighbours_key_visible,
        last_token_lost,
        segments_ignored,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_seen(
    fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints.shared(num_labels=3, layer_norm_eps=1e-4)
    inputs: list[TextOrPair] = [*texts(30), *pairs(10)]
    fault(monkeypatch)
    assert gpu_difference(folder, inputs) > 1e-5


# The runner: graphs, memory, isolation.


def config_of(dtype: str) -> Config:
    return Config(
        ModelOptions(device="cuda:0", dtype=dtype),
        EngineOptions(max_batch_tokens=2048, max_batch_requests=256, max_batch_time=1e9, threads=2),
    )


def random_batch(source: random.Random, vocab: int, most: int = 100) -> Sequences:
    lengths = np.array([source.randint(1, 100) for _ in range(source.randint(1, most))], np.int32)
    lengths = lengths[np.cumsum(lengths) <= 2048]
    ids = np.random.default_rng(source.randrange(10**9)).integers(5, vocab, int(lengths.sum()))
    return Sequences(ids.astype(np.int32), bounds_of(lengths), np.zeros(len(lengths), np.bool_))


def test_the_same_batch_is_bitwise_equal_among_ten_thousand_and_memory_is_flat() -> None:
    folder = tiny_checkpoints.shared(num_labels=3)
    checkpoint = load_checkpoint(folder)
    runner, _ = load_runner(config_of("float16"), checkpoint, notify=False)
    source, vocab = random.Random(0), checkpoint.architecture.vocab_size
    kept = random_batch(source, vocab)
    first = runner.launch(kept).output().values
    sizes = []
    for i in range(10_000):
        runner.launch(random_batch(source, vocab, most=20)).output()
        if i % 1000 == 999:
            assert np.array_equal(runner.launch(kept).output().values, first)
            gc.collect()
            sizes.append((torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), _rss()))
    runner.close()
    reserved, allocated, resident = (np.array(column) for column in zip(*sizes, strict=True))
    assert len(set(reserved)) == 1
    assert len(set(allocated)) == 1
    assert resident[-1] - resident[1] < 20e6


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_graphs_equal_eager_launches() -> None:
    folder = tiny_checkpoints.shared(num_labels=3)
    checkpoint = load_checkpoint(folder)
    runner, _ = load_runner(config_of("float32"), checkpoint, notify=False)
    source = random.Random(1)
    for _ in range(50):
        batch = random_batch(source, checkpoint.architecture.vocab_size)
        captured = runner.launch(batch).output().values
        graphs, runner._graphs = runner._graphs, None
        eager = runner.launch(batch).output().values
        runner._graphs = graphs
        assert np.abs(captured - eager).max() < 1e-5 * np.abs(eager).max()
    runner.close()


def test_a_runner_that_nobody_closed_does_not_spoil_the_next_ones_captures() -> None:
    """Its graphs may be collected as garbage at any moment, which no capture survives."""
    checkpoint = load_checkpoint(tiny_checkpoints.shared(num_labels=3))
    usual = gc.get_threshold()
    gc.set_threshold(50, 1, 1)  # as often as possible
    try:
        for _ in range(4):
            runner, _ = load_runner(config_of("float16"), checkpoint, notify=False)
            own = [runner]
            own.append(own)  # type: ignore[arg-type]
            kept = random_batch(random.Random(2), checkpoint.architecture.vocab_size)
            assert np.isfinite(runner.launch(kept).output().values).all()
            del runner, own
    finally:
        gc.set_threshold(*usual)
        gc.collect()


def test_two_engines_of_one_process_load_and_work_at_the_same_time() -> None:
    folder = tiny_checkpoints.shared(num_labels=3)
    inputs = texts(200)
    with Encoder(folder, device="cuda") as first, ThreadPoolExecutor(1) as threads:
        expected = first.predict_proba(inputs)
        for _ in range(3):
            loading = threads.submit(Encoder, folder, device="cuda")
            while not loading.done():
                assert np.abs(first.predict_proba(inputs) - expected).max() < 1e-3
            with loading.result() as second:
                assert np.abs(second.predict_proba(inputs) - expected).max() < 1e-3


@pytest.mark.parametrize("max_batch_tokens", [512, 700, 3000])
def test_a_small_budget_starts(max_batch_tokens: int) -> None:
    folder = tiny_checkpoints.shared(num_labels=3)
    with Encoder(folder, device="cuda", max_batch_tokens=max_batch_tokens) as encoder:
        assert len(encoder.predict_proba(texts(100))) == 100


@pytest.mark.parametrize("cured", [True, False])
@pytest.mark.case(71)
def test_one_overflowing_sequence_among_two_hundred(cured: bool, tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path / "m", num_labels=2)
    word = tiny_checkpoints.WORDS[100]
    identity = Encoder(folder, device="cpu").encode([word]).input_ids[1]

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # The word's embedding is one large number, which LayerNorm turns into one component of
        # sqrt(D); a value weight on it then passes float16's 65504. No type cures a NaN.
        table = tensors["bert.embeddings.word_embeddings.weight"]
        table[identity] = 0
        table[identity, 0] = 1000.0 if cured else float("nan")
        value = tensors["bert.encoder.layer.0.attention.self.value.weight"]
        value[3, 0] = 60_000.0
        return tensors

    tiny_checkpoints.edit_tensors(folder, edit)
    clean = [text for text in texts(400) if word not in text.split()][:200]
    inputs = [*clean[:100], f"the {word}", *clean[100:]]
    with Encoder(folder, device="cuda", dtype="float16") as encoder:
        sequences = encoder.encode(inputs)
        answer = encoder._loaded.engine.submit(sequences).result()
        logits, codes = answer.values, answer.codes
        solo = np.concatenate([encoder.logits(encoder.encode([text])) for text in clean])
    expected = [0 if cured else NonFiniteOutputError.code if i == 100 else 0 for i in range(201)]
    assert codes.tolist() == expected
    others = np.delete(logits, 100, axis=0)
    assert np.abs(others - solo).max() < 2e-2 * np.abs(solo).max()
    if cured:
        assert np.isfinite(logits[100]).all()


def test_activations_on_the_gpu_equal_the_twins() -> None:
    x = torch.linspace(-8, 8, 4096, device="cuda").view(8, 512)
    bias = torch.linspace(-1, 1, 512, device="cuda")
    for name in reference.ACTIVATIONS:
        got = mlp.bias_activation(x, bias, name)
        assert torch.allclose(got, reference.bias_activation(x, bias, name), atol=1e-6)
