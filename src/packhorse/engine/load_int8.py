"""A checkpoint in 8 bits on the CPU: measured in float32, the rest in the processor's own type."""

from __future__ import annotations

import logging
import time
from functools import partial

import torch

from packhorse.checkpoint import Checkpoint
from packhorse.engine.cpu_runner import packed_layout
from packhorse.hardware import Hardware
from packhorse.models.calibration import in_8_bits, made_up_texts
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.encoder import PackedEncoder
from packhorse.models.int8 import MOST_WEIGHT, MOST_WEIGHT_OF_16_BITS
from packhorse.models.load import load_encoder
from packhorse.request import Sequences

logger = logging.getLogger(__name__)


def load_in_8_bits(
    checkpoint: Checkpoint, hardware: Hardware, *, prepack: bool, first_token_only: bool
) -> PackedEncoder:
    """Raises CheckpointError."""
    started = time.monotonic()
    load = partial(
        load_encoder,
        checkpoint,
        device=torch.device("cpu"),
        first_token_only=first_token_only,
    )
    exact = load(CpuBackend(prepack=False), dtype=torch.float32)
    rest = torch.bfloat16 if hardware.native_bfloat16 else torch.float32
    served = load(CpuBackend(prepack=prepack), dtype=rest)
    shape = checkpoint.architecture

    def forward(model: PackedEncoder, texts: Sequences) -> None:
        model.forward(*packed_layout(texts, shape))

    model = in_8_bits(
        exact,
        served,
        made_up_texts(shape, exact.embeddings.word.shape[0]),
        forward,
        MOST_WEIGHT if hardware.native_int8 else MOST_WEIGHT_OF_16_BITS,
    )
    logger.info("dense layers in 8 bits after %.2f s", time.monotonic() - started)
    return model
