"""``packhorse info``: what this machine has, what a model is, and what "auto" becomes here."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from typing import Any

from packhorse import __version__
from packhorse.config import Config, as_dict, resolve, tokenizer_choice
from packhorse.hardware import Hardware, detect
from packhorse.tools.option_flags import add_model_argument, add_settings, read_settings

_LIBRARIES = ("torch", "triton", "nanotoken", "gigatoken", "tokenizers", "numpy", "pyarrow")

_TELLING_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "sve",
)
"""Processor features that decide how fast a model runs, as /proc/cpuinfo spells them."""

_SHOWN_LABELS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, the form of the output, and the settings of model and engine."""
    add_model_argument(parser)
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    add_settings(parser, ("model", "engine"))


def run(arguments: argparse.Namespace) -> int:
    """Print machine, model and settings.

    Raises SetupError for a model that cannot be served or a device that is not there.
    """
    settings, hardware = read_settings(arguments), detect()
    resolved = resolve(settings, hardware)
    machine, model = describe_machine(hardware), describe_model(settings)
    if arguments.json:
        about = {"machine": machine, "model": model, "settings": as_dict(resolved)}
        print(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        print(_machine_text(machine), _model_text(model), _settings_text(resolved), sep="\n\n")
    return 0


def describe_machine(hardware: Hardware) -> dict[str, Any]:
    """Cores, GPUs and the versions of the libraries that are installed; none is imported."""
    return {
        "packhorse": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": hardware.cpus,
        "cpu_features": sorted(hardware.cpu_features),
        "gpus": [
            {"name": gpu.name, "capability": "{}.{}".format(*gpu.capability)}
            for gpu in hardware.gpus
        ],
        "gpu_fault": hardware.gpu_fault,
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def describe_model(config: Config) -> dict[str, Any]:
    """Shape, labels, limits, tokenizer and files of the model that the settings name."""
    from packhorse.configured import configured_checkpoint
    from packhorse.tokenizing.tokenizer import Tokenizer

    checkpoint = configured_checkpoint(config)
    shape = checkpoint.architecture
    tokenizer = Tokenizer.load(checkpoint, backend=tokenizer_choice(config))  # type: ignore[arg-type]
    files = sorted(path for path in checkpoint.transformer.iterdir() if path.is_file())
    return {
        "id": checkpoint.model_id,
        "revision": checkpoint.revision,
        "folder": str(checkpoint.folder),
        "family": shape.family,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "heads": shape.num_heads,
        "intermediate_size": shape.intermediate_size,
        "activation": shape.hidden_act,
        "vocab_size": shape.vocab_size,
        "stored_dtype": shape.torch_dtype,
        "task": checkpoint.task.value,
        "width": checkpoint.width,
        "poolings": list(checkpoint.sentence.poolings) if checkpoint.sentence else [],
        "problem_type": checkpoint.problem_type.value,
        "labels": list(checkpoint.labels),
        "max_input_length": checkpoint.max_length,
        "tokenizer": tokenizer.backend,
        "files": {path.name: path.stat().st_size for path in files},
    }


def _version(library: str) -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine_text(machine: Mapping[str, Any]) -> str:
    telling = [name for name in _TELLING_FEATURES if name in machine["cpu_features"]]
    gpus = [f"{gpu['name']} (compute capability {gpu['capability']})" for gpu in machine["gpus"]]
    libraries = [f"{name} {version or '-'}" for name, version in machine["libraries"].items()]
    return _table(
        {
            "packhorse": f"{machine['packhorse']}, Python {machine['python']}, {machine['system']}",
            "cpus": f"{machine['cpus']} usable ({', '.join(telling) or 'no known features'})",
            "gpus": ", ".join(gpus) or machine["gpu_fault"] or "none usable",
            "libraries": ", ".join(libraries),
        }
    )


def _model_text(model: Mapping[str, Any]) -> str:
    labels: list[str] = model["labels"]
    shown = ", ".join(labels[:_SHOWN_LABELS]) + (", …" if len(labels) > _SHOWN_LABELS else "")
    revision = f" at {model['revision']}" if model["revision"] else ""
    return _table(
        {
            "model": f"{model['id']}{revision}",
            "folder": model["folder"],
            "family": f"{model['family']}, {model['layers']} layers of {model['hidden_size']}, "
            f"{model['heads']} heads, {model['vocab_size']:,} tokens known",
            "task": model["task"],
            **(
                {"labels": f"{len(labels)}: {shown} ({model['problem_type']})"}
                if labels
                else {"vectors": f"{model['width']} numbers, {' and '.join(model['poolings'])}"}
            ),
            "limit": f"{model['max_input_length']:,} tokens",
            "tokenizer": model["tokenizer"],
            "files": f"{len(model['files'])}, {sum(model['files'].values()) / 1e6:,.1f} MB",
            **{f"  {name}": f"{size:,} bytes" for name, size in model["files"].items()},
        }
    )


def _settings_text(config: Config) -> str:
    """What "auto" became: the settings of model and engine."""
    shown = as_dict(config)
    return _table(
        {
            name: str(value)
            for section in ("model", "engine")
            for name, value in shown[section].items()
            if value is not None
        }
    )


def _table(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
