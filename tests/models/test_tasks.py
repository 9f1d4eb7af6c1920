"""Token classification and embedding against Transformers, on the runner of either device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packhorse.checkpoint import load_checkpoint
from packhorse.config import Config, EngineOptions, ModelOptions, resolve
from packhorse.engine.load import load_runner
from packhorse.families import FAMILIES
from packhorse.hardware import detect
from packhorse.kernels.reference import pooled_block
from packhorse.request import Output
from packhorse.sentence import POOLINGS
from packhorse.tasks import Task
from packhorse.tokenizing.tokenizer import Tokenizer
from tests import tiny_checkpoints
from tests.models.test_families import VARIANTS
from tests.models.test_fidelity import RELATIVE, texts

INPUTS = texts(40)[::2]  # of 0 to 38 words


def output_of(
    folder: Path,
    inputs: list[str] = INPUTS,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    task: Task | None = None,
    token_level: bool = False,
    without: tuple[str, ...] = (),
    pooling: Any = None,
) -> Output:
    """What the runner gives for all inputs as one batch."""
    checkpoint = load_checkpoint(folder, task=task, pooling=pooling)
    config = Config(ModelOptions(device=device, dtype=dtype), EngineOptions(without=without))
    runner, _ = load_runner(resolve(config, detect()), checkpoint, notify=False)
    try:
        sequences = Tokenizer.load(checkpoint).encode(inputs)
        if token_level:
            flags = np.ones(len(inputs), np.bool_)
            sequences = type(sequences)(
                sequences.input_ids,
                sequences.cu_seqlens,
                sequences.truncated,
                sequences.segment_starts,
                sequences.position_ids,
                flags,
            )
        output = runner.launch(sequences).output()
        assert not output.codes.any()
        return output
    finally:
        runner.close()


def relative(got: np.ndarray, expected: Tensor) -> float:
    assert got.shape == tuple(expected.shape)
    return float(np.abs(got - expected.numpy()).max() / expected.abs().max())


def token_logits_difference(variant: str, device: str = "cpu", **options: Any) -> float:
    family, config = VARIANTS[variant]
    folder = tiny_checkpoints.shared(
        family, head="ForTokenClassification", num_labels=5, **(config | options)
    )
    states = tiny_checkpoints.reference_states(folder, INPUTS, "AutoModelForTokenClassification")
    output = output_of(folder, device=device)
    assert output.row_counts is not None
    assert output.row_counts.tolist() == [len(each) for each in states]
    return relative(output.values, torch.cat(states))


def embedding_difference(
    poolings: tuple[str, ...], device: str = "cpu", family: str = "bert", **options: Any
) -> float:
    folder = tiny_checkpoints.shared(family, head="Model", num_labels=None, **options)
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    worst = 0.0
    for pooling in poolings:
        expected = torch.cat([pooled_block(each[None], pooling) for each in states])
        output = output_of(folder, device=device, pooling=pooling)
        assert output.row_counts is None
        worst = max(worst, relative(output.values, expected))
    return worst


def token_embedding_difference(pooling: str, device: str = "cpu", **options: Any) -> float:
    folder = tiny_checkpoints.shared("bert", head="Model", num_labels=None, **options)
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    output = output_of(folder, device=device, token_level=True, pooling=pooling)
    assert output.row_counts is not None
    assert output.row_counts.tolist() == [len(each) for each in states]
    return relative(output.values, torch.cat(states))


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_logits_equal_transformers(variant: str) -> None:
    assert token_logits_difference(variant) < RELATIVE


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_without_a_head_embeds(family: str) -> None:
    options = next(options for name, options in VARIANTS.values() if name == family)
    assert embedding_difference(("mean",), family=family, **options) < RELATIVE


@pytest.mark.case(57)
def test_every_pooling_equals_its_formula() -> None:
    assert embedding_difference(tuple(POOLINGS.values())) < RELATIVE


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_token_embeddings_are_the_last_hidden_states(pooling: str) -> None:
    assert token_embedding_difference(pooling) < RELATIVE


def test_the_whole_last_layer_gives_the_first_tokens_the_same() -> None:
    folder = tiny_checkpoints.shared("bert", head="Model", num_labels=None)
    quick = output_of(folder, pooling="cls").values
    whole = output_of(folder, pooling="cls", without=("first-token-only",)).values
    assert np.abs(quick - whole).max() < RELATIVE * np.abs(whole).max()


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining", "ForSequenceClassification"])
@pytest.mark.case(63)
def test_the_head_of_another_task_is_not_read(head: str) -> None:
    """One vector of the hidden size for a text, however long it is (not logits, not tokens)."""
    folder = tiny_checkpoints.shared("bert", head=head)
    task = Task.EMBED if head == "ForSequenceClassification" else None
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    output = output_of(folder, task=task)
    assert output.values.shape == (len(INPUTS), 32)
    expected = torch.cat([pooled_block(each[None], "mean") for each in states])
    assert relative(output.values, expected) < RELATIVE


def test_a_token_without_a_number_marks_its_own_text_alone() -> None:
    from packhorse.engine.model_runner import checked_output

    values = np.zeros((6, 2), np.float32)
    values[3, 1] = np.nan
    output = checked_output(values, np.array([1, 3, 2], np.int32), 0.0)
    assert (output.codes != 0).tolist() == [False, True, False]
