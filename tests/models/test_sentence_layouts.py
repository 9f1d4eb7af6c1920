"""Folders as versions 2 to 6 of sentence-transformers wrote them, and what they say besides.

Against Transformers by formula, and against the real package where it is installed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.errors import CheckpointError
from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.models.test_fidelity import texts
from tests.models.test_sentence import MODES, assert_close, encoder_of, make, pooling
from tests.models.test_sparse import dense_weights, expected_weights, splade_folder
from tests.unit.test_app import rig

INPUTS = texts(12)
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
V6 = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""sentence_bert_config.json of a model that embeds, as version 6 writes it."""

V6_SCORES = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
POOLING = {"type": "Pooling", "embedding_dimension": 32, "pooling_mode": "mean"}
LAYOUTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "2": (
        [
            {"type": "Pooling", "word_embedding_dimension": 32}
            | {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in MODES[:4]},
        ],
        {"sentence_bert_config": {"max_seq_length": 20, "do_lower_case": False}},
    ),
    "3": (
        [pooling("mean_tokens") | {"include_prompt": True}],
        {
            "sentence_bert_config": {"max_seq_length": 20, "do_lower_case": False},
            "config_sentence_transformers": {
                "__version__": {"sentence_transformers": "3.0.1"},
                "prompts": {},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            },
        },
    ),
    "6": (
        [POOLING | {"include_prompt": True}],
        {
            "sentence_bert_config": V6 | {"max_seq_length": 20},
            "config_sentence_transformers": {
                "model_type": "SentenceTransformer",
                "prompts": {"query": "", "document": ""},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            },
        },
    ),
}


def real(kind: str, folder: Path) -> Any:
    """The folder in a class of the sentence-transformers package, where it is installed."""
    if find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sentence_transformers

        return getattr(sentence_transformers, kind)(str(folder), device="cpu")


def cross_encoder_folder(folder: Path, **said: Any) -> Path:
    """A cross-encoder as versions from 5.4 on write it."""
    shutil.copytree(tiny_checkpoints.shared("bert", num_labels=1), folder)
    settings = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None} | said
    limit = V6_SCORES | {"max_seq_length": 25}
    return tiny_checkpoints.add_modules(
        folder, sentence_bert_config=limit, config_sentence_transformers=settings
    )


def scores_of(folder: Path, query: str) -> np.ndarray:
    """Of ``INPUTS`` in their order, float32."""
    with encoder_of(folder) as encoder:
        assert encoder.info["max_input_length"] == 25
        ranked = {one.index: one.score for one in encoder.rerank(query, INPUTS)}
    return np.array([ranked[i] for i in range(len(INPUTS))], np.float32)


def expected_logits(folder: Path, query: str) -> np.ndarray:
    shorter = shutil.copytree(folder, folder.with_name("shorter"))
    path = shorter / "tokenizer_config.json"
    path.write_text(path.read_text().replace(str(10**30), "25"))
    pairs = [(query, text or " ") for text in INPUTS]
    return tiny_checkpoints.reference_logits(shorter, pairs).numpy()[:, 0]


@pytest.mark.parametrize("version", LAYOUTS)
@pytest.mark.case(55)
def test_the_layout_of_every_version_gives_the_same_vectors(version: str, tmp_path: Path) -> None:
    modules, files = LAYOUTS[version]
    folder = make(tmp_path / "m", modules, **files)
    with encoder_of(folder) as encoder:
        assert encoder.info["max_input_length"] == 20
        got = encoder.embed(INPUTS)
    folder_of_two = make(tmp_path / "two", [pooling("mean_tokens")], **LAYOUTS["2"][1])
    with encoder_of(folder_of_two) as encoder:
        assert np.array_equal(got, encoder.embed(INPUTS))
    assert_close(got, real("SentenceTransformer", folder).encode(INPUTS, show_progress_bar=False))


@pytest.mark.case(53)
@pytest.mark.parametrize("activation", [IDENTITY, SIGMOID])
def test_what_follows_a_logit_is_read_where_newer_versions_write_it(
    activation: str, tmp_path: Path
) -> None:
    folder = cross_encoder_folder(tmp_path / "m", activation_fn=activation)
    wanted = expected_logits(folder, "the story")
    wanted = wanted if activation == IDENTITY else 1 / (1 + np.exp(-wanted))
    assert_close(scores_of(folder, "the story"), wanted)
    pairs = [("the story", text) for text in INPUTS]
    assert_close(
        scores_of(folder, "the story"),
        real("CrossEncoder", folder).predict(pairs, show_progress_bar=False),
    )


def test_a_cross_encoders_default_prompt_goes_before_the_query(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "so much ", "other": "x"}, "default_prompt_name": "query"}
    folder = cross_encoder_folder(tmp_path / "m", activation_fn=IDENTITY, **prompts)
    assert_close(scores_of(folder, "story"), expected_logits(folder, "so much story"))

    async def tokens(of: Path) -> int:
        async with rig(of) as r:
            asked = {"query": "story", "documents": ["good film"]}
            answer = (await r.client.post("/v1/rerank", json=asked)).json()
            return int(answer["usage"]["total_tokens"])

    plain = cross_encoder_folder(tmp_path / "plain", activation_fn=IDENTITY)
    assert asyncio.run(tokens(folder)) == asyncio.run(tokens(plain)) + 2


def test_settings_of_another_kind_of_model_are_not_a_cross_encoders(tmp_path: Path) -> None:
    own = {"model_type": "SentenceTransformer", "prompts": {"a": "b"}, "default_prompt_name": "a"}
    folder = cross_encoder_folder(tmp_path / "m", activation_fn=IDENTITY, **own)
    found = load_checkpoint(folder).cross_encoder
    assert (found.activation, found.prompt, found.max_length) == ("sigmoid", "", None)


def test_vectors_are_cut_where_the_folder_says_so(tmp_path: Path) -> None:
    unit = [POOLING, {"type": "Normalize", "module_input_name": "sentence_embedding"}]
    whole, cut, least = (
        make(tmp_path / str(size), unit, config_sentence_transformers={"truncate_dim": size})
        for size in (None, 9, 100)
    )
    with encoder_of(whole) as one, encoder_of(cut) as two, encoder_of(least) as three:
        vectors, few = one.embed(INPUTS), two.embed(INPUTS)
        assert_close(few, vectors[:, :9])  # not normalized again, as there
        assert np.array_equal(three.embed(INPUTS), vectors)
        assert two.embed(INPUTS, output_type="ubinary").shape == (12, 2)
        assert_close(two.embed(INPUTS, dimensions=4), vectors[:, :4])
        assert two.embed([]).shape == (0, 9)
        units = two.embed(INPUTS, normalize=True)
        assert_close(two.similarity(INPUTS, INPUTS), units @ units.T)
    assert load_checkpoint(cut).width == 9
    assert_close(few, real("SentenceTransformer", cut).encode(INPUTS, show_progress_bar=False))


@pytest.mark.parametrize("most", [3, 10_000])
def test_a_sparse_folder_says_how_many_weights_stay(most: int, tmp_path: Path) -> None:
    folder = splade_folder(tmp_path / "m", pooling_strategy="max")
    settings = {"model_type": "SparseEncoder", "max_active_dims": most}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    expected = expected_weights(folder, INPUTS).numpy()
    for row in expected:
        row[np.argsort(-row, kind="stable")[most:]] = 0
    got = dense_weights(folder, INPUTS, task="auto")
    assert ((got != 0) == (expected != 0)).all()
    assert np.abs(got - expected).max() < 1e-5 * expected.max()
    model = real("SparseEncoder", folder)
    theirs = model.encode(INPUTS, show_progress_bar=False, convert_to_sparse_tensor=False).numpy()
    assert np.abs(got - theirs).max() < 1e-5 * expected.max()


PROCESSING = {"processing_kwargs": {"text": {"max_length": 7}}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (PROCESSING, '"processing_kwargs" is'),
        ({"query_length": 4}, '"query_length" is 4; accepted: null'),
        ({"tokenizer_args": {"model_max_length": 6}}, '"tokenizer_args" has model_max_length'),
        ({"config_kwargs": {"hidden_act": "relu"}}, '"config_kwargs" has hidden_act'),
        ({"transformer_task": "fill-mask"}, "accepted: 'feature-extraction'"),
        ({"module_output_name": "sentence_embedding"}, "accepted: 'token_embeddings'"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler"}}},
            '"modality_config" is',
        ),
        ({"modality_config": V6["modality_config"] | {"message": {}}}, "chat template"),  # type: ignore[operator]
        ({"max_seq_length": 0}, '"max_seq_length" is 0'),
    ],
)
@pytest.mark.case(55)
def test_a_setting_beside_the_transformer_that_would_change_numbers_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "m", [POOLING], sentence_bert_config=V6 | settings)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_settings_that_change_no_number_are_taken(tmp_path: Path) -> None:
    settings = {
        "model_args": {"add_pooling_layer": False, "torch_dtype": "float16"},
        "tokenizer_args": {"use_fast": True, "padding_side": "left"},
        "processing_kwargs": {"image": {"size": 3}},
        "unpad_inputs": True,
    }
    folder = make(tmp_path / "m", [POOLING], sentence_bert_config=V6 | settings)
    assert load_checkpoint(folder).task is Task.EMBED


NORMALIZE = {"type": "Normalize"}


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([NORMALIZE], "come Normalize; one Pooling must be"),
        ([NORMALIZE, POOLING], "come Normalize, Pooling; one Pooling must be"),
        ([POOLING, NORMALIZE, POOLING], "one Pooling must be"),
        (
            [POOLING, NORMALIZE | {"module_input_name": "token_embeddings"}],
            "\"module_input_name\" is 'token_embeddings'; accepted: 'sentence_embedding'",
        ),
    ],
)
def test_modules_in_another_order_or_of_other_inputs_are_refused(
    modules: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(make(tmp_path / "m", modules))


@pytest.mark.parametrize("kind", ["StaticEmbedding", "Router", "Asym", "WordEmbeddings", "BoW"])
def test_a_folder_that_begins_with_something_else_is_refused_by_its_name(
    kind: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "m", [POOLING])
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("models.Transformer", f"models.{kind}"))
    (folder / "config.json").unlink()  # such a folder has none
    with pytest.raises(CheckpointError, match=f"its modules are {kind}, Pooling; what is served"):
        load_checkpoint(folder)


def test_a_cross_encoders_folder_embeds_by_the_mean_when_asked_to(tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path / "m", prompts={"a": "b"}, default_prompt_name="a")
    states = tiny_checkpoints.reference_states(folder, INPUTS)
    with Encoder(folder, device="cpu", dtype="float32", task="embed") as encoder:
        assert_close(encoder.embed(INPUTS), np.stack([each.mean(dim=0).numpy() for each in states]))
