"""packhorse.models.weights: every tensor that is expected, or an error that names what is wrong."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from packhorse import Encoder
from packhorse.checkpoint import Architecture, Checkpoint, load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.families import BERT
from packhorse.models.weights import iterate, load_tensors, plain_name, some
from tests import tiny_checkpoints
from tests.tiny_checkpoints import TEXTS, edit_config, edit_tensors, make_bert, reference_logits

Tensors = dict[str, Tensor]


def expected_of(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a BERT classifier, spelled out independently of the model's code."""
    return trunk_of(checkpoint.architecture) | {
        "pooler.dense.weight": (checkpoint.architecture.hidden_size,) * 2,
        "pooler.dense.bias": (checkpoint.architecture.hidden_size,),
        "classifier.weight": (len(checkpoint.labels), checkpoint.architecture.hidden_size),
        "classifier.bias": (len(checkpoint.labels),),
    }


def trunk_of(shape: Architecture) -> dict[str, tuple[int, ...]]:
    width, inner = shape.hidden_size, shape.intermediate_size
    expected: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (shape.vocab_size, width),
        "embeddings.position_embeddings.weight": (shape.max_position_embeddings, width),
        "embeddings.token_type_embeddings.weight": (shape.type_vocab_size, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    matrices = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    for layer in range(shape.num_layers):
        for name, sizes in matrices.items():
            expected[f"encoder.layer.{layer}.{name}.weight"] = sizes
            expected[f"encoder.layer.{layer}.{name}.bias"] = sizes[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            expected[f"encoder.layer.{layer}.{name}.weight"] = (width,)
            expected[f"encoder.layer.{layer}.{name}.bias"] = (width,)
    return expected


def load(folder: Path) -> Tensors:
    checkpoint = load_checkpoint(folder)
    return load_tensors(
        checkpoint, expected_of(checkpoint), prefix=BERT.prefix, ignorable=BERT.ignorable
    )


def failure(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bert(tmp_path / "model", num_labels=3)


def test_every_tensor_comes_as_it_was_saved(folder: Path) -> None:
    saved = load_file(folder / "model.safetensors")
    tensors = load(folder)
    assert len(tensors) == len(saved) == 41
    assert_same(tensors, {name.removeprefix("bert."): saved[name] for name in saved})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_type_is_that_of_the_checkpoint(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = load(make_bert(tmp_path, dtype=dtype))
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}


def test_tensors_are_mapped_not_read(folder: Path) -> None:
    tensors = load(folder)
    address = tensors["classifier.weight"].data_ptr()
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [
        line[0].split("-") for line in mapped if line[-1] == str(folder / "model.safetensors")
    ]
    assert any(int(first, 16) <= address < int(last, 16) for first, last in ranges)


# Names.


def rename(change: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {change(name): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.removeprefix("bert."),
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
    ],
    ids=["without prefix", "gamma and beta"],
)
def test_other_spellings_are_the_same_tensors(folder: Path, change: Callable[[str], str]) -> None:
    before = {name: tensor.clone() for name, tensor in load(folder).items()}
    edit_tensors(folder, rename(change))
    assert_same(load(folder), before)


def test_plain_name_changes_whole_parts_only() -> None:
    assert plain_name("bert.embeddings.LayerNorm.gamma", "bert") == "embeddings.LayerNorm.weight"
    assert plain_name("classifier.weight", "bert") == "classifier.weight"
    assert plain_name("bertie.weight", "bert") == "bertie.weight"
    assert plain_name("bert.bert.weight", "bert") == "bert.weight"
    assert plain_name("encoder.gamma", "bert") == "encoder.gamma"


@pytest.mark.case(27)
@pytest.mark.parametrize("family", ["bert", "distilbert", "albert", "electra"])
def test_gamma_and_beta_are_weight_and_bias_of_every_norm(family: str, tmp_path: Path) -> None:
    folder = tmp_path / family
    shutil.copytree(tiny_checkpoints.shared(family), folder)
    with Encoder(folder, device="cpu") as encoder:
        expected = encoder.predict_proba(["a good film"])

    def old_name(name: str) -> str:
        return re.sub(r"(?<=norm)\.weight$", ".gamma", name, flags=re.I).replace(
            "orm.bias", "orm.beta"
        )

    edit_tensors(folder, lambda tensors: {old_name(name): tensors[name] for name in tensors})
    with Encoder(folder, device="cpu") as encoder:
        assert (encoder.predict_proba(["a good film"]) == expected).all()


def test_a_number_alone_in_place_of_a_row_is_of_another_shape(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path / "m", num_labels=1)
    edit_tensors(folder, lambda tensors: tensors | {"classifier.bias": torch.tensor(1.0)})
    assert "classifier.bias () instead of (1,)" in failure(folder)


@pytest.mark.parametrize(
    "name", ["bert.embeddings.position_ids", "embeddings.position_ids", "embeddings.token_type_ids"]
)
@pytest.mark.parametrize("shape", [(1, 128), (1, 514), (128,)])
@pytest.mark.case(27)
def test_left_over_buffers_are_ignored(folder: Path, name: str, shape: tuple[int, ...]) -> None:
    before = load(folder).keys()
    edit_tensors(folder, lambda tensors: tensors | {name: torch.ones(shape, dtype=torch.int64)})
    assert load(folder).keys() == before


def test_heads_of_pre_training_are_ignored_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = load(folder).keys()
    extra = {
        "cls.predictions.bias": torch.zeros(9),
        "cls.seq_relationship.weight": torch.zeros(2, 32),
    }
    edit_tensors(folder, lambda tensors: tensors | extra)
    with caplog.at_level(logging.INFO):
        assert load(folder).keys() == before
    assert "not read" in caplog.text
    assert "cls.predictions.bias, cls.seq_relationship.weight" in caplog.text


def test_name_in_two_spellings_is_an_error(folder: Path) -> None:
    def edit(tensors: Tensors) -> Tensors:
        return tensors | {"pooler.dense.bias": torch.zeros(32)}

    message = failure(edit_tensors(folder, edit))
    assert "1 tensor there twice" in message
    assert "pooler.dense.bias" in message


# What does not fit: never a random weight.


@pytest.mark.case(29)
def test_data_parallel_names_are_refused_by_what_they_are(folder: Path) -> None:
    message = failure(edit_tensors(folder, rename(lambda name: f"module.{name}")))
    assert "41 tensors missing: embeddings.word_embeddings.weight, " in message
    assert "41 tensors unexpected: module." in message
    assert "and 31 more" in message
    assert "the mark of DataParallel or DistributedDataParallel" in message


def test_compiled_names_are_refused_by_what_they_are(folder: Path) -> None:
    message = failure(edit_tensors(folder, rename(lambda name: f"_orig_mod.{name}")))
    assert "the mark of torch.compile" in message


@pytest.mark.case(29)
def test_missing_head_is_refused(folder: Path) -> None:
    def edit(tensors: Tensors) -> Tensors:
        return {name: tensors[name] for name in tensors if "classifier" not in name}

    message = failure(edit_tensors(folder, edit))
    assert "2 tensors missing: classifier.weight, classifier.bias" in message
    assert "no trained classification head" in message


def test_single_faults_are_named(folder: Path) -> None:
    def edit(tensors: Tensors) -> Tensors:
        del tensors["bert.encoder.layer.1.attention.self.key.bias"]
        tensors["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(32)
        tensors["bert.embeddings.LayerNorm.bias"] = torch.zeros(31)
        tensors["bert.pooler.dense.weight"] = torch.zeros(32, 32, dtype=torch.int8)
        return tensors

    message = failure(edit_tensors(folder, edit))
    assert message.splitlines() == [
        f"{folder}: the weights do not fit config.json",
        "  1 tensor missing: encoder.layer.1.attention.self.key.bias",
        "  1 tensor unexpected: bert.encoder.layer.2.output.dense.bias",
        "  1 tensor of another shape: embeddings.LayerNorm.bias (31,) instead of (32,)",
        "  1 tensor not of a floating type (quantised weights are not served): "
        "pooler.dense.weight (int8)",
    ]


def test_relative_positions_would_be_left_out(folder: Path) -> None:
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    edit_tensors(folder, lambda tensors: tensors | {name: torch.zeros(255, 8)})
    assert f"1 tensor unexpected: {name}" in failure(folder)


@pytest.mark.case(33)
def test_head_of_other_size_than_the_labels_is_refused(folder: Path) -> None:
    edit_config(folder, without=["id2label", "label2id"], num_labels=2)
    message = failure(folder)
    assert "classifier.weight (3, 32) instead of (2, 32)" in message
    assert "the head has 3 rows, but config.json names 2 labels" in message


def test_other_hidden_size_is_no_matter_of_labels(folder: Path) -> None:
    message = failure(edit_config(folder, hidden_size=64))
    assert "38 tensors of another shape" in message
    assert "(32,) instead of (64,)" in message
    assert "labels" not in message


def test_non_finite_weights_are_let_through_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(tensors: Tensors) -> Tensors:
        tensors["classifier.bias"][1] = float("nan")
        tensors["bert.pooler.dense.weight"][3, 4] = float("-inf")
        return tensors

    edit_tensors(folder, edit)
    assert load(folder)["classifier.bias"].isnan().tolist() == [False, True, False]
    assert "in 2 tensors" in caplog.text
    assert "classifier.bias" in caplog.text
    assert "pooler.dense.weight" in caplog.text


# Files.


def test_shards_are_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    sharded = make_bert(tmp_path / "sharded", num_labels=3, max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 4
    assert_same(load(sharded), load(folder))
    assert torch.equal(reference_logits(sharded, TEXTS[:2]), reference_logits(folder, TEXTS[:2]))


def test_single_file_goes_before_shards(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("broken")
    assert len(load(folder)) == 41


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_bert(tmp_path / "sharded", num_labels=3, max_shard_size="20KB")


def edit_index(folder: Path, **weight_map: object) -> Path:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"].update(weight_map)
    path.write_text(json.dumps(index))
    return folder


@pytest.mark.case(31)
def test_missing_shard_is_named_before_any_is_read(sharded: Path) -> None:
    last = sorted(sharded.glob("model-*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(CheckpointError, match=rf"are missing: {last.name}"):
        next(iterate(load_checkpoint(sharded)))


def test_shard_that_lacks_a_listed_tensor_is_named(sharded: Path) -> None:
    first = sorted(sharded.glob("model-*.safetensors"))[0]
    message = failure(edit_index(sharded, **{"bert.extra": first.name}))
    assert message.startswith(f"{first} lacks tensors that")
    assert message.endswith("bert.extra")


def test_shard_with_an_unlisted_tensor_is_named(sharded: Path) -> None:
    first = sorted(sharded.glob("model-*.safetensors"))[0]
    tensors = {name: tensor.clone() for name, tensor in load_file(first).items()}
    first.unlink()
    save_file(tensors | {"bert.extra": torch.zeros(1)}, first)
    message = failure(sharded)
    assert message.startswith(f"{first} holds tensors that")
    assert message.endswith("bert.extra")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/b", "", ".", 7, None])
def test_index_cannot_lead_out_of_the_folder(sharded: Path, shard: object) -> None:
    assert "accepted: a file name" in failure(edit_index(sharded, **{"bert.extra": shard}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", '"weight_map" must be an object'),
        ('{"weight_map": {}}', '"weight_map" must be an object'),
        ('{"weight_map": ["a"]}', '"weight_map" must be an object'),
    ],
)
@pytest.mark.case(31)
def test_broken_index_is_named(sharded: Path, content: str, said: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    message = failure(sharded)
    assert "model.safetensors.index.json" in message
    assert said in message


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def no_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 1000)


def broken_header(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"[" + content[9:])


@pytest.mark.parametrize("damage", [cut, empty, lengthen, no_header, broken_header])
def test_damaged_file_is_named(folder: Path, damage: Callable[[Path], None]) -> None:
    path = folder / "model.safetensors"
    damage(path)
    assert failure(folder).startswith(f"{path} cannot be read as safetensors, is it complete?")


def test_damaged_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[2]
    cut(shard)
    assert failure(sharded).startswith(f"{shard} cannot be read as safetensors")


def test_pointer_of_git_lfs_is_told_apart(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert failure(folder).startswith(f"{path} is a pointer of Git LFS")


def test_no_weights_say_what_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    message = failure(folder)
    assert message.startswith(f"{folder} holds neither model.safetensors nor")
    assert "pickle" not in message


def test_pickle_is_not_opened_unless_it_is_allowed(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = failure(folder)
    assert "but pytorch_model.bin, which is pickle" in message
    assert "--allow-pickle (allow_pickle=True)" in message
    assert "save_pretrained" in message


def test_some_lists_ten_and_counts_the_rest() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(list("abcdefghij")) == "a, b, c, d, e, f, g, h, i, j"
    assert some(list("abcdefghijkl")) == "a, b, c, d, e, f, g, h, i, j and 2 more"


@pytest.mark.case(75)
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_a_file_that_is_overwritten_in_place_changes_no_answer(tmp_path: Path, family: str) -> None:
    """Were it mapped still, `cp` over it would change them, or end the process by SIGBUS."""
    folder = tiny_checkpoints.make(tmp_path, family)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        before = encoder.predict_proba(["a good film", "the sea"])
        path = folder / "model.safetensors"
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
        assert np.array_equal(encoder.predict_proba(["a good film", "the sea"]), before)
