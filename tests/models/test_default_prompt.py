"""A default prompt that is asked for when the model is loaded, and not in its folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packhorse.encoder
from packhorse.config import load_config
from packhorse.configured import configured_checkpoint
from packhorse.errors import CheckpointError, ConfigError
from packhorse.launch import Launch
from tests import tiny_checkpoints
from tests.models.test_sentence import encoder_of, make, pooling
from tests.unit.test_app import rig

OWN = {"prompts": {"query": "find this: ", "passage": "this: "}, "default_prompt_name": "passage"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "m"
    return make(path, [pooling("mean_tokens")], config_sentence_transformers=OWN)


def sentence_with(folder: Path, **asked: str) -> Any:
    config = load_config({"model_id": str(folder), **asked})
    return configured_checkpoint(config).sentence


def test_it_goes_before_a_text_where_a_request_names_none(folder: Path) -> None:
    assert sentence_with(folder).prompt_named(None) == "this: "
    named = sentence_with(folder, default_prompt_name="query")
    assert named.prompt_named(None) == "find this: "
    assert named.prompt_named("passage") == "this: "
    own = sentence_with(folder, default_prompt="search: ")
    assert own.prompt_named(None) == "search: "
    assert own.prompt_named("query") == "find this: "
    assert sentence_with(folder, default_prompt="").prompt_named(None) == ""


def test_a_servers_processes_have_it_too(folder: Path) -> None:
    config = load_config({"model_id": str(folder), "default_prompt": "search: "})
    launch = Launch(0, 0, config, "m", str(folder), None, -1, 1, 0, -1, -1, [])
    sentence = launch.checkpoint().sentence
    assert sentence is not None
    assert sentence.prompt_named(None) == "search: "


def test_it_is_embedded_with_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config({"model_id": str(folder), "default_prompt": "search: "})
    with encoder_of(folder) as encoder:
        plain, wanted = (encoder.embed(["a story"], prompt=text) for text in ("", "search: "))
    monkeypatch.setattr(packhorse.encoder, "load_checkpoint", lambda *_, **__: checkpoint)
    checkpoint = configured_checkpoint(config)
    with encoder_of(folder) as encoder:
        assert np.array_equal(encoder.embed(["a story"]), wanted)
        assert not np.array_equal(wanted, plain)


def test_the_server_counts_its_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tokens(**asked: str) -> int:
        checkpoint = configured_checkpoint(load_config({"model_id": str(folder), **asked}))
        monkeypatch.setattr("tests.unit.test_app.load_checkpoint", lambda *_, **__: checkpoint)
        async with rig(folder) as r:
            answer = await r.client.post("/embed", json={"inputs": "story"})
            assert answer.status_code == 200, answer.text
            return int(answer.headers["x-compute-tokens"])

    assert (
        asyncio.run(tokens(default_prompt="story story "))
        == asyncio.run(tokens(default_prompt="")) + 2
    )


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"default_prompt_name": "other"}, CheckpointError, "no prompt 'other'.*passage, query"),
        ({"default_prompt_name": "query", "default_prompt": "a"}, ConfigError, "exclude each"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    asked: dict[str, str], error: type[Exception], said: str, folder: Path
) -> None:
    with pytest.raises(error, match=said):
        sentence_with(folder, **asked)


def test_it_is_for_models_that_embed() -> None:
    with pytest.raises(CheckpointError, match="is for embeddings"):
        sentence_with(tiny_checkpoints.shared(num_labels=2), default_prompt="a")


def test_a_prompt_that_versions_read_differently_is_refused(tmp_path: Path) -> None:
    left_out = pooling("cls_token") | {"include_prompt": False}
    with pytest.raises(CheckpointError, match="include_prompt"):
        sentence_with(make(tmp_path / "m", [left_out]), default_prompt="a")
