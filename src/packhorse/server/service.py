"""What the routes of one front end share."""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.channel.board import Board
from packhorse.checkpoint import Checkpoint
from packhorse.config import Config
from packhorse.errors import UnavailableError
from packhorse.server.admission import Admission
from packhorse.server.dispatcher import Dispatcher
from packhorse.server.engine_client import EngineClient
from packhorse.server.observations import Observations
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tracing import Tracing


@dataclass(slots=True)
class Service:
    """One front end: its model's tokenizer, its way to the engines, its slot of the board.

    draining  set when the process ends: it finishes what it has and is not ready any more
    """

    config: Config
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    dispatcher: Dispatcher
    engines: EngineClient
    admission: Admission
    observations: Observations
    board: Board
    slot: memoryview[float]
    tracing: Tracing | None = None
    draining: bool = False

    def check_ready(self) -> None:
        """Raise UnavailableError if requests cannot be answered now."""
        if self.draining:
            raise UnavailableError("the server is shutting down")
        fault = self.engines.fault
        if fault is not None:
            raise UnavailableError(fault)

    @property
    def name(self) -> str:
        """What the model is called in answers."""
        return self.config.model.served_model_name or self.checkpoint.model_id
