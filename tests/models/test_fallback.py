"""Families without a packed path, through Transformers, against Transformers itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from packhorse import Encoder, fallback
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.kernels.reference import pooled_block
from packhorse.models.fallback import FallbackEncoder
from packhorse.models.load import load_encoder
from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.models.test_fidelity import RELATIVE, texts

INPUTS = ["", *texts(30)]
PAIRS = [("a good film", "bad"), ("the story was slow", "it was short and good")]

FAMILIES: dict[str, dict[str, Any]] = {
    "FNet": {"intermediate_size": 64},  # has no mask: padding would change what it computes
    "SqueezeBert": {"intermediate_size": 64, "num_attention_heads": 4, "embedding_size": 32},
    "LayoutLM": {"intermediate_size": 64, "num_attention_heads": 4},
    "RoFormer": {"intermediate_size": 64, "num_attention_heads": 4, "embedding_size": 32},
}


def make(folder: Path, family: str, head: str, **config: Any) -> Path:
    folder.mkdir(parents=True)
    settings = {
        "vocab_size": tiny_checkpoints.write_wordpiece(folder),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    settings |= FAMILIES[family] | config
    kind = getattr(transformers, f"{family}Config")
    model = getattr(transformers, f"{family}{head}")(kind(**settings))
    tiny_checkpoints.randomize(model, 0, 0.2)
    model.save_pretrained(folder)
    return folder


def relative(got: Any, expected: torch.Tensor) -> float:
    wanted = expected.numpy()
    assert np.shape(got) == wanted.shape
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", family, "ForSequenceClassification", num_labels=3)
    inputs = [*INPUTS, *PAIRS]
    expected = tiny_checkpoints.reference_logits(folder, inputs)
    with Encoder(folder, device="cpu") as encoder:
        assert relative(encoder.logits(encoder.encode(inputs)), expected) < RELATIVE
        assert encoder.info["dtype"] == "float32"


@pytest.mark.parametrize("family", ["LayoutLM", "RoFormer"])
def test_logits_of_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", family, "ForTokenClassification", num_labels=3)
    expected = tiny_checkpoints.reference_states(folder, INPUTS, "AutoModelForTokenClassification")
    with Encoder(folder, device="cpu") as encoder:
        assert encoder.task == "token_classify"
        got = encoder.logits(encoder.encode(INPUTS))
    assert relative(got, torch.cat(expected)) < RELATIVE


@pytest.mark.parametrize("family", ["FNet", "SqueezeBert"])
def test_embeddings_equal_transformers(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", family, "Model")
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    for pooling in ("mean", "cls"):
        expected = torch.cat([pooled_block(each[None], pooling) for each in states])
        with Encoder(folder, device="cpu", pooling=pooling) as encoder:
            assert relative(encoder.embed(INPUTS), expected) < RELATIVE
            tokens = np.concatenate(encoder.embed_tokens(INPUTS))
    assert relative(tokens, torch.cat(states)) < RELATIVE


def test_it_is_announced_in_one_line_and_in_the_info(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(tmp_path / "m", "FNet", "ForSequenceClassification")
    with caplog.at_level(logging.WARNING, "packhorse"), Encoder(folder, device="cpu") as encoder:
        assert encoder.info["kernels"] == "transformers"
        assert encoder.info["fallback"] == f"transformers {transformers.__version__}"
    said = [each.message for each in caplog.records if "no packed path for fnet" in each.message]
    assert len(said) == 1
    with Encoder(tiny_checkpoints.shared(), device="cpu") as packed:
        assert "fallback" not in packed.info


def test_without_transformers_the_refusal_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "m", "FNet", "ForSequenceClassification")
    monkeypatch.setattr(fallback, "is_installed", lambda: False)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert '"model_type" is "fnet"; accepted: bert' in str(caught.value)
    assert "pip install 'packhorse[fallback]'" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"architectures": ["FNetForMultipleChoice"]}, '"model_type" is "fnet"; accepted'),
        ({"architectures": None}, '"model_type" is "fnet"; accepted'),
        ({"model_type": "fnet9"}, "transformers cannot load it: .*fnet9"),
        ({"hidden_size": 33}, "transformers cannot load it"),
    ],
)
def test_what_transformers_cannot_run_either_is_refused(
    config: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "m", "FNet", "ForSequenceClassification")
    tiny_checkpoints.edit_config(folder, **config)
    with pytest.raises(CheckpointError, match=f"(?s){fault}"):
        Encoder(folder, device="cpu")


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "FNet", "ForSequenceClassification")
    mark = tmp_path / "it ran"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    own = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
    tiny_checkpoints.edit_config(folder, model_type="my-own", auto_map=own)
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        Encoder(folder, device="cpu")
    assert not mark.exists()


def test_weights_that_are_missing_are_never_random(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "FNet", "ForSequenceClassification")

    def beheaded(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: each for name, each in tensors.items() if "classifier" not in name}

    tiny_checkpoints.edit_tensors(folder, beheaded)
    with pytest.raises(CheckpointError, match=r"tensors are missing: classifier\.bias"):
        Encoder(folder, device="cpu")


def test_what_needs_a_packed_path_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "FNet", "ForMaskedLM")
    with pytest.raises(CheckpointError, match="embed_sparse is for families with a packed path"):
        Encoder(folder, device="cpu", task="embed_sparse")
    checkpoint = load_checkpoint(folder)
    assert (checkpoint.task, checkpoint.is_packed) == (Task.EMBED, False)
    with pytest.raises(CheckpointError, match="no packed path"):
        load_encoder(checkpoint, None, torch.device("cpu"), torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pads", "alone", "expected"),
    [
        (True, False, [(0, 4), (4, 5)]),
        (False, False, [(0, 2), (2, 4), (4, 5)]),
        (True, True, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    ],
)
def test_blocks_are_padded_a_little_or_not_at_all(
    pads: bool, alone: bool, expected: list[tuple[int, int]]
) -> None:
    encoder = object.__new__(FallbackEncoder)
    encoder._pads, encoder._alone = pads, alone
    assert list(encoder._blocks([0, 8, 16, 25, 34, 64])) == expected
