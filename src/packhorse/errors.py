"""Every error Packhorse raises on purpose, and the one place that maps it to a status.

    PackhorseError
    ├── RequestError                 the caller's fault: sending it again will not help
    │   ├── MalformedRequestError        400   the body cannot be read
    │   ├── EmptyRequestError            400   nothing to do: an empty batch
    │   ├── UnauthorizedError            401   no API key, or not one of ours
    │   ├── ForbiddenOriginError         403   a web page of another origin asks if it may ask
    │   ├── PayloadTooLargeError         413   the body is over --payload-limit
    │   ├── UnsupportedMediaTypeError    415   the body is not JSON
    │   ├── ValidationError              422   readable, but not allowed
    │   ├── TokenizationError            422   a text that cannot be tokenised
    │   ├── QuarantinedError             422   an input that crashed the engine twice
    │   └── TaskError                    424   not what the loaded model does
    ├── NotNowError                  send it again later
    │   ├── OverloadedError              429   the queue is full
    │   ├── UnavailableError             503   no engine is ready, or it died with the request
    │   ├── TooManyConnectionsError      503   this connection is over --max-connections
    │   └── DeadlineExceededError        504   the deadline passed before the answer
    ├── EngineError                  ours
    │   ├── InternalError                500   a bug or a device fault
    │   └── NonFiniteOutputError         500   the model gave NaN or infinity for this sequence
    └── SetupError                   found before serving: the process exits non-zero
        ├── ConfigError                        a flag, variable or file value is wrong
        ├── CheckpointError                    the model folder is incomplete or does not fit
        └── DeviceError                        the device asked for is not usable

Only the leaves with a status cross the channel, as the one byte ``code``.
``error_type`` is the word text-embeddings-inference uses for the same fault.
"""

from __future__ import annotations

from typing import ClassVar


class PackhorseError(Exception):
    """Base class. ``str(error)`` says what was wrong and what to do about it."""


class ServedError(PackhorseError):
    """An error that a client can be answered with."""

    status: ClassVar[int]
    error_type: ClassVar[str]
    code: ClassVar[int]


class RequestError(ServedError):
    """The caller's fault: sending the same request again will not help."""


class MalformedRequestError(RequestError):
    """The body cannot be read: broken JSON, wrong encoding, wrong shape of document."""

    status, error_type, code = 400, "Validation", 1


class EmptyRequestError(RequestError):
    """There is nothing to do: an empty list of inputs."""

    status, error_type, code = 400, "Empty", 2


class PayloadTooLargeError(RequestError):
    """The body is larger than the server's limit."""

    status, error_type, code = 413, "Validation", 3


class UnsupportedMediaTypeError(RequestError):
    """The body is declared to be something else than JSON."""

    status, error_type, code = 415, "Validation", 4


class ValidationError(RequestError):
    """The request can be read but asks for something that is not allowed."""

    status, error_type, code = 422, "Validation", 5


class TokenizationError(RequestError):
    """A text cannot be tokenised, or its ids do not fit the model."""

    status, error_type, code = 422, "Tokenizer", 6


class UnauthorizedError(RequestError):
    """There is no API key with the request, or not one that is let in."""

    status, error_type, code = 401, "Unauthorized", 7


class ForbiddenOriginError(RequestError):
    """A web page of an origin that is not allowed asks whether it may send a request."""

    status, error_type, code = 403, "Validation", 8


class QuarantinedError(RequestError):
    """An engine crashed twice with this input on its device, the second time with nothing else."""

    status, error_type, code = 422, "Backend", 10


class TaskError(RequestError):
    """The model that is loaded does something else."""

    status, error_type, code = 424, "Backend", 9


class NotNowError(ServedError):
    """The request is fine; the server cannot answer it at present.

    ``retry_after`` is in seconds: how long the caller should wait.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(NotNowError):
    """The queue is full."""

    status, error_type, code = 429, "Overloaded", 16


class UnavailableError(NotNowError):
    """No engine is ready, or the engine died while it held the request."""

    status, error_type, code = 503, "Unhealthy", 17


class DeadlineExceededError(NotNowError):
    """The deadline passed before the answer was there."""

    status, error_type, code = 504, "Overloaded", 18


class TooManyConnectionsError(NotNowError):
    """The connection is one more than there may be."""

    status, error_type, code = 503, "Overloaded", 24


class EngineError(ServedError):
    """Ours: the request was fine and the server failed it."""


class InternalError(EngineError):
    """A bug, or a fault of the device, while this request was computed."""

    status, error_type, code = 500, "Backend", 32


class NonFiniteOutputError(EngineError):
    """The model gave NaN or infinity for this sequence, also in the widest type tried."""

    status, error_type, code = 500, "Backend", 33


class SetupError(PackhorseError):
    """Found before serving; the process prints it and exits non-zero."""


class ConfigError(SetupError):
    """A flag, an environment variable or a value in the config file is wrong."""


class CheckpointError(SetupError):
    """The model folder is incomplete, or its parts do not fit each other."""


class DeviceError(SetupError):
    """The device or data type asked for is not usable on this machine."""


def _leaves(base: type[ServedError]) -> list[type[ServedError]]:
    below = [leaf for child in base.__subclasses__() for leaf in _leaves(child)]
    return below or [base]


SERVED_ERRORS: dict[int, type[ServedError]] = {leaf.code: leaf for leaf in _leaves(ServedError)}
"""From the byte that crosses the channel to the class. 0 means success and is not in it."""
