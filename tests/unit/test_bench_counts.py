"""What the benchmarks count: FLOPs, bytes, batches; against hand counts and PyTorch's counter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from packhorse.checkpoint import load_checkpoint
from packhorse.engine.cpu_runner import packed_layout
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.load import load_encoder
from packhorse.request import Sequences, bounds_of
from packhorse.tools.bench.batch_plan import BatchPlan
from packhorse.tools.bench.flops import (
    ModelSize,
    first_token_layer,
    layer,
    nominal,
    packed,
    padded,
)
from packhorse.tools.bench.random_checkpoint import SHAPES, write
from packhorse.tools.bench.traffic import activation_bytes, least_bytes, weight_bytes

SMALL = ModelSize(layers=2, hidden=4, intermediate=8, labels=3)
BERT_BASE = ModelSize(layers=12, hidden=768, intermediate=3072, labels=2)
LENGTHS = np.array([5, 3, 12, 7], np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny"
    write(SHAPES["tiny"], path)
    return path


def test_one_text_by_hand() -> None:
    # A layer over 5 tokens: q, k, v, output 4 x 2*5*4*4, mlp 2 x 2*5*4*8, QK and PV 2 x 2*5*5*4.
    one_layer = 4 * 160 + 2 * 320 + 2 * 200
    head = 2 * 4 * 4 + 2 * 4 * 3
    assert layer(SMALL, np.array([5], np.int32)) == one_layer
    assert nominal(SMALL, np.array([5], np.int32)) == 2 * one_layer + head


def test_bert_base_has_its_85_million_weights() -> None:
    assert BERT_BASE.parameters_in_products == 12 * (4 * 768**2 + 2 * 768 * 3072) + 768**2 + 2 * 768
    # A text of 128 tokens: the well-known 22 GFLOP.
    assert nominal(BERT_BASE, np.array([128], np.int32)) == pytest.approx(22.35e9, rel=0.01)


def test_padded_counts_every_row_at_full_width() -> None:
    assert padded(SMALL, 3, 12) == 3 * nominal(SMALL, np.array([12], np.int32))


def test_first_token_layer_by_hand() -> None:
    # 5 tokens: K and V 2 x 2*5*4*4; one row: query and output 2 x 2*4*4, mlp 2 x 2*4*8;
    # both attention products 2 x 2*5*4.
    assert first_token_layer(SMALL, np.array([5], np.int32)) == 320 + 64 + 128 + 80


def test_a_packed_batch_costs_its_texts() -> None:
    assert packed(SMALL, LENGTHS, first_token_only=False) == nominal(SMALL, LENGTHS)
    saved = layer(SMALL, LENGTHS) - first_token_layer(SMALL, LENGTHS)
    assert packed(SMALL, LENGTHS, first_token_only=True) == nominal(SMALL, LENGTHS) - saved


def test_a_graph_costs_its_spare_tokens_and_rows() -> None:
    exact = packed(SMALL, LENGTHS, first_token_only=True)
    filled = packed(SMALL, LENGTHS, first_token_only=True, tokens=32, rows=8)
    spare = np.ones(5, np.int32)  # 27 tokens in a bucket of 32
    rows = 4 * (4 * 16 + 4 * 4 * 8 + SMALL.head)
    assert filled - exact == layer(SMALL, spare) + (4 * 16 + 4 * 4) * 5 + rows


def test_transformers_by_pytorchs_counter(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    size = ModelSize.of(load_checkpoint(folder))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(3, 16, dtype=torch.long))
    assert counter.get_total_flops() == padded(size, 3, 16)


@pytest.mark.parametrize("first_token_only", [False, True])
def test_this_engine_by_pytorchs_counter(folder: Path, first_token_only: bool) -> None:
    checkpoint = load_checkpoint(folder)
    size = ModelSize.of(checkpoint)
    model = load_encoder(
        checkpoint,
        CpuBackend(prepack=False),  # the counter does not know oneDNN's operators
        torch.device("cpu"),
        torch.float32,
        first_token_only=first_token_only,
    )
    lengths = np.sort(LENGTHS)
    batch = Sequences(
        np.zeros(int(lengths.sum()), np.int32), bounds_of(lengths), np.zeros(4, np.bool_)
    )
    input_ids, layout = packed_layout(batch, checkpoint.architecture)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.forward(input_ids, layout)
    counts = counter.get_flop_counts()["Global"]
    dense = sum(
        flops for operation, flops in counts.items() if str(operation) in ("aten.mm", "aten.addmm")
    )
    assert dense == packed(size, lengths, first_token_only=first_token_only) - _attention(
        size, lengths, first_token_only
    )


def _attention(size: ModelSize, lengths: np.ndarray, first_token_only: bool) -> int:  # type: ignore[type-arg]
    """Both products of attention, which PyTorch's counter may not know on a CPU."""
    whole = 4 * size.hidden * int((lengths.astype(np.int64) ** 2).sum())
    last = 4 * size.hidden * int(lengths.sum()) if first_token_only else whole
    return (size.layers - 1) * whole + last


def test_traffic_by_hand() -> None:
    assert activation_bytes(SMALL, 10, "float16") == 2 * 10 * (2 * (18 * 4 + 4 * 8) + 4 * 4)
    assert weight_bytes(SMALL, 3, "float32") == 4 * 3 * SMALL.parameters_in_products
    assert least_bytes(SMALL, 10, 3, "bfloat16") == activation_bytes(
        SMALL, 10, "bfloat16"
    ) + weight_bytes(SMALL, 3, "bfloat16")


def test_batches_are_filled_in_order() -> None:
    plan = BatchPlan(max_tokens=10, max_sequences=2)
    lengths = np.array([4, 4, 4, 11, 1, 1, 1], np.int32)
    assert list(plan.cuts(bounds_of(lengths))) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert plan.padded_sizes(9, 2) == (9, 2)


def test_graphs_pad_to_their_buckets() -> None:
    plan = BatchPlan(max_tokens=64, max_sequences=8, graphs=True)
    assert plan.padded_sizes(17, 3) == (32, 4)
    lengths = np.array([10, 7], np.int32)
    assert plan.executed_flops(SMALL, lengths) == packed(
        SMALL, lengths, first_token_only=True, tokens=32, rows=2
    )
