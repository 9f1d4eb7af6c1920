"""The model that rows go through, loaded when it is needed: that imports torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


def load(config: Config, checkpoint: Checkpoint) -> Loaded:
    """``config`` is resolved. Raises DeviceError or CheckpointError."""
    from packhorse.loaded import Loaded

    # Nobody waits for a single row: batches may take as long as they are efficient.
    engine = replace(config.engine, max_batch_time=math.inf)
    return Loaded(replace(config, engine=engine), checkpoint)
