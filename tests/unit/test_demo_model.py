"""The embedded demo model: complete, small, consistent, and right often enough."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from packhorse.checkpoint import DEMO_MODEL
from packhorse.tools import demo
from packhorse.tools.demo_split import Review, is_held_out, is_validation, read_reviews

REVIEWS = Path(__file__).parents[2] / "benchmarks" / "data" / "reviews.tsv"
LARGEST_FOLDER = 25_000_000  # bytes
HELD_OUT = [21, 24, 25, 33]  # of "text 0" to "text 39"
VALIDATION = [11, 15, 17, 20, 34]
FILES = {
    "LICENSE",
    "README.md",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def reviews() -> list[Review]:
    return read_reviews(REVIEWS)


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def test_folder_is_complete_and_small():
    assert {path.name for path in DEMO_MODEL.iterdir()} == FILES
    assert demo.folder_size(DEMO_MODEL) <= LARGEST_FOLDER


def test_config_is_a_standard_two_label_classifier(config):
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "NEGATIVE", "1": "POSITIVE"}
    assert config["problem_type"] == "single_label_classification"


def test_weights_are_finite_fp16_and_fit_the_tokenizer(config, tokenizer):
    with safe_open(DEMO_MODEL / "model.safetensors", "np") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(array).all() for array in weights.values())
    rows = weights["bert.embeddings.word_embeddings.weight"].shape[0]
    assert rows == config["vocab_size"] == tokenizer.get_vocab_size()
    assert weights["bert.embeddings.position_embeddings.weight"].shape[0] == 512


def test_tokenizer_ids_have_no_gaps_and_special_tokens_are_renumbered(tokenizer):
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    pair = tokenizer.encode("good", "bad")
    assert pair.tokens == ["[CLS]", "good", "[SEP]", "bad", "[SEP]"]
    assert pair.ids == [vocabulary[token] for token in pair.tokens]
    assert pair.type_ids == [0, 0, 0, 1, 1]
    assert tokenizer.padding is None
    assert tokenizer.truncation is None


def test_every_ascii_word_can_still_be_spelled(tokenizer):
    text = " ".join(f"{a}{b}" for a in "abcxyz0189" for b in "qjwvkz2357")
    assert "[UNK]" not in tokenizer.encode(text).tokens


def test_split_is_a_fixed_function_of_the_text():
    texts = [f"text {number}" for number in range(40)]
    assert [number for number, text in enumerate(texts) if is_held_out(text)] == HELD_OUT
    assert [number for number, text in enumerate(texts) if is_validation(text)] == VALIDATION


def test_split_parts_are_disjoint_and_tenths(reviews):
    texts = {review.text for review in reviews}
    held_out = {text for text in texts if is_held_out(text)}
    validation = {text for text in texts if is_validation(text)}
    assert not held_out & validation
    assert math.isclose(len(held_out) / len(texts), 0.1, abs_tol=0.01)
    assert math.isclose(len(validation) / len(texts), 0.09, abs_tol=0.01)


def test_tally_counts_each_source():
    reviews = [Review("tweet", 2.0, "a"), Review("tweet", -1.0, "b"), Review("editorial", 1.0, "c")]
    assert demo.tally(reviews, [1, 1, 1]) == {
        "overall": demo.Tally(2, 3),
        "editorial": demo.Tally(1, 1),
        "tweet": demo.Tally(1, 2),
    }


def test_a_missing_file_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        demo.main([str(tmp_path / "none.tsv")])
    assert "none.tsv is missing" in capsys.readouterr().err


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_accuracy_on_held_out_texts(step):
    """On every fourth of them, or on all."""
    judged = demo.judged_reviews(REVIEWS)
    assert len(judged) > 1500
    judged = judged[::step]
    predicted = demo.predicted_labels([review.text for review in judged])
    tallies = demo.tally(judged, predicted)
    assert tallies["overall"].accuracy >= 0.85, demo.report(tallies, size=0)
    assert min(entry.accuracy for entry in tallies.values()) >= 0.75


def test_plain_opinions():
    texts = [
        "This product is amazing and I love it!",
        "This is a great product!",
        "Terrible service.",
    ]
    assert demo.predicted_labels(texts) == [1, 1, 0]
