"""packhorse.checkpoint: what config.json means, and which values are refused."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from packhorse import checkpoint as checkpoint_module
from packhorse.checkpoint import (
    DEMO_MODEL_ID,
    Architecture,
    ProblemType,
    load_checkpoint,
    read_json,
)
from packhorse.errors import CheckpointError
from packhorse.families import ACTIVATIONS, BERT, FAMILIES, Setting
from packhorse.kernels import reference
from packhorse.tasks import Task
from tests.tiny_checkpoints import edit_config, edit_tensors, make_bert, shared


def write(folder: Path, tokenizer_config: dict[str, Any] | None = None, **config: Any) -> Path:
    """A folder with a BERT config of these keys and an empty tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    (folder / "tokenizer.json").write_text("{}")
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


# The whole.


def test_saved_model_is_read_in_full() -> None:
    folder = shared(num_labels=3, hidden_act="relu")
    checkpoint = load_checkpoint(folder)
    vocab_size = checkpoint.config["vocab_size"]
    assert checkpoint.architecture == Architecture(
        family="bert",
        vocab_size=vocab_size,
        embedding_size=32,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        hidden_act="relu",
        layer_norm_eps=1e-12,
        max_position_embeddings=128,
        first_position=0,
        type_vocab_size=2,
        pad_token_id=0,
        torch_dtype="float32",
    )
    assert checkpoint.architecture.head_size == 8
    assert checkpoint.model_id == str(folder)
    assert checkpoint.folder == folder
    assert checkpoint.revision is None
    assert checkpoint.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert checkpoint.max_length == 128
    assert checkpoint.tokenizer_file.is_file()
    assert checkpoint.family is BERT


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    assert load_checkpoint(write(tmp_path)).architecture.torch_dtype is None
    for family in FAMILIES.values():
        reference_config = transformers.AutoConfig.for_model(family.model_type)
        for field, setting in family.settings.items():
            if setting.key is not None:
                wanted = getattr(reference_config, setting.key)
                assert setting.default == wanted, (family.model_type, field)


def test_every_accepted_activation_is_computed() -> None:
    assert set(ACTIVATIONS) == set(reference.ACTIVATIONS)
    assert set(ACTIVATIONS) <= set(transformers.activations.ACT2CLS)


def test_no_model_is_the_demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "DEMO_MODEL", write(tmp_path))
    checkpoint = load_checkpoint()
    assert checkpoint.folder == tmp_path
    assert checkpoint.model_id == DEMO_MODEL_ID


def test_model_of_the_hub_is_fetched_and_its_commit_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = write(tmp_path / "snapshots" / "c0ffee")
    asked = {}

    def fetch(model_id: str, **options: Any) -> Path:
        asked.update(options, model_id=model_id)
        return snapshot

    monkeypatch.setattr(checkpoint_module, "fetch", fetch)
    options = {"revision": "v2", "token": "hf_t", "offline": True, "cache_dir": tmp_path}
    checkpoint = load_checkpoint("owner/name", **options)  # type: ignore[arg-type]
    assert asked == {"model_id": "owner/name", "allow_pickle": False, **options}
    assert (checkpoint.model_id, checkpoint.revision) == ("owner/name", "c0ffee")


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from packhorse.checkpoint import load_checkpoint
        load_checkpoint(sys.argv[1])
        heavy = {"torch", "transformers", "huggingface_hub", "starlette"} & set(sys.modules)
        assert not heavy, heavy
    """
    run = [sys.executable, "-c", code, str(write(tmp_path))]
    subprocess.run(run, check=True, env={"PYTHONPATH": ":".join(sys.path)})


# Files.


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b'{"model_type": "bert"', "cannot be read as JSON"),
        (b'{"a": "\xff"}', "cannot be read as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[]", "must hold a JSON object, not list"),
        (b"null", "must hold a JSON object, not NoneType"),
    ],
)
def test_broken_json_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"config.json {said}"):
        load_checkpoint(tmp_path)


def test_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_json(tmp_path / "config.json")


# Family and task.


@pytest.mark.parametrize("model_type", ["gpt2", "", 7, None, ["bert"]])
def test_unknown_family_is_refused_with_those_served(tmp_path: Path, model_type: Any) -> None:
    write(tmp_path, model_type=model_type)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    message = str(caught.value)
    assert f'config.json: "model_type" is {json.dumps(model_type)}; accepted: bert' in message
    assert "BertForSequenceClassification" in message


def test_old_config_without_model_type_is_known_by_its_class(tmp_path: Path) -> None:
    write(tmp_path, model_type=None, architectures=["BertForSequenceClassification"])
    assert load_checkpoint(tmp_path).family is BERT


@pytest.mark.parametrize("architectures", [None, [], ["BertForSequenceClassification"]])
def test_class_name_may_be_missing(tmp_path: Path, architectures: Any) -> None:
    assert load_checkpoint(write(tmp_path, architectures=architectures)).family is BERT


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertLMHeadModel", "a language model"),
        ("BertForQuestionAnswering", "an extractive question answerer"),
        ("RobertaModel", "an encoder of another family"),
        ("RobertaForTokenClassification", "a token classifier of another family"),
        ("RobertaForSequenceClassification", "a sequence classifier of another family"),
        ("MyOwnThing", "a model of another kind"),
    ],
)
def test_other_task_is_refused_by_what_it_is(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path, architectures=[name])
    with pytest.raises(CheckpointError, match=f"{name} is {kind}") as caught:
        load_checkpoint(tmp_path)
    assert "accepted: BertForSequenceClassification" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("BertForSequenceClassification", Task.CLASSIFY),
        ("BertForTokenClassification", Task.TOKEN_CLASSIFY),
        ("BertModel", Task.EMBED),
        ("BertForMaskedLM", Task.EMBED),
        ("BertForPreTraining", Task.EMBED),
    ],
)
def test_the_class_name_says_the_task(tmp_path: Path, name: str, task: Task) -> None:
    checkpoint = load_checkpoint(write(tmp_path, architectures=[name]))
    assert checkpoint.task is task
    assert (checkpoint.sentence is not None) == (task is Task.EMBED)


def test_a_classifier_with_one_label_reranks(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write(tmp_path, id2label={"0": "relevance"}))
    assert checkpoint.task is Task.RERANK
    assert checkpoint.cross_encoder.activation == "sigmoid"


def test_a_task_that_is_asked_for_goes_before_the_class_name(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(write(tmp_path), task=Task.EMBED)
    assert (checkpoint.task, checkpoint.labels) == (Task.EMBED, ())


def test_what_has_two_labels_cannot_rerank(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the model has 2 labels"):
        load_checkpoint(write(tmp_path), task=Task.RERANK)


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "identity",
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "sigmoid",
        ),
        ({"sentence_transformers": {"version": "4.0.0"}}, "sigmoid"),
    ],
)
def test_a_cross_encoder_says_what_follows_its_logit(
    tmp_path: Path, config: dict[str, Any], activation: str
) -> None:
    checkpoint = load_checkpoint(write(tmp_path, id2label={"0": "score"}, **config))
    assert checkpoint.cross_encoder.activation == activation


def test_code_of_a_cross_encoders_own_is_refused(tmp_path: Path) -> None:
    write(tmp_path, id2label={"0": "s"}, sbert_ce_default_activation_function="os.system")
    with pytest.raises(CheckpointError, match=r"the activation 'os.system'"):
        load_checkpoint(tmp_path)


# Values of the architecture.

SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [-1, 0, 1.5, "32", True, None, [32], 2**31])
def test_wrong_size_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    write(tmp_path, **{key: value})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    assert f'config.json: "{key}" is {json.dumps(value)}; accepted: a whole number from 1' in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("num_attention_heads", 7, "a divisor of the hidden size, 768"),
        ("hidden_act", "gelu_10", "gelu, gelu_new,"),
        ("hidden_act", None, "gelu, gelu_new,"),
        ("hidden_act", ["gelu"], "gelu, gelu_new,"),
        ("layer_norm_eps", 0, "a number between 0 and 1"),
        ("layer_norm_eps", -1e-12, "a number between 0 and 1"),
        ("layer_norm_eps", "1e-12", "a number between 0 and 1"),
        ("layer_norm_eps", float("nan"), "a number between 0 and 1"),
        ("layer_norm_eps", float("inf"), "a number between 0 and 1"),
        ("layer_norm_eps", None, "a number between 0 and 1"),
        ("position_embedding_type", "relative_key", '"absolute"'),
        ("position_embedding_type", "alibi", '"absolute"'),
        ("is_decoder", True, "false"),
        ("is_encoder_decoder", True, "false"),
        ("add_cross_attention", True, "false"),
        ("pruned_heads", {"0": [1]}, "{}"),
        ("quantization_config", {"bits": 4}, "no such key"),
        ("torch_dtype", "int8", "float16, bfloat16, float32, float64"),
        ("dtype", {"": "float16"}, "float16, bfloat16, float32, float64"),
        ("problem_type", "ranking", "single_label_classification, multi_label_classification, "),
        ("problem_type", ["regression"], "single_label_classification, multi_label_classification"),
        ("architectures", "BertForSequenceClassification", "a list of class names"),
    ],
)
@pytest.mark.case(35)
def test_wrong_value_is_refused(tmp_path: Path, key: str, value: Any, accepted: str) -> None:
    write(tmp_path, **{key: value})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    assert f'config.json: "{key}" is {json.dumps(value)}; accepted: {accepted}' in str(caught.value)


@pytest.mark.case(35)
def test_other_names_of_the_same_are_the_same(tmp_path: Path) -> None:
    for value, meant in (
        ("gelu_python", "gelu"),
        ("gelu_accurate", "gelu_new"),
        ("gelu_python_tanh", "gelu_pytorch_tanh"),
    ):
        write(tmp_path, hidden_act=value)
        assert load_checkpoint(tmp_path).architecture.hidden_act == meant
        x = torch.linspace(-4, 4, 99)
        functions = transformers.activations.ACT2FN
        assert torch.allclose(functions[value](x), functions[meant](x), atol=1e-6)
    for key in ("torch_dtype", "dtype"):
        for value, meant in (
            ("half", "float16"),
            ("float", "float32"),
            ("double", "float64"),
            ("torch.bfloat16", "bfloat16"),
        ):
            write(tmp_path, **{key: value})
            assert load_checkpoint(tmp_path).architecture.torch_dtype == meant


@pytest.mark.parametrize("value", [0, -1, "x", 1.5, None, True])
def test_albert_must_have_groups_of_layers(tmp_path: Path, value: Any) -> None:
    write(tmp_path, model_type="albert", num_hidden_groups=value)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    shown = f'config.json: "num_hidden_groups" is {json.dumps(value)}; accepted: a whole number'
    assert shown in str(caught.value)
    write(tmp_path, num_hidden_groups=value)  # a key that means nothing to BERT
    load_checkpoint(tmp_path)


def test_long_values_are_cut_in_messages(tmp_path: Path) -> None:
    write(tmp_path, hidden_act="x" * 10_000)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    assert len(str(caught.value)) < 500


def test_spelled_out_defaults_are_accepted(tmp_path: Path) -> None:
    harmless = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "pruned_heads": {},
        "quantization_config": None,
        "chunk_size_feed_forward": 64,
        "an_unknown_key": {"of": "any kind"},
    }
    load_checkpoint(write(tmp_path, **harmless))


@pytest.mark.parametrize("value", [None, -1, 30522])
def test_pad_id_does_not_matter_where_positions_start_at_zero(tmp_path: Path, value: Any) -> None:
    architecture = load_checkpoint(write(tmp_path, pad_token_id=value)).architecture
    assert (architecture.pad_token_id, architecture.first_position) == (0, 0)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({}, None),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "float16"),
        ({"dtype": None, "torch_dtype": "float32"}, "float32"),
    ],
)
def test_dtype_by_either_key(tmp_path: Path, config: dict[str, Any], dtype: str | None) -> None:
    assert load_checkpoint(write(tmp_path, **config)).architecture.torch_dtype == dtype


# A family of another shape is another row.

ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    first_position=None,
    settings={**BERT.settings, "pad_token_id": Setting("pad_token_id", 1)},
)
MPNET = dataclasses.replace(
    BERT,
    model_type="mpnet",
    first_position=2,
    settings={**BERT.settings, "type_vocab_size": Setting(None, 0)},
)


@pytest.mark.parametrize(
    ("model_type", "config", "limit"),
    [
        ("roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("roberta", {"max_position_embeddings": 514}, 512),
        ("roberta", {"max_position_embeddings": 514, "pad_token_id": 3}, 510),
        ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 0}, 512),
        ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("bert", {"max_position_embeddings": 512}, 512),
        ("bert", {"max_position_embeddings": 8192}, 8192),
    ],
)
@pytest.mark.case(7, 9)
def test_limit_comes_from_the_positions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    config: dict[str, Any],
    limit: int,
) -> None:
    monkeypatch.setitem(FAMILIES, "roberta", ROBERTA)
    monkeypatch.setitem(FAMILIES, "mpnet", MPNET)
    checkpoint = load_checkpoint(write(tmp_path, model_type=model_type, **config))
    assert checkpoint.max_length == checkpoint.architecture.max_positions == limit
    assert checkpoint.architecture.type_vocab_size == (0 if model_type == "mpnet" else 2)


@pytest.mark.parametrize("value", [None, -1, 30522, "1", True])
def test_pad_id_matters_where_positions_are_counted_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setitem(FAMILIES, "roberta", ROBERTA)
    write(tmp_path, model_type="roberta", pad_token_id=value)
    with pytest.raises(
        CheckpointError, match=r'"pad_token_id" is .* a whole number from 0 to 30521'
    ):
        load_checkpoint(tmp_path)


def test_positions_that_the_pad_id_uses_up_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "roberta", ROBERTA)
    write(tmp_path, model_type="roberta", pad_token_id=1, max_position_embeddings=2)
    with pytest.raises(
        CheckpointError, match='"max_position_embeddings" is 2; accepted: more than 2'
    ):
        load_checkpoint(tmp_path)


# The longest sequence.


@pytest.mark.parametrize(
    ("tokenizer_config", "limit"),
    [
        (None, 512),
        ({}, 512),
        ({"model_max_length": None}, 512),
        ({"model_max_length": 128}, 128),
        ({"model_max_length": 128.0}, 128),
        ({"model_max_length": 4096}, 512),
        ({"model_max_length": 10**9}, 512),
        ({"model_max_length": 10**30}, 512),
        ({"model_max_length": 1e30}, 512),
        ({"model_max_length": float("inf")}, 512),
        ({"max_len": 64}, 64),
        ({"model_max_length": 128, "max_len": 64}, 128),
    ],
)
def test_limit_is_less_if_the_tokenizer_says_so(
    tmp_path: Path, tokenizer_config: dict[str, Any] | None, limit: int
) -> None:
    assert load_checkpoint(write(tmp_path, tokenizer_config)).max_length == limit


@pytest.mark.parametrize("value", [0, -1, 1.5, "512", True, [512], float("nan"), float("-inf")])
def test_wrong_tokenizer_limit_is_refused(tmp_path: Path, value: Any) -> None:
    write(tmp_path, {"model_max_length": value})
    with pytest.raises(CheckpointError, match=r'tokenizer_config.json: "model_max_length" is'):
        load_checkpoint(tmp_path)


def test_truncation_in_tokenizer_json_is_no_limit_here_nor_there(tmp_path: Path) -> None:
    folder = make_bert(tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {
        "direction": "Right",
        "max_length": 8,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 20})
    )
    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(reference_tokenizer("word " * 50, truncation=True)["input_ids"]) == 20
    assert load_checkpoint(folder).max_length == 20


# Labels.

LABEL_FIELDS: list[dict[str, Any]] = [
    {},
    {"num_labels": 5},
    {"num_labels": 1},
    {"id2label": {"0": "no", "1": "perhaps", "2": "yes"}},
    {"id2label": {"1": "yes", "0": "no"}},
    {"id2label": {str(row): f"row {row}" for row in reversed(range(12))}},
    {"id2label": {"0": "score"}},
    {"num_labels": 2, "id2label": {"0": "no", "1": "yes"}},
    {"num_labels": 5, "id2label": {"0": "no", "1": "yes"}},
    {"num_labels": 3, "id2label": {"0": "no", "2": "yes"}},
    {"num_labels": 3, "id2label": None},
    {"label2id": {"a": 0, "b": 1, "c": 2}},
    {"_num_labels": 3},
    {"id2label": {"0": "same", "1": "same"}},
]


@pytest.mark.parametrize("fields", LABEL_FIELDS, ids=json.dumps)
@pytest.mark.case(33)
def test_labels_are_those_of_transformers(
    tmp_path: Path, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path, **fields)
    with caplog.at_level(logging.ERROR):
        config = transformers.AutoConfig.from_pretrained(folder)
    labels = tuple(config.id2label[row] for row in range(config.num_labels))
    assert load_checkpoint(folder).labels == labels


def test_names_that_num_labels_overrules_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_checkpoint(write(tmp_path, num_labels=5, id2label={"0": "no", "1": "yes"}))
    assert "num_labels is 5, so the 2 names of id2label are not used" in caplog.text


def test_numbers_as_labels_become_their_digits(tmp_path: Path) -> None:
    assert load_checkpoint(write(tmp_path, id2label={"0": 1, "1": 5})).labels == ("1", "5")


@pytest.mark.parametrize(
    ("fields", "key", "accepted"),
    [
        ({"id2label": {}}, "id2label", "an object such as"),
        ({"id2label": ["no", "yes"]}, "id2label", "an object such as"),
        ({"id2label": {"0": "no", "2": "yes"}}, "id2label", "the keys 0 to 1, each once"),
        ({"id2label": {"1": "no", "2": "yes"}}, "id2label", "the keys 0 to 1, each once"),
        ({"id2label": {"0": "no", "00": "yes"}}, "id2label", "the keys 0 to 1, each once"),
        ({"id2label": {"-1": "no", "0": "yes"}}, "id2label", "the keys 0 to 1, each once"),
        ({"id2label": {"no": 0, "yes": 1}}, "id2label", "whole numbers as keys"),
        ({"id2label": {"0": None, "1": "yes"}}, "id2label", "strings as labels"),
        ({"id2label": {"0": ["no"], "1": "yes"}}, "id2label", "strings as labels"),
        ({"num_labels": 0}, "num_labels", "a whole number of at least 1"),
        ({"num_labels": -1}, "num_labels", "a whole number of at least 1"),
        ({"num_labels": "3"}, "num_labels", "a whole number of at least 1"),
        ({"num_labels": 2.0}, "num_labels", "a whole number of at least 1"),
        ({"num_labels": None}, "num_labels", "a whole number of at least 1"),
        ({"num_labels": True}, "num_labels", "a whole number of at least 1"),
    ],
)
@pytest.mark.case(33)
def test_labels_that_cannot_be_meant_are_refused(
    tmp_path: Path, fields: dict[str, Any], key: str, accepted: str
) -> None:
    write(tmp_path, **fields)
    with pytest.raises(CheckpointError, match=f'config.json: "{key}" is .*; accepted: {accepted}'):
        load_checkpoint(tmp_path)


# Scores.

FUNCTIONS = {
    ProblemType.SINGLE_LABEL: lambda logits: logits.softmax(-1),
    ProblemType.MULTI_LABEL: torch.sigmoid,
    ProblemType.REGRESSION: lambda logits: logits,
}


def with_head(folder: Path, bias: list[float]) -> Path:
    """A classifier whose logits are ``bias`` for every text."""

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        head = {
            "classifier.weight": torch.zeros(len(bias), 32),
            "classifier.bias": torch.tensor(bias),
        }
        return tensors | head

    return edit_tensors(make_bert(folder, num_labels=len(bias)), edit)


@pytest.mark.parametrize(
    ("problem_type", "logits", "scores"),
    [
        (None, [2.0], [0.880797]),
        ("multi_label_classification", [2.0], [0.880797]),
        ("regression", [2.0], [2.0]),
        (None, [2.0, 0.0, -1.0], [0.843795, 0.114195, 0.04201]),
        ("single_label_classification", [2.0, 0.0, -1.0], [0.843795, 0.114195, 0.04201]),
        ("multi_label_classification", [2.0, 0.0, -1.0], [0.880797, 0.5, 0.268941]),
        ("regression", [2.0, 0.0, -1.0], [2.0, 0.0, -1.0]),
    ],
)
@pytest.mark.case(45, 47)
def test_problem_type_gives_the_scores_of_the_pipeline(
    tmp_path: Path, problem_type: str | None, logits: list[float], scores: list[float]
) -> None:
    folder = edit_config(with_head(tmp_path, logits), problem_type=problem_type)
    pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
    answer = {entry["label"]: entry["score"] for entry in pipeline("a text", top_k=None)}
    checkpoint = load_checkpoint(folder)
    ours = FUNCTIONS[checkpoint.problem_type](torch.tensor(logits))
    assert ours.tolist() == pytest.approx(scores, abs=1e-6)
    assert [answer[label] for label in checkpoint.labels] == pytest.approx(scores, abs=1e-6)


def test_softmax_over_one_label_is_refused_here_and_there(tmp_path: Path) -> None:
    write(tmp_path, num_labels=1, problem_type="single_label_classification")
    with pytest.raises(CheckpointError, match="regression or null where there is one label"):
        load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="requires `num_labels > 1`"):
        transformers.AutoConfig.from_pretrained(tmp_path)
