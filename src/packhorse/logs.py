"""One place where logging is set up: lines for people or JSON for machines, on stderr.

What users send is never logged. An exception's message may quote it, so in a
process that sees texts exceptions are logged by ``describe``: kind and place,
not message.

A line about one request has its id, if it is logged with ``extra={"request_id": …}``;
``fields`` in ``extra`` are keys of their own in JSON.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback

import msgspec

from packhorse.errors import PackhorseError

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_NOISY = (
    "uvicorn",
    "uvicorn.error",
    "uvicorn.access",
    "asyncio",
    "huggingface_hub",
    "httpx",
    "urllib3",
)


def configure(level: str, process: str, json_lines: bool = False) -> None:
    """Send everything from ``level`` on to stderr; ``process`` names the sender.

    Libraries are heard from warnings on only.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(process) if json_lines else _Lines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, LEVELS[level]))


def describe(error: BaseException) -> str:
    """Kind of an error and where it was raised, without a message that may quote a user's text.

    Our own messages and the system's are kept: they quote none.
    """
    kind = type(error).__qualname__
    message = f": {error}" if isinstance(error, (PackhorseError, OSError)) else ""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames[::-1])
    return f"{kind}{message} in {places or 'no frame'}"


class _Lines(logging.Formatter):
    """2026-01-31T12:00:00.123Z INFO engine 0: loaded ..."""

    converter = staticmethod(time.gmtime)

    def __init__(self, process: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {process}: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        line = super().formatMessage(record)
        request_id = getattr(record, "request_id", None)
        return line if request_id is None else f"{line} request_id={request_id}"


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    converter = staticmethod(time.gmtime)

    def __init__(self, process: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if (request_id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
