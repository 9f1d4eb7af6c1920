"""Where tokenizer_config.json and tokenizer.json differ: ids are those of Transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.tokenizing.tokenizer import Tokenizer
from tests import tiny_checkpoints, tiny_tokenizers

TEXTS = ["The STORY was good", "Über süß", "日本語 and 中文", "a", "", " film", "GOOD film, good"]


def folder_with(folder: Path, lowercase: bool = True, **config: Any) -> Path:
    """A BERT checkpoint whose tokenizer_config.json has these keys, whatever tokenizer.json has."""
    tiny_checkpoints.make_bert(folder, lowercase=lowercase)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def ids_of(folder: Path) -> list[list[int]]:
    sequences = Tokenizer.load(load_checkpoint(folder), parallel=False).encode(TEXTS)
    bounds = sequences.cu_seqlens
    return [sequences.input_ids[bounds[i] : bounds[i + 1]].tolist() for i in range(len(TEXTS))]


def reference_ids(folder: Path) -> list[list[int]]:
    return list(transformers.AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"])


@pytest.mark.case(5)
@pytest.mark.parametrize(
    ("lowercase", "config"),
    [
        (True, {"do_lower_case": False}),
        (False, {"do_lower_case": True}),
        (True, {"strip_accents": False}),
        (False, {"strip_accents": True}),
        (True, {"tokenize_chinese_chars": False}),
        (True, {"do_lower_case": False, "strip_accents": True, "tokenizer_class": None}),
        (True, {"do_lower_case": False, "tokenizer_class": "DistilBertTokenizerFast"}),
    ],
)
def test_the_config_overrules_as_in_transformers(
    tmp_path: Path, lowercase: bool, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with(tmp_path, lowercase)
    plain = ids_of(folder)
    with caplog.at_level(logging.WARNING):
        folder_with(tmp_path, lowercase, **config)
        found = ids_of(folder)
    assert found == reference_ids(folder)
    assert found != plain
    assert "overrules tokenizer.json" in caplog.text


@pytest.mark.case(5)
def test_a_class_without_own_settings_takes_all_from_tokenizer_json(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    plain = ids_of(folder)
    for changes in (
        {"do_lower_case": True, "strip_accents": None},  # as it is
        {"tokenize_chinese_chars": None, "do_lower_case": None},  # not said
        {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"},
    ):
        folder_with(tmp_path, **changes)
        assert ids_of(folder) == plain


def test_a_leading_space_is_added_where_the_config_says_so(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make(tmp_path, "roberta")
    tiny_tokenizers.byte_level().save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "RobertaTokenizer"}
    for added in (False, True):
        config = json.dumps(names | {"add_prefix_space": added})
        (folder / "tokenizer_config.json").write_text(config)
        assert ids_of(folder) == reference_ids(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("do_lower_case", "no"), ("strip_accents", 1), ("truncation_side", "middle")],
)
def test_a_value_that_means_nothing_is_refused_by_its_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(CheckpointError, match=f'"{key}" is '):
        ids_of(folder_with(tmp_path, **{key: value}))


@pytest.mark.case(13)
def test_the_side_that_is_cut_off_is_the_tokenizers_own_unless_a_call_says_it(
    tmp_path: Path,
) -> None:
    folder = folder_with(tmp_path, truncation_side="left", model_max_length=6)
    text = "one good film and two bad films"
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        reference = tiny_checkpoints.reference_logits(folder, [text]).numpy()
        own = encoder.encode([text])
        assert encoder.logits(own) == pytest.approx(reference, abs=1e-5)
        left, right = (
            encoder.encode([text], truncation_direction=side) for side in ("left", "right")
        )
    assert left.input_ids.tolist() == own.input_ids.tolist()
    assert right.input_ids.tolist() != own.input_ids.tolist()


def test_a_tokenizer_without_special_tokens_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with(tmp_path)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    with caplog.at_level(logging.WARNING):
        Tokenizer.load(load_checkpoint(folder), parallel=False)
    assert "no special tokens" in caplog.text
