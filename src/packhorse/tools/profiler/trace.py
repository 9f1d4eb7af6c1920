"""A trace of one forward pass for Perfetto (https://ui.perfetto.dev), from torch's profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from packhorse.tools.profiler.subject import Subject


def write_trace(subject: Subject, file: Path) -> None:
    """In Chrome's JSON: our operations, those of PyTorch below them, and kernels of a GPU."""
    activities = [ProfilerActivity.CPU]
    if subject.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        subject.calls()
    profiler.export_chrome_trace(str(file))
