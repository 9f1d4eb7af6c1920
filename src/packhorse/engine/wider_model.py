"""The same model in a type of wider range, loaded by a thread when it is first needed.

Loading takes seconds, in which the engine goes on with what needs no wider type.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Model = TypeVar("Model")

logger = logging.getLogger(__name__)

LOADING_SECONDS = 0.05
"""While a sequence waits for the model, a loop around the engine sleeps for no longer."""


class WiderModel(Generic[Model]):
    """For one thread, which asks ``is_ready`` until it says yes.

    load  makes the model ready for use; called once, in a thread of its own
    """

    def __init__(self, load: Callable[[], Model]) -> None:
        self._load = load
        self._loaded: Future[Model] = Future()
        self._thread: threading.Thread | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be loaded, which is not tried again."""
        return self._loaded.done() and self._loaded.exception() is not None

    def is_ready(self) -> bool:
        """Whether ``model`` returns at once; the first call starts to load it.

        Raises whatever ``load`` raised.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="packhorse-wider", daemon=True)
            self._thread.start()
        if not self._loaded.done():
            return False
        self._loaded.result()
        return True

    def model(self) -> Model:
        """Wait for it. Raises whatever ``load`` raised."""
        self.is_ready()
        return self._loaded.result()

    def close(self) -> None:
        """Wait for what was begun."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            model = self._load()
        except BaseException as error:  # whoever waits for the model must hear of it
            self._loaded.set_exception(error)
            return
        logger.warning(
            "a sequence overflowed: loaded the model in a wider type in %.1f s for such ones",
            time.monotonic() - started,
        )
        self._loaded.set_result(model)
