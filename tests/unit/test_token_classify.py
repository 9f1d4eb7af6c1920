"""Entities of texts against Transformers' pipeline, string for string."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import Tensor

from packhorse import Encoder
from packhorse.errors import TaskError, ValidationError
from tests import tiny_checkpoints, tiny_tokenizers

LABELS = {
    str(i): label for i, label in enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"])
}

TEXTS = [
    "john smith went to the old town of bern",
    "the notebook of anna-maria, unwatchable!",
    "😀😀 john  lives in  münchen — café, naïve",
    "T\x10his \x10\t is \x00a te\x10st of hel\x00lo world",
    "日本語 and 中文 in one line, and 龘 too",
    " leading and trailing spaces ",
    "e\u0301a\u0308 combining, and a\u00a0no-break space",
    "",
    "word " * 90,
]
"""Emoji, accents, Chinese, control characters, unknown characters, nothing, and too much."""

KINDS = {
    "word_piece": "bert",
    "word_piece_cased": "bert",
    "byte_level": "roberta",
    "unigram": "xlm-roberta",
}
STRATEGIES = ["none", "simple", "first", "average", "max"]


@cache
def folder_of(kind: str) -> Path:
    """A token classifier with a tokenizer of this kind."""
    tokenizer = tiny_tokenizers.BUILDERS[kind]()
    kin = kind not in ("word_piece", "word_piece_cased")
    pad = tokenizer.token_to_id("<pad>" if kin else "[PAD]")
    folder = tiny_checkpoints.shared(
        KINDS[kind],
        head="ForTokenClassification",
        num_labels=len(LABELS),
        vocab_size=tokenizer.get_vocab_size(),
        pad_token_id=pad,
        max_position_embeddings=64 + pad + 1,
        seed=3,
        initializer_range=0.3,
        layers=1,
    )
    tiny_checkpoints.edit_config(
        folder, id2label=LABELS, label2id={label: int(i) for i, label in LABELS.items()}
    )
    return folder


@cache
def prepared(kind: str) -> Path:
    import json

    folder = folder_of(kind)
    tokenizer = tiny_tokenizers.BUILDERS[kind]()
    tokenizer.save(str(folder / "tokenizer.json"))
    kin = tokenizer.token_to_id("<pad>") is not None
    names = (
        {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
        if kin
        else {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    )
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    config |= {f"{name}_token": token for name, token in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tiny_checkpoints.edit_tensors(folder, _telling_tokens_apart)
    return folder


def _telling_tokens_apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random layers make all tokens of a text alike; so each keeps more of its own word."""
    return {
        name: tensor * (8 if "word_embeddings" in name else 0 if name == "classifier.bias" else 1)
        for name, tensor in tensors.items()
    }


def pipeline_of(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    return transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)


def expected(pipe: Any, text: str, strategy: str, **options: Any) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pipe(text, aggregation_strategy=strategy, **options)
    rows = []
    for entity in found:
        start, end = int(entity["start"]), int(entity["end"])
        span = text[start:end]
        if span.strip():  # ours have no white space at their ends
            start, end = start + len(span) - len(span.lstrip()), start + len(span.rstrip())
        label = entity.get("entity_group", entity.get("entity"))
        rows.append(
            (label, entity["word"], start, end, entity.get("index"), float(entity["score"]))
        )
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.case(3, 65, 67)
def test_entities_equal_the_pipelines(kind: str) -> None:
    folder = prepared(kind)
    pipe = pipeline_of(folder)
    kinds_seen = set()
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        for strategy in STRATEGIES:
            found = encoder.token_classify(TEXTS, strategy)
            for text, entities in zip(TEXTS, found, strict=True):
                wanted = expected(pipe, text, strategy) if text else []
                got = [(e.label, e.word, e.start, e.end, e.index) for e in entities]
                assert got == [row[:-1] for row in wanted], (strategy, text)
                for entity, row in zip(entities, wanted, strict=True):
                    assert entity.score == pytest.approx(row[-1], abs=1e-5)
                    span = text[entity.start : entity.end]
                    assert 0 <= entity.start <= entity.end <= len(text)
                    assert span == span.strip() or not span.strip()
                kinds_seen |= {entity.label for entity in entities}
    assert len(kinds_seen) >= 4, "the random weights give too few labels to compare"


def test_windows_equal_the_pipelines() -> None:
    folder = prepared("word_piece")
    pipe = pipeline_of(folder)
    texts = [" ".join(tiny_tokenizers.WORDS * 2), *TEXTS[:3]]
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        for stride in (0, 7, 40):
            found = encoder.token_classify(texts, "simple", stride=stride)
            for text, entities in zip(texts, found, strict=True):
                wanted = expected(pipe, text, "simple", stride=stride)
                assert [(e.label, e.word, e.start, e.end) for e in entities] == [
                    row[:4] for row in wanted
                ]
        assert encoder.token_classify(texts, "simple", stride=7)[0][-1].end > 400


@pytest.mark.parametrize("kind", ["byte_level", "unigram"])
def test_of_overlapping_windows_the_same_entities_are_taken_as_by_the_pipeline(kind: str) -> None:
    """The first token of a window has its space within its span, which makes it the longer."""
    folder = prepared(kind)
    pipe = pipeline_of(folder)
    source = random.Random(5)
    words = [*tiny_tokenizers.WORDS, "", "münchen", "—", "中国", "😀", "e\u0301", "New", "a\r\nb"]
    texts = [" ".join(source.choices(words, k=150)) for _ in range(6)]
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        for stride, strategy in ((5, "simple"), (30, "average")):
            found = encoder.token_classify(texts, strategy, stride=stride)
            for text, entities in zip(texts, found, strict=True):
                wanted = expected(pipe, text, strategy, stride=stride)
                got = [(e.label, e.word, e.start, e.end) for e in entities]
                assert got == [row[:4] for row in wanted]
                scores = [row[-1] for row in wanted]
                assert [e.score for e in entities] == pytest.approx(scores, abs=1e-5)


def test_what_cannot_be_asked_for_is_refused() -> None:
    with Encoder(prepared("word_piece"), device="cpu", dtype="float32") as encoder:
        assert encoder.task == "token_classify"
        with pytest.raises(ValidationError, match="aggregation_strategy 'most' is not one of none"):
            encoder.token_classify(["a"], "most")
        with pytest.raises(ValidationError, match="needs an aggregation_strategy"):
            encoder.token_classify(["a"], stride=2)
        with pytest.raises(ValidationError, match=r"`stride` is 62; .* 0 to 61"):
            encoder.token_classify(["a"], "simple", stride=62)
        with pytest.raises(ValidationError, match=r"inputs\[8\] has more than 64 tokens"):
            encoder.token_classify(TEXTS, truncate=False)
        with pytest.raises(TaskError, match="this model classifies tokens"):
            encoder.classify(["a"])
        assert encoder.token_classify([]) == []
