"""From settings to the checkpoint that they name, for whoever starts with a ``Config``."""

from __future__ import annotations

from typing import cast

from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import AUTO, Config
from packhorse.sentence import Pooling
from packhorse.tasks import Task


def configured_checkpoint(config: Config) -> Checkpoint:
    """The model of ``config.model``, fetched if need be. Raises CheckpointError."""
    model = config.model
    return load_checkpoint(
        model.model_id,
        revision=model.revision,
        token=model.hf_token,
        offline=model.offline,
        cache_dir=model.huggingface_hub_cache,
        task=task_of(config),
        pooling=pooling_of(config),
        allow_pickle=model.allow_pickle,
    )


def task_of(config: Config) -> Task | None:
    """The task that is asked for; None: the model's own."""
    return None if config.model.task == AUTO else Task(config.model.task)


def pooling_of(config: Config) -> Pooling | None:
    """The pooling that is asked for; None: the model's own."""
    name = "last" if config.model.pooling == "last-token" else config.model.pooling
    return None if name == AUTO else cast(Pooling, name)
