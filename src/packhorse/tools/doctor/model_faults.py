"""What is wrong with how a model is run: batches, padding, type; found in its forward passes.

Each cost is measured: the passes are run again as they were, and without the fault. Not every
model bears that (one may keep what it saw last): then the fault is named, and its cost not known.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

import torch

from packhorse.hardware import Hardware
from packhorse.tools.doctor import replay
from packhorse.tools.doctor.findings import Finding, gain
from packhorse.tools.doctor.passes import ForwardPass, is_quantized, size_of

WASTE = 0.2
"""Share of computed tokens that may be padding beyond the longest text: multiples of 8 are fine."""


def find(
    passes: Sequence[ForwardPass],
    texts: int,
    texts_per_second: float,
    hardware: Hardware,
    skipped: list[str],
) -> list[Finding]:
    """Findings of one call with ``texts`` texts. The modules are in another type afterwards.

    skipped  gets a line for each cost that could not be measured
    """
    if not passes:
        return []
    kept = [one for one in passes if one.args or one.kwargs]
    base: float | None = None

    def costs(name: str, without: Callable[[], Sequence[ForwardPass]]) -> float:
        nonlocal base
        try:
            base = replay.seconds(kept) if base is None else base
            changed = replay.seconds(without())
        except Exception as error:
            traceback.print_exc()
            skipped.append(f"the cost of {name}: {type(error).__name__} when it was run without")
            return 0.0
        saved = (base - changed) * len(passes) / len(kept) / texts
        return gain(texts_per_second, saved, max(0.0, 1 - changed / base))

    found = []
    if len(passes) > 1 and all(one.rows == 1 for one in passes):
        cost = costs("single-text-batches", lambda: replay.together(kept))
        found.append(_single(passes, texts, cost))
    if (waste := fixed_waste(passes)) >= WASTE:
        cost = costs("fixed-padding", lambda: replay.trimmed(kept))
        found.append(_padding(passes, waste, cost))
    half = faster_type(replay.device_of(kept), hardware)
    if half is not None and type_of(passes) == torch.float32:
        found.append(_float32(half, costs("fp32", lambda: replay.in_type(kept, half))))
    return found


def fixed_waste(passes: Sequence[ForwardPass]) -> float:
    """Share of all computed tokens that lie beyond the longest text of their pass.

    0 where passes differ in width: then each was padded to what it needed, or so.
    """
    known = [p for p in passes if p.width is not None and p.longest is not None]
    if not known or len({one.width for one in known}) > 1:
        return 0.0
    computed = sum(one.rows * (one.width or 0) for one in known)
    needed = sum(one.rows * (one.longest or 0) for one in known)
    return 1 - needed / computed


def type_of(passes: Sequence[ForwardPass]) -> torch.dtype:
    """In which most of the model is computed: autocast's type, else that of most parameters.

    Where dense layers have weights of 8 bits these decide, however large the embedding is.
    """
    if passes[0].autocast is not None:
        return passes[0].autocast
    if is_quantized(passes[0].module):
        return torch.qint8
    counts: dict[torch.dtype, int] = {}
    for parameter in passes[0].module.parameters():
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=lambda dtype: counts[dtype])


def faster_type(device: torch.device, hardware: Hardware) -> torch.dtype | None:
    """The half type that this chip multiplies faster than float32, if any."""
    if device.type == "cuda":
        return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None
    return torch.bfloat16 if device.type == "cpu" and hardware.native_bfloat16 else None


def _single(passes: Sequence[ForwardPass], texts: int, costs: float) -> Finding:
    return Finding(
        id="single-text-batches",
        measured=f"{len(passes)} forward passes for {texts} texts: one text a pass",
        figure=sum(one.rows for one in passes) / len(passes),
        unit="texts a forward pass",
        costs=costs,
        change=f"Tokenize and run up to {replay.BATCH} texts at a time: "
        "model(**tokenizer(texts, padding=True, truncation=True, return_tensors='pt')).",
        where=passes[0].where,
    )


def _padding(passes: Sequence[ForwardPass], waste: float, costs: float) -> Finding:
    real = sum(one.real or 0 for one in passes)
    computed = sum(one.rows * (one.width or 0) for one in passes)
    return Finding(
        id="fixed-padding",
        measured=f"{1 - real / computed:.0%} of all tokens are padding: every pass is "
        f"{passes[0].width} tokens wide, whatever its texts",
        figure=waste,
        unit="share of tokens beyond the longest text of their pass",
        costs=costs,
        change="Pad to the longest text of the batch (padding=True, not 'max_length'), and put "
        "texts of like length together.",
        where=passes[0].where,
    )


def _float32(half: torch.dtype, costs: float) -> Finding:
    name = str(half).removeprefix("torch.")
    return Finding(
        id="fp32",
        measured=f"the model is computed in float32; this chip multiplies {name} faster",
        figure=32,
        unit="bits a number",
        costs=costs,
        change=f"Load the model with dtype=torch.{name}, and check that its answers stay.",
    )


def seen(passes: Sequence[ForwardPass]) -> dict[str, object]:
    """What the passes are, for the record."""
    if not passes:
        return {"forward_passes": 0}
    computed = sum(one.rows * (one.width or 0) for one in passes)
    is_known = all(one.real is not None for one in passes)
    return {
        "forward_passes": len(passes),
        "module": type(passes[0].module).__name__,
        "parameters": size_of(passes[0].module),
        "device": str(replay.device_of(passes)),
        "dtype": str(type_of(passes)).removeprefix("torch."),
        "texts_a_pass": sum(one.rows for one in passes) / len(passes),
        "padding": 1 - sum(one.real or 0 for one in passes) / computed if is_known else None,
    }
