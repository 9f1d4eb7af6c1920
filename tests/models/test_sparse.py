"""SPLADE's weights against Transformers' masked language models in float32."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from packhorse import AsyncEncoder, Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.engine import sparse_output
from packhorse.engine.sparse_output import sparse_rows
from packhorse.errors import CheckpointError, NonFiniteOutputError, TaskError
from packhorse.families import FAMILIES
from packhorse.kernels import select
from packhorse.models import masked_lm
from packhorse.models.backend import Layout
from packhorse.models.kernel_backend import KernelBackend
from packhorse.models.load import load_encoder
from packhorse.tasks import Task
from packhorse.tokenizing.tokenizer import Tokenizer
from tests import tiny_checkpoints
from tests.models.test_families import VARIANTS
from tests.models.test_fidelity import RELATIVE, texts

INPUTS = ["", *texts(20)]
HEADS = {
    "bert": "cls.predictions",
    "roberta": "lm_head",
    "distilbert": "vocab_projector",
}

Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def make(folder: Path, family: str = "bert", **config: Any) -> Path:
    return tiny_checkpoints.make(folder, family, head="ForMaskedLM", num_labels=None, **config)


def expected_weights(folder: Path, inputs: list[str], log1ps: int = 1) -> Tensor:
    """max over tokens of log1p(relu(logits)), text by text: float32 (texts, vocabulary)."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in inputs:
            weights = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits.relu()
            for _ in range(log1ps):
                weights = weights.log1p()
            rows.append(weights[0].amax(dim=0))
    return torch.stack(rows)


def dense_weights(folder: Path, inputs: list[str], **options: Any) -> np.ndarray:
    """What ``embed_sparse`` gives, with zeros in between: float32 (texts, vocabulary)."""
    options = {"device": "cpu", "dtype": "float32", "task": "embed_sparse"} | options
    with Encoder(folder, **options) as encoder:
        found = encoder.embed_sparse(inputs)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    rows = np.zeros((len(inputs), vocabulary), np.float32)
    for row, vector in zip(rows, found, strict=True):
        assert (np.diff(vector.indices) > 0).all()
        assert (vector.values != 0).all()
        row[vector.indices] = vector.values
    return rows


def sparse_difference(folder: Path, **options: Any) -> float:
    """The largest difference to Transformers, relative to the largest weight."""
    expected = expected_weights(folder, INPUTS).numpy()
    assert 0.01 < (expected == 0).mean() < 0.99
    return float(np.abs(dense_weights(folder, INPUTS, **options) - expected).max() / expected.max())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_weights_equal_transformers(family: str) -> None:
    options = next(options for name, options in VARIANTS.values() if name == family)
    folder = tiny_checkpoints.shared(family, head="ForMaskedLM", num_labels=None, **options)
    assert sparse_difference(folder) < RELATIVE


def untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With a decoder that is another table than that of the embeddings, and has its own bias."""
    table = next(tensor for name, tensor in tensors.items() if "word_embeddings" in name)
    if "vocab_projector.bias" in tensors:
        return tensors | {"vocab_projector.weight": table.flip(0).contiguous()}
    start = "lm_head" if "lm_head.bias" in tensors else "cls.predictions"
    decoder = {"weight": table.flip(0).contiguous(), "bias": tensors[f"{start}.bias"].flip(0)}
    return tensors | {f"{start}.decoder.{name}": each for name, each in decoder.items()}


@pytest.mark.parametrize("family", HEADS)
def test_a_decoder_with_weights_of_its_own_is_read(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m", family), untied)
    tiny_checkpoints.edit_config(folder, tie_word_embeddings=False)
    assert sparse_difference(folder) < RELATIVE


@pytest.mark.parametrize(
    ("family", "kept"),
    [
        ("bert", "cls.predictions.decoder.bias"),
        ("bert", "cls.predictions.bias"),
        ("roberta", "lm_head.decoder.bias"),
        ("roberta", "lm_head.bias"),
    ],
)
def test_the_bias_is_found_under_either_name(family: str, kept: str, tmp_path: Path) -> None:
    names = {kept, kept.replace(".decoder", ""), f"{HEADS[family]}.decoder.bias"}

    def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bias = next(tensors[name] for name in names if name in tensors)
        return {name: each for name, each in tensors.items() if name not in names} | {kept: bias}

    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m", family), renamed)
    assert sparse_difference(folder) < RELATIVE


@pytest.mark.parametrize("family", HEADS)
def test_a_checkpoint_without_the_head_is_refused_by_the_names(family: str, tmp_path: Path) -> None:
    def beheaded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        starts = ("cls.", "lm_head.", "vocab_")
        return {name: each for name, each in tensors.items() if not name.startswith(starts)}

    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m", family), beheaded)
    with pytest.raises(CheckpointError, match=r"missing: .*(transform|lm_head)"):
        Encoder(folder, device="cpu", task="embed_sparse")


@pytest.mark.parametrize("tied", [True, False])
def test_what_nothing_can_stand_in_for_is_missed(tied: bool, tmp_path: Path) -> None:
    """The bias of the logits; the decoder's weight where the config says it is not the table."""

    def without_bias(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: v for k, v in tensors.items() if k != "cls.predictions.bias"}

    folder = make(tmp_path / "m")
    if tied:
        tiny_checkpoints.edit_tensors(folder, without_bias)
    else:
        tiny_checkpoints.edit_config(folder, tie_word_embeddings=False)
    missed = "neither cls.predictions.bias" if tied else r"cls.predictions.decoder.weight"
    with pytest.raises(CheckpointError, match=missed):
        Encoder(folder, device="cpu", task="embed_sparse")


def test_a_vocabulary_of_several_blocks_and_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_lm, "VOCABULARY_BLOCK", 48)
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    assert load_checkpoint(folder).architecture.vocab_size % 48
    assert sparse_difference(folder) < RELATIVE


def test_a_batch_has_no_more_texts_than_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    vocabulary = load_checkpoint(folder).architecture.vocab_size
    monkeypatch.setattr(sparse_output, "MOST_BYTES", 3 * 4 * vocabulary)
    with Encoder(folder, device="cpu", dtype="float32", task="embed_sparse") as encoder:
        assert encoder.info["max_batch_requests"] == 3
        assert len(encoder.embed_sparse(INPUTS)) == len(INPUTS)
        assert encoder.embed_sparse([]) == []


def test_a_text_may_have_no_weight_at_all_between_others() -> None:
    rows = torch.tensor([[0.0, 2, 0], [0, 0, 0], [1, 0, 3], [0, 0, 0]])
    pairs, counts = sparse_rows(rows)
    assert counts.tolist() == [1, 0, 2, 0]
    assert pairs.tolist() == [[1, 2], [0, 1], [2, 3]]


def test_all_weights_may_be_zero(tmp_path: Path) -> None:
    def negative(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {"cls.predictions.bias": tensors["cls.predictions.bias"] - 1e6}

    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m"), negative)
    assert not dense_weights(folder, INPUTS).any()


def test_a_weight_that_is_no_number_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    def broken(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bias = tensors["cls.predictions.bias"].clone()
        bias[7] = float("nan")
        return tensors | {"cls.predictions.bias": bias}

    folder = tiny_checkpoints.edit_tensors(make(tmp_path / "m"), broken)
    with (
        Encoder(folder, device="cpu", task="embed_sparse") as encoder,
        pytest.raises(NonFiniteOutputError, match="input 0"),
    ):
        encoder.embed_sparse(["good"])


def splade_folder(folder: Path, **pooling: Any) -> Path:
    make(folder)
    modules = "sentence_transformers.sparse_encoder.models."
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": f"{modules}MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{modules}SpladePooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling/config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "find "}})
    )
    return folder


@pytest.mark.parametrize(("activation", "log1ps"), [("relu", 1), ("log1p_relu", 2)])
def test_a_folder_of_sentence_transformers_says_it_itself(
    activation: str, log1ps: int, tmp_path: Path
) -> None:
    folder = splade_folder(tmp_path / "m", pooling_strategy="max", activation_function=activation)
    assert load_checkpoint(folder).task is Task.EMBED_SPARSE
    expected = expected_weights(folder, INPUTS, log1ps).numpy()
    got = dense_weights(folder, INPUTS, task="auto")
    assert np.abs(got - expected).max() < RELATIVE * expected.max()
    with Encoder(folder, device="cpu") as encoder:
        (prompted,) = encoder.embed_sparse(["good film"], prompt_name="query")
        (same,) = encoder.embed_sparse(["find good film"])
        assert np.array_equal(prompted.values, same.values)
        with pytest.raises(TaskError, match="sparsely"):
            encoder.embed(["good"])


def test_what_a_sparse_folder_has_besides_is_refused_by_name(tmp_path: Path) -> None:
    folder = splade_folder(tmp_path / "m", pooling_strategy="sum")
    with pytest.raises(CheckpointError, match="\"pooling_strategy\" is 'sum'"):
        load_checkpoint(folder)
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["type"] = "sentence_transformers.sparse_encoder.models.SparseAutoEncoder"
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match="'SparseAutoEncoder' is not served"):
        load_checkpoint(folder, task=Task.EMBED_SPARSE)


def test_the_pooling_splade_means_the_task() -> None:
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    assert load_checkpoint(folder).task is Task.EMBED
    assert load_checkpoint(folder, pooling="splade").task is Task.EMBED_SPARSE
    for task, pooling in ((Task.EMBED_SPARSE, "mean"), (Task.CLASSIFY, "splade")):
        with pytest.raises(CheckpointError, match=f"pooling {pooling}"):
            load_checkpoint(folder, task=task, pooling=pooling)  # type: ignore[arg-type]


def test_the_asynchronous_encoder_gives_the_same() -> None:
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)

    async def values() -> list[Any]:
        async with AsyncEncoder(folder, device="cpu", dtype="float32", pooling="splade") as encoder:
            return await encoder.embed_sparse(["a good film"])

    (vector,) = asyncio.run(values())
    (row,) = dense_weights(folder, ["a good film"])
    assert np.array_equal(row[vector.indices], vector.values)


def test_a_graphs_rows_are_filled_whatever_is_behind_the_batch() -> None:
    """As a captured graph calls it: more tokens and sequences than there are, and a buffer."""
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    checkpoint = load_checkpoint(folder, pooling="splade")
    kernels = select("cpu")
    device = torch.device("cpu")
    model = load_encoder(checkpoint, KernelBackend(kernels), device, torch.float32)
    sequences = Tokenizer.load(checkpoint).encode(INPUTS)
    ids = np.concatenate([sequences.input_ids, np.zeros(9, np.int32)])
    bounds = np.concatenate([sequences.cu_seqlens, np.full(5, sequences.num_tokens, np.int32)])
    cu_seqlens = torch.from_numpy(bounds)
    count = torch.tensor([len(sequences)], dtype=torch.int32)
    segments = torch.from_numpy(np.diff(bounds))
    positions, starts, ends, types = kernels.expand(
        cu_seqlens, count, len(ids), segment_starts=segments
    )
    layout = Layout(positions, types, cu_seqlens, starts, ends)
    out = torch.full((len(INPUTS) + 5, checkpoint.width), 7.0)
    with torch.inference_mode():
        hidden, key_value = model.trunk(torch.from_numpy(ids), layout)
        assert model.tail(hidden, key_value, layout, out=out) is out
    expected = expected_weights(folder, INPUTS)
    assert (out[: len(INPUTS)] - expected).abs().max() < RELATIVE * expected.max()
    assert not out[len(INPUTS) :].any()
