"""Packhorse: fast, exact inference for encoder transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packhorse.async_encoder import AsyncEncoder
    from packhorse.encoder import Encoder

__version__ = "0.1.0"
__all__ = ["AsyncEncoder", "Encoder", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the library on first use: front ends import this package and must not see torch."""
    if name == "Encoder":
        from packhorse.encoder import Encoder

        return Encoder
    if name == "AsyncEncoder":
        from packhorse.async_encoder import AsyncEncoder

        return AsyncEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
