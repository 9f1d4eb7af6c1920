"""A checkpoint as an ONNX file, written so that ONNX Runtime's optimizer fuses all of it.

The optimizer knows attention by its shape in the graph: scores divided by a
number, a mask made by ``(1 - mask) * lowest``, a reshape to a fixed number of
heads. Transformers exports none of these, so they are put in its place. The
exporter is the one that traces: the one that is given to `torch.export` leads
to graphs whose attention is left unfused.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from transformers import AttentionInterface, AutoModelForSequenceClassification

_ATTENTION = "packhorse_bench_export"
_INPUTS = ("input_ids", "attention_mask")
_OPSET = 17


class _Masked(torch.nn.Module):
    """A classifier that makes its mask in the way that is recognised."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(torch.float32).min
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * lowest
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=mask).logits
        return logits


def exported(folder: Path, scratch: Path) -> Path:
    """The ONNX file of a checkpoint, float32; written once in a scratch folder.

    Inputs are input_ids and attention_mask, int64 (n, width); the output logits (n, labels).
    """
    path = scratch / "exported.onnx"
    if not path.exists():
        AttentionInterface.register(_ATTENTION, _attention)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=_ATTENTION
        ).eval()
        _export(_Masked(model).eval(), path)
        _fix_heads(path, model.config.num_attention_heads)
    return path


def optimized(folder: Path, scratch: Path) -> tuple[Path, str]:
    """The file with everything fused that ONNX Runtime's optimizer fuses, and how often it did."""
    from onnxruntime.transformers.optimizer import optimize_model

    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    path = scratch / "optimized.onnx"
    model = optimize_model(
        str(exported(folder, scratch)),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        opt_level=0,
    )
    model.save_model_to_file(str(path))
    fused = model.get_fused_operator_statistics()
    return path, "fused " + ", ".join(f"{n} {name}" for name, n in fused.items() if n)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over (n, heads, width, head size), spelled as the optimizer knows it."""
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores + attention_mask, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def _export(model: torch.nn.Module, path: Path) -> None:
    # Two tensors that are one object would become one input, without a word.
    ids, mask = (torch.ones(2, 7, dtype=torch.int64) for _ in _INPUTS)
    mask[1, 5:] = 0
    both = {0: "texts", 1: "width"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is the older one
        torch.onnx.export(
            model,
            (ids, mask),
            str(path),
            input_names=list(_INPUTS),
            output_names=["logits"],
            dynamic_axes={**dict.fromkeys(_INPUTS, both), "logits": {0: "texts"}},
            opset_version=_OPSET,
            dynamo=False,
        )


def _fix_heads(path: Path, heads: int) -> None:
    """Reshapes to (n, width, -1, head size) get the number of heads in place of -1."""
    model = onnx.load(str(path))
    name = "number_of_heads"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([heads]), name))
    for node in model.graph.node:
        if node.op_type == "Concat" and len(node.input) == 4:
            node.input[2] = name
    onnx.save(model, str(path))
