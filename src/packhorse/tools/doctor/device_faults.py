"""What keeps a GPU waiting: copies back one by one, and kernels launched one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from packhorse.tools.doctor import replay
from packhorse.tools.doctor.cuda_trace import DeviceTrace, trace
from packhorse.tools.doctor.findings import Finding, gain
from packhorse.tools.doctor.passes import ForwardPass

MANY_COPIES = 4
"""Copies back in a call under which they are those of its results."""

IDLE = 0.4
"""Share of the forward passes' time that the GPU may be without work."""


def find(
    call: Callable[[], None], passes: Sequence[ForwardPass], texts: int, texts_per_second: float
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings of a call with ``texts`` texts, and what was seen. Needs a GPU."""
    whole = trace(call)
    seen: dict[str, Any] = {"copies_back": whole.copies_back, "launches": whole.launches}
    if not passes:
        return [], seen
    kept = [one for one in passes if one.args or one.kwargs]
    share = len(passes) / len(kept)
    found = []
    base = replay.seconds(kept)
    if whole.copies_back >= max(MANY_COPIES, 0.9 * len(passes)):
        found.append(_copies(whole, passes, kept, base * share, texts, texts_per_second))
    forward = trace(lambda: _run(kept))
    idle = 1 - forward.busy / base
    seen["idle_share_of_forward"] = idle
    if idle >= IDLE and forward.launches > 0:
        saved = (base - forward.busy) * share / texts
        launches = forward.launches / len(kept)
        found.append(_launches(idle, launches, passes, gain(texts_per_second, saved, idle)))
    return found, seen


def _run(passes: Sequence[ForwardPass]) -> None:
    for one in passes:
        replay.run(one)


def _copies(
    whole: DeviceTrace,
    passes: Sequence[ForwardPass],
    kept: Sequence[ForwardPass],
    base: float,
    texts: int,
    texts_per_second: float,
) -> Finding:
    """The cost: the same passes with as many copies back after each."""
    times = max(1, round(whole.copies_back / len(passes)))

    def copy_back(output: Any) -> None:
        tensor = _first_tensor(output)
        for _ in range(times if tensor is not None else 0):
            tensor.flatten()[0].item()  # type: ignore[union-attr]

    blocked = replay.seconds(kept, copy_back) * len(passes) / len(kept)
    return Finding(
        id="blocking-copies",
        measured=f"{whole.copies_back} copies from the GPU for {texts} texts "
        f"({len(passes)} forward passes): the CPU waits at each, then the GPU for the CPU",
        figure=whole.copies_back / texts,
        unit="copies a text",
        costs=gain(texts_per_second, (blocked - base) / texts, max(0.0, 1 - base / blocked)),
        change="Keep results on the GPU and copy them once at the end: torch.cat(results).cpu(); "
        "no .item(), .cpu() or .numpy() in the loop.",
        where=passes[0].where,
    )


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    values = output.values() if hasattr(output, "values") else output
    if not isinstance(values, (list, tuple)) and not hasattr(output, "values"):
        return None
    return next((value for value in values if isinstance(value, Tensor)), None)


def _launches(idle: float, launches: float, passes: Sequence[ForwardPass], costs: float) -> Finding:
    return Finding(
        id="launch-overhead",
        measured=f"the GPU is idle {idle:.0%} of the forward passes' time, between "
        f"{launches:,.0f} kernels a pass that Python launches one by one",
        figure=idle,
        unit="share of the time without work",
        costs=costs,
        change="Give each pass more texts, or launch it as one: torch.compile(model, "
        "mode='reduce-overhead'), or captured graphs as in packhorse.Encoder.",
        where=passes[0].where,
    )
