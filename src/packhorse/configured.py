"""From settings to the checkpoint that they name, for whoever starts with a ``Config``."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import AUTO, Config
from packhorse.errors import CheckpointError, ConfigError, ValidationError
from packhorse.sentence import Pooling
from packhorse.tasks import DOES, Task


def configured_checkpoint(config: Config) -> Checkpoint:
    """The model of ``config.model``, fetched if need be. Raises CheckpointError."""
    model = config.model
    checkpoint = load_checkpoint(
        model.model_id,
        revision=model.revision,
        token=model.hf_token,
        offline=model.offline,
        cache_dir=model.huggingface_hub_cache,
        task=task_of(config),
        pooling=pooling_of(config),
        allow_pickle=model.allow_pickle,
    )
    return with_default_prompt(checkpoint, config)


def with_default_prompt(checkpoint: Checkpoint, config: Config) -> Checkpoint:
    """The same with the default prompt that is asked for. Raises CheckpointError or ConfigError."""
    name, prompt = config.model.default_prompt_name, config.model.default_prompt
    if name is None and prompt is None:
        return checkpoint
    if name is not None and prompt is not None:
        raise ConfigError("--default-prompt and --default-prompt-name exclude each other")
    sentence = checkpoint.sentence
    if sentence is None:
        does = DOES[checkpoint.task]
        raise CheckpointError(f"a default prompt is for embeddings: {checkpoint.model_id} {does}")
    try:
        prompt = sentence.prompt_named(name) if prompt is None else sentence.checked_prompt(prompt)
    except ValidationError as error:
        raise CheckpointError(f"the default prompt: {error}") from None
    return replace(checkpoint, sentence=replace(sentence, default_prompt=prompt))


def task_of(config: Config) -> Task | None:
    """The task that is asked for; None: the model's own."""
    return None if config.model.task == AUTO else Task(config.model.task)


def pooling_of(config: Config) -> Pooling | None:
    """The pooling that is asked for; None: the model's own."""
    name = "last" if config.model.pooling == "last-token" else config.model.pooling
    return None if name == AUTO else cast(Pooling, name)
