"""From a checkpoint's head to labels and scores: every row has a name, and its own function."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packhorse import Encoder
from packhorse.errors import CheckpointError
from packhorse.families import FAMILIES
from packhorse.models.cpu_backend import CpuBackend
from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.models.test_families import VARIANTS
from tests.models.test_fidelity import RELATIVE, difference, texts
from tests.tiny_checkpoints import edit_config, edit_tensors

Tensors = dict[str, torch.Tensor]

HEADS = {  # what stands between the hidden state and the last layer, per family
    "bert": "tanh",
    "ernie": "tanh",
    "roberta": "tanh",
    "xlm-roberta": "tanh",
    "camembert": "tanh",
    "mpnet": "tanh",
    "albert": "tanh",
    "electra": "gelu",
    "distilbert": "relu",
}


def encoder_of(folder: Path, **options: Any) -> Encoder:
    return Encoder(folder, device="cpu", dtype="float32", **options)


def family_folder(family: str, folder: Path | None = None, **more: Any) -> Path:
    options = next(options for name, options in VARIANTS.values() if name == family) | more
    if folder is None:
        return tiny_checkpoints.shared(family, **options)
    return tiny_checkpoints.make(folder, family, **options)


def constant(folder: Path, logits: list[float], **config: Any) -> Path:
    """A classifier that answers ``logits`` to everything."""

    def edit(tensors: Tensors) -> Tensors:
        head = {"classifier.weight": torch.zeros(len(logits), 32)}
        return tensors | head | {"classifier.bias": torch.tensor(logits)}

    edit_tensors(tiny_checkpoints.make_bert(folder, num_labels=len(logits)), edit)
    return edit_config(folder, **config)


# Never a random weight.


@pytest.mark.case(27)
def test_a_buffer_of_positions_changes_no_bit_of_the_answer(tmp_path: Path) -> None:
    inputs = texts(10)
    answers = []
    for number, shape in enumerate([None, (1, 128), (1, 514)]):
        folder = tiny_checkpoints.make_bert(tmp_path / str(number))
        if shape is not None:
            buffer = torch.arange(shape[1])[None]
            name = "bert.embeddings.position_ids"
            edit_tensors(folder, lambda t, n=name, b=buffer: t | {n: b})  # type: ignore[misc]
        with encoder_of(folder) as encoder:
            answers.append(encoder.logits(encoder.encode(inputs)))
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


@pytest.mark.case(29)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_no_use_are_refused_by_name_in_every_family(family: str, tmp_path: Path) -> None:
    prefixed = family_folder(family, tmp_path / "a")
    edit_tensors(prefixed, lambda t: {f"module.{name}": t[name] for name in t})
    with pytest.raises(CheckpointError, match=r"tensors missing: (?s:.*)unexpected: module\."):
        encoder_of(prefixed)

    headless = family_folder(family, tmp_path / "b")
    edit_tensors(headless, lambda t: {name: t[name] for name in t if "classifier" not in name})
    with pytest.raises(CheckpointError, match=r"missing: (?s:.*)classifier"):
        encoder_of(headless)

    language_model = family_folder(family, head="ForMaskedLM")
    with pytest.raises(CheckpointError, match=r"no trained classification head|missing: "):
        encoder_of(language_model, task=Task.CLASSIFY.value)


# Labels.

LABELS: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "no fields": (2, {}, ["LABEL_0", "LABEL_1"]),
    "a number": (5, {"num_labels": 5}, [f"LABEL_{i}" for i in range(5)]),
    "string keys": (3, {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}, ["no", "maybe", "yes"]),
    "keys out of order": (3, {"id2label": {"2": "c", "0": "a", "1": "b"}}, ["a", "b", "c"]),
    "one entry": (1, {"id2label": {"0": "score"}}, ["score"]),
    "five and two names": (
        *(5, {"num_labels": 5, "id2label": {"0": "no", "1": "yes"}}),
        [f"LABEL_{i}" for i in range(5)],
    ),
    "eleven": (
        11,
        {"id2label": {str(i): f"n{i}" for i in range(11)}},
        [f"n{i}" for i in range(11)],
    ),
}


@pytest.mark.case(33)
@pytest.mark.parametrize("kind", LABELS)
def test_every_row_of_the_head_has_its_label(kind: str, tmp_path: Path) -> None:
    rows, fields, labels = LABELS[kind]
    logits = [float(i) for i in range(rows)]
    folder = constant(tmp_path / "m", logits)
    edit_config(folder, without=["id2label", "label2id", "num_labels"])
    edit_config(folder, **fields)
    with encoder_of(folder) as encoder:
        assert list(encoder.labels) == labels
        (answer,) = encoder.classify(["a text"], raw_scores=True)
    assert [(one.label, one.score) for one in answer] == list(
        zip(labels[::-1], logits[::-1], strict=True)
    )


@pytest.mark.case(33)
@pytest.mark.parametrize("named", [1, 2, 4])
def test_a_head_of_other_rows_than_the_config_names_is_refused(named: int, tmp_path: Path) -> None:
    folder = constant(tmp_path / "m", [0.0, 1.0, 2.0])
    edit_config(folder, without=["id2label", "label2id"], num_labels=named)
    with pytest.raises(CheckpointError, match=f"the head has 3 rows, but .* names {named} label"):
        encoder_of(folder)


# The head of each family.


@pytest.mark.case(41)
@pytest.mark.parametrize("family", HEADS)
def test_another_familys_activation_in_the_head_is_seen(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``difference`` is what tests/models/test_families.py goes by."""
    folder = family_folder(family, num_labels=3)
    assert difference(folder, texts(8)) < RELATIVE
    layer, seen = CpuBackend.head_layer, set()

    def other(self: CpuBackend, x: Any, w: Any, b: Any, activation: Any, out: Any = None) -> Any:
        seen.add(activation)
        wrong = {"tanh": "gelu", "gelu": "tanh", "relu": "tanh"}
        return layer(self, x, w, b, wrong.get(activation), out=out)

    monkeypatch.setattr(CpuBackend, "head_layer", other)
    assert difference(folder, texts(8)) > 100 * RELATIVE
    assert seen == {HEADS[family], None}


@pytest.mark.case(41)
def test_the_head_of_every_family_is_known_here() -> None:
    assert set(FAMILIES) - {"modernbert", "deberta-v2", "deberta"} == set(HEADS)


@pytest.mark.case(35)
def test_the_kinds_of_gelu_are_told_apart() -> None:
    """A model that means one kind and is run as another is off by more than is let through."""
    kinds = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu")
    inputs, found = texts(8), {}
    for kind in kinds:
        with encoder_of(tiny_checkpoints.shared(hidden_act=kind, seed=5)) as encoder:
            found[kind] = encoder.logits(encoder.encode(inputs))
    tanh = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
    for one in kinds:
        for other in kinds:
            apart = np.abs(found[one] - found[other]).max() / np.abs(found[one]).max()
            same = one == other or (one in tanh and other in tanh)
            assert apart <= RELATIVE if same else apart > 3 * RELATIVE, (one, other, apart)


@pytest.mark.case(37)
@pytest.mark.parametrize("pad", [0, 1])
def test_mpnet_of_any_pad_id_and_length_equals_the_reference(pad: int) -> None:
    words = tiny_checkpoints.WORDS
    inputs: list[Any] = [" ".join(words[: n - 2]) for n in (3, 40, 300)]
    folder = tiny_checkpoints.shared("mpnet", pad_token_id=pad, max_position_embeddings=514)
    expected = tiny_checkpoints.reference_logits(folder, inputs).numpy()
    with encoder_of(folder) as encoder:
        together = encoder.logits(encoder.encode(inputs))
        alone = np.concatenate([encoder.logits(encoder.encode([one])) for one in inputs])
    for got in (together, alone):
        assert np.abs(got - expected).max() < RELATIVE * np.abs(expected).max()


# Scores.


@pytest.mark.case(45, 47)
@pytest.mark.parametrize(
    ("logits", "problem_type", "scores"),
    [
        ([2.0], None, [0.880797]),
        ([2.0], "multi_label_classification", [0.880797]),
        ([-8.3], None, [0.000248455]),
        ([2.0], "regression", [2.0]),
        ([2.0, 0.0, -1.0], "multi_label_classification", [0.880797, 0.5, 0.268941]),
        ([2.0, 0.0, -1.0], "single_label_classification", [0.843795, 0.114195, 0.04201]),
        ([2.0, 0.0, -1.0], None, [0.843795, 0.114195, 0.04201]),
        ([2.0, 0.0, -1.0], "regression", [2.0, 0.0, -1.0]),
    ],
)
def test_scores_go_through_the_function_that_the_head_was_trained_with(
    logits: list[float], problem_type: str | None, scores: list[float], tmp_path: Path
) -> None:
    with encoder_of(constant(tmp_path / "m", logits, problem_type=problem_type)) as encoder:
        (answer,) = encoder.classify(["a text"])
        (raw,) = encoder.classify(["a text"], raw_scores=True)
        assert encoder.predict_proba(["a text"])[0].tolist() == pytest.approx(scores, abs=1e-6)
    assert [one.score for one in answer] == pytest.approx(scores, abs=1e-6)
    assert [one.score for one in raw] == pytest.approx(logits, rel=1e-6)
    assert [one.label for one in answer] == [one.label for one in raw]


@pytest.mark.case(49)
def test_twenty_labels_are_probabilities_best_first() -> None:
    with encoder_of(tiny_checkpoints.shared("xlm-roberta", num_labels=20, pad_token_id=0)) as one:
        for answer in one.classify(texts(6)):
            scores = [each.score for each in answer]
            assert len({each.label for each in answer}) == 20
            assert sum(scores) == pytest.approx(1, abs=1e-5)
            assert all(0 <= score <= 1 for score in scores)
            assert scores == sorted(scores, reverse=True)


@pytest.mark.case(51)
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_pair_is_neither_its_texts_joined_nor_one_of_them(family: str) -> None:
    first, second = "the sea was cold", "the water was warm"
    folder = tiny_checkpoints.shared(family, num_labels=3)
    expected = tiny_checkpoints.reference_logits(folder, [(first, second)]).softmax(-1)[0].numpy()
    with encoder_of(folder) as encoder:
        others = encoder.predict_proba([(first, second), f"{first} {second}", first, second])
    assert np.abs(others[0] - expected).max() < 1e-5
    assert (np.abs(others[1:] - others[0]).max(axis=1) > 1e-3).all()


IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


@pytest.mark.case(53)
def test_a_rerankers_scale_is_what_it_was_saved_with_and_its_order_the_same(
    tmp_path: Path,
) -> None:
    plain = constant(tmp_path / "plain", [-8.3])
    saved = constant(tmp_path / "saved", [-8.3], sentence_transformers=IDENTITY)
    for folder, score in ((plain, 0.000248455), (saved, -8.3)):
        with encoder_of(folder) as encoder:
            (one,) = encoder.rerank("a", ["b"])
            (raw,) = encoder.rerank("a", ["b"], raw_scores=True)
        assert type(one.score) is type(raw.score) is float
        assert math.isclose(one.score, score, rel_tol=1e-5)
        assert math.isclose(raw.score, -8.3, rel_tol=1e-6)
    documents = texts(12)[1:]
    orders = []
    for number, own in enumerate(({}, {"sentence_transformers": IDENTITY})):
        folder = tiny_checkpoints.make_bert(tmp_path / str(number), num_labels=1)
        with encoder_of(edit_config(folder, **own)) as encoder:
            orders.append([one.index for one in encoder.rerank("the story", documents)])
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(11))
