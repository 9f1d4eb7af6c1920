"""Weights in PyTorch's own format, which is pickle: read only where it is allowed, tensors only."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from packhorse.errors import CheckpointError

PICKLED = ".bin"

PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""A single file, and the index of shards, as Transformers names them."""


def unpickled(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by its name; mapped into memory, but for files from before 2020.

    ``weights_only`` makes the reader refuse whatever is no tensor, so no code
    of the file runs.

    Raises CheckpointError when it is broken, or holds anything else.
    """
    try:
        tensors = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:  # UnpicklingError, RuntimeError, EOFError, OSError, ...
        said = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{path} cannot be read as tensors alone, is it complete and a state dict? ({said})"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} must hold tensors by their names, and nothing else")
    return tensors
