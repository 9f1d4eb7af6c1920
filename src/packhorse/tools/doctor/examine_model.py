"""Examine machine and model as ``packhorse serve`` would use them with these settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, resolve
from packhorse.configured import configured_checkpoint
from packhorse.hardware import Hardware, detect
from packhorse.tools.bench import machine_load
from packhorse.tools.doctor import device_memory, machine_facts, memory_growth, memory_nodes
from packhorse.tools.doctor.findings import Examination, Finding
from packhorse.tools.doctor.gpu_facts import gpu_facts
from packhorse.tools.doctor.host_faults import tokenizer as tokenizer_fault
from packhorse.tools.doctor.model_faults import faster_type
from packhorse.tools.doctor.model_program import ModelProgram, describe
from packhorse.tools.doctor.sample_texts import spread

ON_GPU = 16
"""Times that the texts are repeated on a GPU, so that there are whole batches."""


FEW = 4
"""Texts in the calls of which there are many."""


def examine_model(config: Config, texts: Sequence[str], seconds: float) -> Examination:
    """Everything that can be seen of this machine and model.

    ``seconds`` are those of one round: a slower model is given fewer texts.
    Raises ConfigError, CheckpointError or DeviceError.
    """
    hardware = detect()
    config = resolve(config, hardware)
    checkpoint = configured_checkpoint(config)
    device = torch.device(config.model.device)
    on_gpu = device.type == "cuda"
    threads = 1 if on_gpu else int(config.engine.threads)
    program = ModelProgram(config, checkpoint)
    try:
        chosen = _chosen(program, list(texts) * (ON_GPU if on_gpu else 1), seconds)
        load, quota = machine_load.read(), machine_facts.quota()
        used = _cpu_seconds()
        tokenizing, computing = program.seconds(chosen)
        ours = _cpu_seconds() - used
        others = machine_load.between(load, machine_load.read(), ours)
        rate = len(chosen) / (tokenizing + computing)
        sequences = program.tokenizer.encode(chosen)
        seen: dict[str, Any] = describe(program, sequences) | {
            "cores": hardware.cpus,
            "tokenizing_texts_per_second": len(chosen) / tokenizing,
            "computing_texts_per_second": len(chosen) / computing,
        }
        found = [
            machine_facts.throttling(quota, machine_facts.quota(), hardware.cpus, rate),
            machine_facts.busy(others, threads, hardware.cpus, rate),
            tokenizer_fault(tokenizing / (tokenizing + computing), rate),
            memory_growth.find(partial(program, spread(chosen, FEW))),
        ]
        if on_gpu:
            few = partial(program, spread(chosen, FEW))
            in_pieces, figures = device_memory.examine(few, FEW, rate, device)
            found.append(in_pieces)
            seen |= figures
            seen |= gpu_facts(device) | {"bucket_padding": program.bucket_padding(sequences)}
    finally:
        program.close()
    against = _Comparison(config, checkpoint, chosen, rate)
    found += [_threads(config, hardware, against), _type(config, hardware, against)]
    if not on_gpu:  # a GPU's engine computes nothing on these cores
        found.append(memory_nodes.numa(memory_nodes.own_nodes(), rate, against.rate_on))
    return Examination(
        checkpoint.model_id, len(chosen), rate, seen, [each for each in found if each is not None]
    )


class _Comparison:
    """The same texts with another setting: what the present one costs."""

    def __init__(
        self, config: Config, checkpoint: Checkpoint, texts: list[str], rate: float
    ) -> None:
        self._config, self._checkpoint, self._texts, self._rate = config, checkpoint, texts, rate

    def costs(self, change: Callable[[Config], Config]) -> float:
        """Texts/s that the change brings; 0 if none."""
        return max(0.0, self._rate_with(change(self._config)) - self._rate)

    def rate_on(self, cores: set[int]) -> float:
        """Texts/s with a thread for each of these cores and none elsewhere."""
        engine = replace(self._config.engine, threads=len(cores))
        with memory_nodes.held_to(cores):
            return self._rate_with(replace(self._config, engine=engine))

    def _rate_with(self, config: Config) -> float:
        other = ModelProgram(config, self._checkpoint)
        try:
            return len(self._texts) / sum(other.seconds(self._texts))
        finally:
            other.close()


def _threads(config: Config, hardware: Hardware, against: _Comparison) -> Finding | None:
    """More threads than cores; on a CPU alone, since a GPU's engine computes with none."""
    threads, cores = int(config.engine.threads), hardware.cpus
    if config.model.device != "cpu" or threads <= cores:
        return None
    return Finding(
        id="threads",
        measured=f"--threads {threads} on {cores} usable cores",
        figure=threads / cores,
        unit="threads a core",
        costs=against.costs(lambda c: replace(c, engine=replace(c.engine, threads=cores))),
        change="Leave --threads at auto: it is the container's quota.",
    )


def _type(config: Config, hardware: Hardware, against: _Comparison) -> Finding | None:
    half = faster_type(torch.device(config.model.device), hardware)
    if half is None or config.model.dtype != "float32":
        return None
    name = str(half).removeprefix("torch.")
    return Finding(
        id="fp32",
        measured=f"--dtype float32; this chip multiplies {name} faster",
        figure=32,
        unit="bits a number",
        costs=against.costs(lambda c: replace(c, model=replace(c.model, dtype=name))),
        change=f"Leave --dtype at auto, or take {name}; packhorse bench fidelity says how far "
        "logits move.",
    )


def _chosen(program: ModelProgram, texts: list[str], seconds: float) -> list[str]:
    few = spread(texts, 8)
    program(few)
    each = sum(program.seconds(few)) / len(few)
    return spread(texts, max(8, int(seconds / each)))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
