"""Finding the checkpoint again for a reload, in a thread: a hub may take its time."""

from __future__ import annotations

import threading

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config
from packhorse.configured import configured_checkpoint


class Reloading:
    """Under way from the start; ``checkpoint`` is the result, or why there is none."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checkpoint: Checkpoint | Exception | None = None
        threading.Thread(target=self._load, name="packhorse-reload", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether there is a result."""
        return self.checkpoint is not None

    def _load(self) -> None:
        try:
            self.checkpoint = configured_checkpoint(self._config)
        except Exception as error:  # whatever it is, the old model serves on
            self.checkpoint = error
