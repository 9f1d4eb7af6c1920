"""A model of Transformers' own, run padded: for families that have no packed path.

The forward pass is Transformers'; around it the packed row is laid out in blocks of sequences of
about one length, and its results become packed rows again. Slower than a packed path: padding is
computed, and so are all rows of the last layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.errors import CheckpointError
from packhorse.models.backend import Layout
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.heads import Head
from packhorse.models.sentence_head import sentence_head
from packhorse.models.weights import some
from packhorse.tasks import Task

CLASSES = {
    Task.CLASSIFY: "AutoModelForSequenceClassification",
    Task.RERANK: "AutoModelForSequenceClassification",
    Task.TOKEN_CLASSIFY: "AutoModelForTokenClassification",
    Task.EMBED: "AutoModel",
}
"""Which of Transformers' classes loads a model for a task."""

MOST_PADDING = 1.25
"""A block has at most this many times its sequences' tokens."""


class FallbackEncoder:
    """What a ``CpuRunner`` asks of a model, whatever the device.

    model   Transformers' own, on its device
    head    pooling and further modules where texts are embedded; else what the width is
    embeds  whether hidden states are read, and not logits
    """

    def __init__(self, model: Any, head: Head, *, embeds: bool, pad_token_id: int) -> None:
        self.head = head
        self._model = model
        self._embeds = embeds
        self._pad_token_id = pad_token_id
        accepted = inspect.signature(model.forward).parameters
        # Without a mask (FNet) a text would see the padding of its neighbours.
        self._pads = "attention_mask" in accepted
        self._has_segments = "token_type_ids" in accepted
        # Some of Transformers' classifiers refuse several texts where no token is for padding.
        self._alone = getattr(model.config, "pad_token_id", None) is None

    def forward(self, input_ids: Tensor, layout: Layout, *, token_level: bool = False) -> Tensor:
        """float32 on the CPU: (N, width), or a row for each token at the token level.

        The sequences of the layout are sorted by length. ``token_level``: the last hidden states.
        """
        bounds = layout.cu_seqlens.tolist()
        per_token = self._embeds or self.head.is_token_level
        rows = torch.cat(
            [
                self._block(input_ids, layout, bounds[first : last + 1], per_token)
                for first, last in self._blocks(bounds)
            ]
        )
        if self._embeds and not token_level:
            backend = CpuBackend()
            if self.head.reads_first_token:
                rows = backend.first_tokens(rows, layout)
            rows = self.head.output(rows, layout, backend)
        return rows.float().cpu()

    def _blocks(self, bounds: list[int]) -> Iterator[tuple[int, int]]:
        """From the first to before the last sequence of each block."""
        first = 0
        for i in range(1, len(bounds)):
            if i + 1 == len(bounds) or not self._fits(bounds, first, i + 1):
                yield first, i
                first = i

    def _fits(self, bounds: list[int], first: int, last: int) -> bool:
        """Whether these sequences may be a block; the last of them is the longest."""
        tokens, longest = bounds[last] - bounds[first], bounds[last] - bounds[last - 1]
        area = (last - first) * longest
        return not self._alone and area <= (MOST_PADDING if self._pads else 1) * tokens

    def _block(
        self, input_ids: Tensor, layout: Layout, bounds: list[int], per_token: bool
    ) -> Tensor:
        """Rows of one block, (sequences, labels) or (tokens, …), in any type on any device."""
        own, device = slice(bounds[0], bounds[-1]), self._model.device
        lengths = torch.tensor(bounds).diff()
        mask = torch.arange(int(lengths[-1])) < lengths[:, None]
        ids = torch.full(mask.shape, self._pad_token_id)
        ids[mask] = input_ids[own].long()
        inputs = {"input_ids": ids}
        if self._pads:
            inputs["attention_mask"] = mask.long()
        if self._has_segments and layout.token_type_ids is not None:
            inputs["token_type_ids"] = torch.zeros_like(ids)
            inputs["token_type_ids"][mask] = layout.token_type_ids[own].long()
        output = self._model(**{name: each.to(device) for name, each in inputs.items()})
        values: Tensor = output.last_hidden_state if self._embeds else output.logits
        return values[mask.to(device)] if per_token else values


def load_fallback(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> FallbackEncoder:
    """The model of a checkpoint by Transformers, on the device and in this type.

    Code that comes with a model is never run. Raises CheckpointError for what Transformers cannot
    load, for weights that are missing, and for what is not served so.
    """
    import transformers  # seconds, and not installed everywhere

    task, folder = checkpoint.task, checkpoint.transformer
    if task not in CLASSES:
        raise CheckpointError(f"{folder}: task {task.value} is for families with a packed path")
    if task is Task.EMBED and checkpoint.config.get("is_encoder_decoder"):
        raise CheckpointError(f"{folder}: an encoder with a decoder does not embed texts here")
    try:
        model, report = getattr(transformers, CLASSES[task]).from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=None if checkpoint.allow_pickle else True,
            output_loading_info=True,
        )
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error
    missing = sorted(name for name in report["missing_keys"] if not _is_unread(name, task))
    if missing:
        raise CheckpointError(f"{folder}: tensors are missing: {some(missing)}")
    pad_token_id = checkpoint.architecture.pad_token_id
    return FallbackEncoder(
        model.to(device).eval(),
        _head(checkpoint, device),
        embeds=task is Task.EMBED,
        pad_token_id=pad_token_id,
    )


def _head(checkpoint: Checkpoint, device: torch.device) -> Head:
    if checkpoint.sentence is not None:
        return sentence_head(checkpoint, checkpoint.sentence, device)
    return Head(("cls",) if checkpoint.task.is_classifier else (), (), checkpoint.width)


def _is_unread(name: str, task: Task) -> bool:
    """Whether this task reads none of a tensor: a pooler, whose result is not the hidden states."""
    return "pooler." in name and not task.is_classifier
