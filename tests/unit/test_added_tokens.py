"""Tokens that other files than tokenizer.json add to its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.tokenizing.tokenizer import Tokenizer
from tests import tiny_checkpoints

TEXTS = [
    "a good film",
    "goodness, <extra> and x<extra>y",
    "<Extra> [mask] [MASK]  film GOODness",
    "filmy<other><extra>",
    "",
]
ROWS = 700
"""Of the embedding table: more than the tokenizer has tokens."""

EXTRA = {"content": "<extra>", "special": False, "normalized": False}


def decoder(tokens: dict[str, Any]) -> dict[str, Any]:
    return {"tokenizer_config": {"added_tokens_decoder": tokens}}


def folder_with(folder: Path, **files: dict[str, Any]) -> Path:
    tiny_checkpoints.make_bert(folder, vocab_size=ROWS)
    for name, content in files.items():
        path = folder / f"{name}.json"
        there = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(there | content))
    return folder


@pytest.mark.case(5, 23)
@pytest.mark.parametrize(
    "files",
    [
        decoder({"634": EXTRA}),
        decoder({"635": {"content": "<other>"}, "634": EXTRA}),
        decoder({"353": {"content": "good"}, "4": {"content": "[MASK]", "lstrip": True}}),
        {"tokenizer_config": {"additional_special_tokens": ["good", "<extra>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"one_token": "film"}}},
        {"special_tokens_map": {"additional_special_tokens": ["good"], "cls_token": "[CLS]"}},
        {"added_tokens": {"<extra>": 634, "<other>": 635}},
    ],
)
def test_they_are_read_as_transformers_reads_them(tmp_path: Path, files: dict[str, Any]) -> None:
    folder = folder_with(tmp_path, **files)
    tokenizer = Tokenizer.load(load_checkpoint(folder), parallel=False)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    plain = tiny_checkpoints.make_bert(tmp_path / "plain", vocab_size=ROWS)
    before = Tokenizer.load(load_checkpoint(plain), parallel=False)
    found = [tokenizer.encode([text]).input_ids.tolist() for text in TEXTS]
    assert found == [reference(text)["input_ids"] for text in TEXTS]
    assert found != [before.encode([text]).input_ids.tolist() for text in TEXTS]


def test_a_name_for_what_the_vocabulary_lacks_adds_nothing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tokenizer_config={"mask_token": "<blank>", "bos_token": "good"})
    library = Tokenizer.load(load_checkpoint(folder), parallel=False).library
    assert library.token_to_id("<blank>") is None
    assert library.encode("goodness", add_special_tokens=False).tokens[0] == "good"
    assert library.get_vocab_size() == 634


def test_one_without_an_embedding_fails_the_text_that_has_it(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path)
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": 634}))
    tokenizer = Tokenizer.load(load_checkpoint(folder), parallel=False)
    assert len(tokenizer.encode(["a film"])) == 1
    with pytest.raises(Exception, match="the model's embedding table ends at 633"):
        tokenizer.encode(["an <extra>"])


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": ["<extra>"]}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": EXTRA}}},
        {"tokenizer_config": {"extra_special_tokens": [7]}},
        {"tokenizer_config": {"extra_special_tokens": "<extra>"}},
        {"added_tokens": {"<extra>": "634"}},
    ],
)
def test_what_is_no_token_is_refused_with_its_file(tmp_path: Path, files: dict[str, Any]) -> None:
    folder = folder_with(tmp_path, **files)
    with pytest.raises(CheckpointError, match=next(iter(files))):
        Tokenizer.load(load_checkpoint(folder), parallel=False)
