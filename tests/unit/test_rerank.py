"""Reranking and zero-shot classification against Transformers' classifiers and pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from packhorse import AsyncEncoder, Encoder
from packhorse.errors import TaskError, ValidationError
from tests import tiny_checkpoints
from tests.models.test_fidelity import texts

DOCUMENTS = [text or "nothing" for text in texts(20)]
NLI = {"0": "contradiction", "1": "neutral", "2": "entailment"}


def encoder_of(**options: Any) -> Encoder:
    return Encoder(tiny_checkpoints.shared(**options), device="cpu", dtype="float32")


def inference_model(folder: Path) -> Path:
    """A classifier of pairs whose labels say whether the first entails the second."""
    label2id = {label: int(number) for number, label in NLI.items()}
    return tiny_checkpoints.make_bert(folder, num_labels=None, id2label=NLI, label2id=label2id)


def logits_of(query: str, **options: Any) -> np.ndarray:
    pairs = [(query, document) for document in DOCUMENTS]
    folder = tiny_checkpoints.shared(**options)
    return tiny_checkpoints.reference_logits(folder, pairs).numpy()[:, 0]


@pytest.mark.case(53)
def test_documents_come_best_first_with_their_scores() -> None:
    logits = logits_of("the story", num_labels=1)
    with encoder_of(num_labels=1) as encoder:
        assert encoder.task == "rerank"
        ranked = encoder.rerank("the story", DOCUMENTS)
        raw = encoder.rerank("the story", DOCUMENTS, top_k=3, raw_scores=True)
        assert encoder.rerank("the story", []) == []
    assert [one.index for one in ranked] == np.argsort(-logits, kind="stable").tolist()
    for one in ranked:
        assert one.document == DOCUMENTS[one.index]
        assert one.score == pytest.approx(1 / (1 + np.exp(-logits[one.index])), abs=1e-6)
    assert [one.index for one in raw] == [one.index for one in ranked[:3]]
    assert [one.score for one in raw] == pytest.approx(np.sort(logits)[::-1][:3].tolist(), rel=1e-4)


@pytest.mark.case(53)
def test_the_activation_is_the_models_own(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path, num_labels=1)
    own = {"activation_fn": "torch.nn.modules.linear.Identity"}
    tiny_checkpoints.edit_config(folder, sentence_transformers=own)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        best = encoder.rerank("the story", DOCUMENTS)[0]
    assert best.score == pytest.approx(logits_of("the story", num_labels=1).max(), rel=1e-4)


def test_two_labels_do_not_rerank() -> None:
    with (
        encoder_of(num_labels=2) as encoder,
        pytest.raises(TaskError, match=r"this model classifies texts; load one that scores pairs"),
    ):
        encoder.rerank("a", ["b"])


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [["music", "the sea", "war"], ["music"]])
def test_zero_shot_equals_the_pipeline(
    labels: list[str], multi_label: bool, tmp_path: Path
) -> None:
    folder = inference_model(tmp_path)
    pipe = transformers.pipeline(
        "zero-shot-classification",
        model=transformers.AutoModelForSequenceClassification.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )
    template = "it is about {}."
    given = [text for text in DOCUMENTS if text != "nothing"][:8]
    wanted = pipe(given, labels, hypothesis_template=template, multi_label=multi_label)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        got = encoder.zero_shot(given, labels, template, multi_label)
    for one, other in zip(got, wanted, strict=True):
        assert [each.label for each in one] == other["labels"]
        assert [each.score for each in one] == pytest.approx(other["scores"], abs=1e-5)


def test_zero_shot_cuts_the_text_and_never_the_hypothesis(tmp_path: Path) -> None:
    """Its sentence is the longer half here: cutting that first would leave the text whole."""
    folder = inference_model(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=128)
    pipe = transformers.pipeline(
        "zero-shot-classification",
        model=transformers.AutoModelForSequenceClassification.from_pretrained(folder),
        tokenizer=tokenizer,
    )
    labels = ["music", "word " * 90]
    given = ["the story was good " * 10, "the story was slow and loud " * 400, "short"]
    wanted = pipe(given, labels, hypothesis_template="{}")
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        got = encoder.zero_shot(given, labels, "{}")
        for one, other in zip(got, wanted, strict=True):
            assert {each.label: each.score for each in one} == pytest.approx(
                dict(zip(other["labels"], other["scores"], strict=True)), abs=1e-5
            )
        with pytest.raises(ValidationError, match=r"second text of inputs\[1\] leaves no room"):
            encoder.zero_shot(["a b c"], ["music", "word " * 125], "{}")
        encoder.zero_shot([""], ["word " * 125], "{}")


def test_zero_shot_says_what_is_missing(tmp_path: Path) -> None:
    with (
        encoder_of(num_labels=3) as encoder,
        pytest.raises(TaskError, match="no label that begins with 'entail'"),
    ):
        encoder.zero_shot(["a"], ["b"])
    with Encoder(inference_model(tmp_path), device="cpu", dtype="float32") as encoder:
        for labels, template in (
            *(([], "{}"), ("music", "{}"), (["a"], "none"), (["a"], "{} {}")),
            # What ``format`` would do for a client: take memory, and look at objects.
            *((["a"], "{:>999999999999}"), (["a"], "{0.__class__}"), (["a"], "{} {0}")),
        ):
            with pytest.raises(ValidationError):
                encoder.zero_shot(["a"], labels, template)


def test_the_same_is_awaited() -> None:
    async def main() -> None:
        folder = tiny_checkpoints.shared(num_labels=1)
        async with AsyncEncoder(folder, device="cpu", dtype="float32") as encoder:
            both = await asyncio.gather(
                encoder.rerank("the story", DOCUMENTS), encoder.classify(DOCUMENTS[:2])
            )
            assert len(both[0]) == len(DOCUMENTS)
            assert len(both[1]) == 2

    asyncio.run(main())
