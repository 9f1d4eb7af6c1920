"""The head of a sentence-transformers folder: its pooling, and the weights of the modules after."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.errors import CheckpointError
from packhorse.models.heads import Head, HeadLayer, HeadNorm, HeadStep, Normalize, Truncate
from packhorse.models.pickled import PICKLED_FILES, unpickled
from packhorse.models.weights import SINGLE_FILE
from packhorse.sentence import DenseModule, Module, NormModule, SentenceModules, TruncateModule

Shapes = dict[str, tuple[int, ...]]

EPS = 1e-5
"""Of torch.nn.LayerNorm, which the LayerNorm module is."""


def sentence_head(checkpoint: Checkpoint, sentence: SentenceModules, device: torch.device) -> Head:
    """Pooling, Dense, LayerNorm, Normalize and truncation in float32.

    Raises CheckpointError for weights that are missing or do not fit.
    """
    steps = tuple(_step(checkpoint, module, device) for module in sentence.modules)
    return Head(sentence.poolings, steps, sentence.width)


def _step(checkpoint: Checkpoint, module: Module, device: torch.device) -> HeadStep:
    if isinstance(module, DenseModule):
        shapes: Shapes = {"linear.weight": (module.out_features, module.in_features)}
        if module.bias:
            shapes["linear.bias"] = (module.out_features,)
        weights = _weights(checkpoint, module.folder, shapes, device)
        bias = weights.get("linear.bias", torch.zeros(module.out_features, device=device))
        return HeadLayer(weights["linear.weight"], bias, module.activation)
    if isinstance(module, NormModule):
        shape = (module.width,)
        shapes = {"norm.weight": shape, "norm.bias": shape}
        norm = _weights(checkpoint, module.folder, shapes, device)
        return HeadNorm(norm["norm.weight"], norm["norm.bias"], EPS)
    return Truncate(module.width) if isinstance(module, TruncateModule) else Normalize()


def _weights(
    checkpoint: Checkpoint, module: str, shapes: Shapes, device: torch.device
) -> dict[str, Tensor]:
    path = checkpoint.folder / module / SINGLE_FILE
    pickled = path.with_name(PICKLED_FILES[0])
    if not path.is_file() and checkpoint.allow_pickle and pickled.is_file():
        path, tensors = pickled, unpickled(pickled)
    else:
        tensors = _safe_tensors(path)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != shapes:
        raise CheckpointError(f"{path} holds {found}, and its config.json means {shapes}")
    return {  # copies, as in ``load``
        name: tensor.to(device, torch.float32, copy=True).contiguous()
        for name, tensor in tensors.items()
    }


def _safe_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; where there is a {PICKLED_FILES[0]}, which is pickle, give "
            "--allow-pickle (allow_pickle=True) to have its tensors read, and nothing else of it"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
