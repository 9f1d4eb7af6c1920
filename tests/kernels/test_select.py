from __future__ import annotations

import inspect
import logging
from dataclasses import fields

import pytest
import torch

from packhorse import kernels
from packhorse.kernels import reference

OPERATIONS = [f.name for f in fields(kernels.Ops) if f.name not in ("name", "reason")]


def test_a_cpu_runs_the_twins_and_says_why(caplog):
    with caplog.at_level(logging.INFO):
        ops = kernels.select("cpu")
    assert ops.name == "reference"
    assert ops.expand is reference.expand
    assert "no Triton on cpu" in caplog.text


@pytest.mark.parametrize(
    ("capability", "fused", "name"),
    [((7, 5), True, "reference"), ((8, 0), True, "triton"), ((12, 0), True, "triton"),
     ((9, 0), False, "reference")],
)  # fmt: skip
def test_a_gpu_runs_what_it_can(capability, fused, name, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert kernels.select("cuda", fused).name == name


def test_without_triton_the_twins_run(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    ops = kernels.select("cuda")
    assert (ops.name, ops.reason) == ("reference", "triton is not installed")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernel_and_twin_have_one_signature(operation):
    fused = getattr(kernels._triton(""), operation)
    twin = getattr(kernels._reference(""), operation)
    assert fused.__name__ == twin.__name__ == operation
    assert inspect.signature(fused) == inspect.signature(twin)
