"""How long a text may be, and what is left of one that is longer: limits are the checkpoint's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from packhorse import Encoder
from packhorse.errors import ValidationError
from tests import tiny_checkpoints
from tests.models.test_fidelity import RELATIVE
from tests.models.test_sentence import assert_close, by_formula, make, pooling
from tests.tiny_checkpoints import WORDS

LIMITS: dict[str, tuple[str, dict[str, Any], int]] = {
    "roberta, pad 1": ("roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
    "roberta, pad 3": ("roberta", {"max_position_embeddings": 514, "pad_token_id": 3}, 510),
    "xlm-roberta": ("xlm-roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
    "mpnet, pad 0": ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 0}, 512),
    "mpnet, pad 1": ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
    "bert": ("bert", {"max_position_embeddings": 512}, 512),
    "distilbert": ("distilbert", {"max_position_embeddings": 512}, 512),
    "electra": ("electra", {"max_position_embeddings": 512}, 512),
    "albert": ("albert", {"max_position_embeddings": 512}, 512),
    "bert of 1024": ("bert", {"max_position_embeddings": 1024}, 1024),
    "roberta of 1026": ("roberta", {"max_position_embeddings": 1026, "pad_token_id": 1}, 1024),
}
"""Families and the positions their configs name, and the tokens that this leaves for a text.

The pad ids are other tokens of the tests' tokenizer, of which no text here has any but [SEP].
"""


def folder_of(kind: str) -> Path:
    family, options, _ = LIMITS[kind]
    return tiny_checkpoints.shared(family, layers=1, **options)


def encoder_of(folder: Path, **options: Any) -> Encoder:
    return Encoder(folder, device="cpu", dtype="float32", **options)


def text_of(tokens: int, first: int = 0) -> str:
    """A text of so many tokens, the two special ones included."""
    return " ".join(WORDS[(first + i) % len(WORDS)] for i in range(tokens - 2))


@pytest.mark.case(7)
@pytest.mark.parametrize("kind", LIMITS)
def test_what_fits_the_positions_runs_and_what_is_longer_is_cut_or_refused(kind: str) -> None:
    limit = LIMITS[kind][-1]
    counts = [limit - 2, limit - 1, limit, limit + 1, limit + 2, 2000]
    texts = [text_of(count) for count in counts]
    with encoder_of(folder_of(kind)) as encoder:
        assert encoder.info["max_input_length"] == limit
        assert encoder.encode(texts).lengths.tolist() == [min(count, limit) for count in counts]
        assert np.isfinite(encoder.predict_proba(texts)).all()
        for text, count in zip(texts, counts, strict=True):
            if count <= limit:
                assert encoder.predict_proba([text], truncate=False).shape == (1, 2)
                continue
            said = rf"the limit is {limit}\b|more than {limit} tokens"
            with pytest.raises(ValidationError, match=said):
                encoder.predict_proba([text], truncate=False)
            assert encoder.predict_proba(["fine"]).shape == (1, 2)


@pytest.mark.case(7)
@pytest.mark.parametrize("kind", ["roberta, pad 1", "mpnet, pad 0", "bert", "roberta of 1026"])
def test_the_longest_text_equals_transformers_which_fails_beyond(kind: str) -> None:
    folder, limit = folder_of(kind), LIMITS[kind][-1]
    whole = {"truncate": False}
    with encoder_of(folder) as encoder:
        got = encoder.logits(encoder.encode([text_of(limit)], **whole))  # type: ignore[arg-type]
    expected = tiny_checkpoints.reference_logits(folder, [text_of(limit)]).numpy()
    assert np.abs(got - expected).max() < RELATIVE * np.abs(expected).max()
    with pytest.raises((IndexError, RuntimeError)):
        tiny_checkpoints.reference_logits(folder, [text_of(limit + 1)])


@pytest.mark.case(9)
@pytest.mark.parametrize("kind", ["bert of 1024", "roberta of 1026"])
def test_what_differs_after_six_hundred_tokens_differs(kind: str) -> None:
    start = text_of(602)
    one, other = f"{start} {text_of(100)}", f"{start} {text_of(100, first=31)}"
    with encoder_of(folder_of(kind), task="embed") as encoder:
        sequences = encoder.encode([one, other])
        assert sequences.lengths.tolist() == [700, 700]
        assert not sequences.truncated.any()
        vectors = encoder.embed([one, other], normalize=True)
    assert vectors[0] @ vectors[1] < 0.9999


@pytest.mark.case(13)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_cut_text_is_as_good_as_the_part_of_it_that_was_kept(family: str) -> None:
    words = text_of(302).split()
    starts = " ".join(words[:126]), " ".join(words[-126:])
    options = {"pad_token_id": 0, "max_position_embeddings": 129} if family == "roberta" else {}
    folder = tiny_checkpoints.shared(family, layers=1, **options)
    for task in ("classify", "embed"):
        with encoder_of(folder, task=task) as encoder:
            ask = encoder.predict_proba if task == "classify" else encoder.embed
            for kept, side in zip(starts, ("right", "left"), strict=True):
                got = ask([" ".join(words)], truncation_direction=side)  # type: ignore[operator]
                assert np.abs(got - ask([kept])).max() < 1e-5, side  # type: ignore[operator]


@pytest.mark.case(15)
@pytest.mark.parametrize("limit", [16, 64, 300])
def test_a_sentence_transformers_folder_is_cut_at_the_least_of_its_limits(
    limit: int, tmp_path: Path
) -> None:
    module = pooling("mean_tokens")
    settings = {"sentence_bert_config": {"max_seq_length": limit}}
    folder = make(tmp_path / "m", [module], **settings)
    kept = {16: 16, 64: 64, 300: 128}[limit]  # the folder's limit goes before the tokenizer's
    texts = [text_of(count) for count in (10, kept - 1, kept, kept + 1, 200)]
    states = tiny_checkpoints.reference_states(folder, [text_of(min(n, kept)) for n in (10, kept)])
    expected = by_formula(states, [module])
    tokenizer = folder / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text().replace(str(10**30), "64"))
    with encoder_of(folder) as encoder:
        assert encoder.info["max_input_length"] == kept
        got = encoder.embed(texts)
    assert_close(got[[0, 2]], expected)
    for row in got[3:]:
        assert_close(row, expected[1])


# Pairs.


@pytest.mark.case(17)
@pytest.mark.parametrize("side", ["right", "left"])
def test_segments_are_cut_together_with_the_ids(side: str) -> None:
    """Scores of long documents beside short ones are those of the reference, one by one."""
    folder = tiny_checkpoints.shared(num_labels=1)
    query = text_of(11)
    pairs: list[Any] = [(query, text_of(n, first=n)) for n in (3, 100, 118, 119, 120, 400)]
    pairs += [(text_of(90), text_of(300)), (text_of(300), text_of(5))]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, truncation_side=side)
    with encoder_of(folder) as encoder:
        sequences = encoder.encode(pairs, truncation_direction=side)  # type: ignore[arg-type]
        got = encoder.logits(sequences)[:, 0]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert sequences.segment_starts is not None
    for row, (first, second) in enumerate(pairs):
        encoded = tokenizer(first, second, truncation=True, max_length=128, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == sequences.slice(row, row + 1).input_ids.tolist()
        ones = int(encoded["token_type_ids"].sum())
        assert int(sequences.lengths[row] - sequences.segment_starts[row]) == ones
        assert got[row] == pytest.approx(model(**encoded).logits.item(), abs=1e-4)


@pytest.mark.case(19)
def test_a_query_over_the_limit_leaves_room_for_its_document() -> None:
    query, documents = text_of(602), [text_of(7), text_of(3), text_of(602)]
    with encoder_of(folder_of("bert")) as encoder:
        sequences = encoder.encode([(query, document) for document in documents])
        assert sequences.segment_starts is not None
        assert sequences.lengths.tolist() == [512] * 3
        seconds = sequences.lengths - sequences.segment_starts - 1
        assert seconds.tolist() == [5, 1, 255]
        with pytest.raises(ValidationError, match=r"inputs\[0\] has 608 tokens.*limit is 512"):
            encoder.encode([(query, documents[0])], truncate=False)
    with encoder_of(tiny_checkpoints.shared(num_labels=1)) as encoder:
        assert len(encoder.rerank(query, documents)) == 3


# A token of the text that is the pad token.


@pytest.mark.case(21)
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "mpnet", "bert"])
def test_a_literal_pad_token_gets_the_position_that_the_reference_gives_it(family: str) -> None:
    """Alone and among others; MPNet's kin count from 1, so [UNK] is what it takes for padding."""
    options = {} if family == "bert" else {"pad_token_id": 0}
    texts: list[Any] = [
        "good [PAD] film",
        "a [PAD] [PAD] b",
        "[PAD]",
        "a good film",
        "good 龘 film",
    ]
    folder = tiny_checkpoints.shared(family, layers=1, **options)
    expected = tiny_checkpoints.reference_logits(folder, texts).numpy()
    with encoder_of(folder) as encoder:
        together = encoder.logits(encoder.encode(texts))
        alone = np.concatenate([encoder.logits(encoder.encode([text])) for text in texts])
    for got in (together, alone):
        assert np.abs(got - expected).max() < RELATIVE * np.abs(expected).max()
