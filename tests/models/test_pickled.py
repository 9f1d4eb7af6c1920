"""pytorch_model.bin: behind a flag, tensors only, with the same faults named as of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from packhorse import Encoder
from packhorse.errors import CheckpointError
from tests import tiny_checkpoints

TEXTS = ["a good film", "the story was slow"]

ran: list[str] = []


class Code:
    """What a harmful file holds: an object whose unpickling calls a function."""

    def __reduce__(self) -> Any:
        return ran.append, ("code of the file",)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {
        name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()
    }


def pickled(folder: Path, **options: Any) -> Path:
    """The same checkpoint with its weights in pytorch_model.bin alone."""
    tiny_checkpoints.make_bert(folder)
    torch.save(tensors_of(folder), folder / "pytorch_model.bin", **options)
    (folder / "model.safetensors").unlink()
    return folder


def logits(folder: Path, **options: Any) -> Any:
    with Encoder(folder, device="cpu", dtype="float32", **options) as encoder:
        return encoder.logits(encoder.encode(TEXTS))


def failure(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        logits(folder, allow_pickle=True)
    return str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_it_gives_the_logits_of_safetensors(tmp_path: Path, zipped: bool) -> None:
    """Files from before 2020 are no zip archives."""
    folder = pickled(tmp_path, _use_new_zipfile_serialization=zipped)
    assert np.array_equal(logits(folder, allow_pickle=True), logits(tiny_checkpoints.shared()))


def test_without_the_flag_the_error_names_it(tmp_path: Path) -> None:
    folder = pickled(tmp_path)
    with pytest.raises(CheckpointError, match=r"--allow-pickle \(allow_pickle=True\).*save_pretr"):
        logits(folder)


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for shard, held in shards.items():
        torch.save({name: tensors[name] for name in held}, folder / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert np.array_equal(logits(folder, allow_pickle=True), logits(tiny_checkpoints.shared()))
    (folder / "pytorch_model-2.bin").unlink()
    assert "pytorch_model.bin.index.json lists are missing: pytorch_model-2.bin" in failure(folder)
    torch.save({}, folder / "pytorch_model-2.bin")
    assert "lacks tensors that pytorch_model.bin.index.json lists for it" in failure(folder)


def test_safetensors_go_first(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert np.array_equal(logits(folder, allow_pickle=True), logits(tiny_checkpoints.shared()))


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    tensors["extra"] = tensors.pop("classifier.bias")
    torch.save(tensors, folder / "pytorch_model.bin")
    message = failure(folder)
    assert "1 tensor missing: classifier.bias" in message
    assert "1 tensor unexpected: extra" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weight": Code()}, "cannot be read as tensors alone"),
        ([torch.zeros(1)], "must hold tensors by their names"),
        ({"epoch": 3}, "must hold tensors by their names"),
    ],
)
def test_whatever_is_no_tensor_is_refused_and_never_run(
    tmp_path: Path, content: Any, said: str
) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    assert said in failure(folder)
    assert ran == []


def test_a_file_that_ends_too_early_is_named(tmp_path: Path) -> None:
    folder = pickled(tmp_path)
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:500])
    assert f"{path} cannot be read" in failure(folder)
