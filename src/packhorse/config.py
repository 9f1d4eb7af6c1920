"""Every setting, in one table: it drives the parser, the environment and the docs.

A value comes from, in this order: the flag, the environment, the config file
(TOML, the same names), the default. Flags have the names of
text-embeddings-inference where it has the setting, and so have variables, next
to the one that starts with PACKHORSE_. HOSTNAME alone is not read: shells and
container runtimes set it for themselves. ``resolve`` turns every
"auto" into a value once; its result is logged and served by ``/info``.
"""

from __future__ import annotations

import logging
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from packhorse.client_values import read_keys
from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.network_options import NetworkOptions
from packhorse.option import AUTO as AUTO
from packhorse.option import (
    boolean,
    duration_or_auto,
    option,
    positive_or_auto,
)
from packhorse.server_options import ServerOptions as ServerOptions
from packhorse.tasks import Task

logger = logging.getLogger(__name__)

OPTIMISATIONS = {
    "first-token-only": "the last layer computes only what is read",
    "fused-kernels": "Triton's kernels in place of their twins in PyTorch (GPU)",
    "graphs": "captured forward passes (GPU, over fused kernels)",
    "prepacked-weights": "weights are laid out once as oneDNN reads them (CPU)",
    "streams": "threads run batches of their own, and do not share each operation (CPU)",
    "allocator": "memory that was freed is kept in the process (CPU, glibc)",
    "fast-tokenizer": "nanotoken or gigatoken in place of tokenizers",
    "overlap": "texts are tokenised and batches formed while the device works",
    "busy-polling": "idle processes look for work for a moment before they sleep (server, GPU)",
    "standby": "processes wait to take a dead one's place (server)",
    "dedup": "equal texts in flight are computed once (server)",
}
"""What can be switched off by name, so that anyone can measure what it brings."""


def _optimisations(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    for name in names:
        if name not in OPTIMISATIONS:
            raise ValueError(f"{name!r} is not one of {', '.join(OPTIMISATIONS)}")
    return names


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint, where and in which type."""

    model_id: str | None = option(
        None,
        "Hub id or folder of the model; without it the embedded demo model is served.",
        tei=True,
    )
    revision: str | None = option(None, "Branch, tag or commit of the model on the hub.", tei=True)
    hf_token: str | None = option(
        None, "Access token for the hub.", secret=True, tei=True, also=("--hf-api-token",)
    )
    offline: bool = option(False, "Never ask the hub; use what is in its cache.", boolean)
    huggingface_hub_cache: str | None = option(None, "Folder of the hub's cache.", tei=True)
    served_model_name: str | None = option(
        None, "Name of the model in answers and metrics; its id if not given.", tei=True
    )
    task: str = option(
        AUTO,
        "What the model shall do: auto, what its files say that it was made for; classify, rerank, "
        "token_classify, embed, embed_sparse or fill_mask.",
        choices=(AUTO, *Task),
    )
    pooling: str = option(
        AUTO,
        "How the hidden states of a text become its embedding: auto, as the model's folder says, "
        "else their mean; splade is for embed_sparse.",
        choices=(
            *(AUTO, "cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last", "splade"),
            "last-token",  # text-embeddings-inference's word for last
        ),
        tei=True,
    )
    default_prompt_name: str | None = option(
        None,
        "Which of the model's own prompts goes before every text to be embedded, where a request "
        "names none.",
        tei=True,
    )
    default_prompt: str | None = option(
        None, "The same, but as a text: 'query: ', for instance.", tei=True
    )
    device: str = option(
        AUTO, "Where the model runs: auto, cpu, cuda or cuda:N. auto prefers a usable GPU."
    )
    dtype: str = option(
        AUTO,
        "Type of weights and activations. auto: on a GPU the checkpoint's half type, else float16; "
        "on a CPU bfloat16 where the processor multiplies it natively, else float32. int8, on a "
        "CPU: dense layers in 8 bits, the rest as with auto.",
        choices=(AUTO, "float32", "float16", "bfloat16", "int8"),
        tei=True,
    )
    allow_pickle: bool = option(
        False,
        "Read pytorch_model.bin where a model has no safetensors: tensors only, no other objects.",
        boolean,
    )
    tokenizer: str = option(
        AUTO,
        "Which library tokenises. auto: the fast one where it gives the ids of `tokenizers`.",
        choices=(AUTO, "nanotoken", "gigatoken", "tokenizers"),
    )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How batches are formed and run."""

    max_batch_tokens: int | str = option(
        AUTO, "Most tokens in one batch.", positive_or_auto, tei=True
    )
    max_batch_requests: int | str = option(
        AUTO, "Most sequences in one batch.", positive_or_auto, tei=True
    )
    max_batch_time: float | str = option(
        AUTO,
        "Longest predicted time of one batch, in ms. auto: 6 on a GPU; on a CPU 50, and up to 800 "
        "where 50 would be little beside what a batch of any size takes.",
        duration_or_auto,
        in_code=(math.inf,),  # no bound
    )
    threads: int | str = option(
        AUTO, "Threads of the CPU engine. auto: the container's quota of cores.", positive_or_auto
    )
    standby: bool = option(
        True,
        "Keep processes with libraries imported, to replace a dead engine or front end sooner "
        "(server).",
        boolean,
    )
    without: tuple[str, ...] = option(
        (),
        "Optimisations to switch off, separated by commas or the flag repeated: "
        + "; ".join(f"{name}, {what}" for name, what in OPTIMISATIONS.items())
        + ".",
        _optimisations,
        repeatable=True,
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, composed."""

    model: ModelOptions = ModelOptions()
    engine: EngineOptions = EngineOptions()
    server: ServerOptions = field(default_factory=ServerOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)


SECTIONS: dict[str, type[Any]] = {
    "model": ModelOptions,
    "engine": EngineOptions,
    "server": ServerOptions,
    "network": NetworkOptions,
}


def options() -> list[tuple[str, Field[Any]]]:
    """Every option as (section, field), in the order of the docs."""
    return [(section, f) for section, kind in SECTIONS.items() for f in fields(kind)]


def flag_of(option_field: Field[Any]) -> str:
    """--max-batch-tokens for max_batch_tokens."""
    return "--" + option_field.name.replace("_", "-")


def variables_of(option_field: Field[Any]) -> tuple[str, ...]:
    """PACKHORSE_MAX_BATCH_TOKENS, then MAX_BATCH_TOKENS where it is TEI's name."""
    name = option_field.name.upper()
    ours = f"PACKHORSE_{name}"
    return (ours, name) if option_field.metadata["tei"] and name != "HOSTNAME" else (ours,)


def secret_variables() -> set[str]:
    """Environment variables whose values nobody but the supervisor needs to know."""
    return {name for _, f in options() if f.metadata["secret"] for name in variables_of(f)}


def is_switch(option_field: Field[Any]) -> bool:
    """Whether the value is true or false, so that the flag alone means true."""
    return option_field.metadata["parse"] is boolean


def parse_value(option_field: Field[Any], text: str, source: str) -> Any:
    """The value that ``text`` means for this option.

    Raises ConfigError naming ``source``, the value and what is accepted.
    """
    choices = option_field.metadata["choices"]
    shown = "***" if option_field.metadata["secret"] else repr(text)
    if choices and text not in choices:
        raise ConfigError(f"{source}: {shown} is not one of {', '.join(choices)}")
    try:
        return option_field.metadata["parse"](text)
    except ValueError as error:
        raise ConfigError(f"{source}: {shown} is not valid: {error}") from None


def load_config(
    flags: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Config from flags (by field name, as text), the environment and a TOML file.

    Raises ConfigError for an unknown name or a value that is not accepted.
    """
    chosen: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, f, source, text in _given(flags, environment, file):
        chosen[section][f.name] = parse_value(f, text, source)
    return Config(**{section: kind(**chosen[section]) for section, kind in SECTIONS.items()})


def values_given(
    flags: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> dict[str, str]:
    """What flags, environment and file say, by field name, as text: all but the defaults.

    Raises ConfigError for an unknown name in the file.
    """
    return {f.name: text for _, f, _, text in _given(flags, environment, file)}


def _given(
    flags: Mapping[str, str], environment: Mapping[str, str] | None, file: Path | None
) -> Iterator[tuple[str, Field[Any], str, str]]:
    """Section, field, source and text of every option that is given: the first source counts."""
    environment = os.environ if environment is None else environment
    in_file = {} if file is None else _read_file(file)
    for section, f in options():
        for source, text in (
            (flag_of(f), flags.get(f.name)),
            *((f"environment variable {v}", _in(environment, v)) for v in variables_of(f)),
            (f"{file}: {f.name}", in_file.get(f.name)),
        ):
            if text is not None:
                yield section, f, source, text
                break


def _in(environment: Mapping[str, str], variable: str) -> str | None:
    """What the variable says, without blanks around it: secrets from files end with a newline."""
    text = environment.get(variable, "").strip()
    # Kubernetes puts the address of a service called packhorse there, for all its pods.
    if variable == "PACKHORSE_PORT" and text.startswith(("tcp://", "udp://", "sctp://")):
        logger.warning("%s is %s, an address that Kubernetes sets: not read", variable, text)
        return None
    return text or None


def _read_file(file: Path) -> dict[str, str]:
    """The file's values by option name, as text; sections only group them."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {file}: {error}") from None
    known = {f.name: section for section, f in options()}
    lists = {f.name for _, f in options() if f.metadata["repeatable"]}
    values: dict[str, str] = {}
    for key, value in content.items():
        group = value if isinstance(value, dict) else {key: value}
        for name, entry in group.items():
            if name not in known or (isinstance(value, dict) and known[name] != key):
                within = f" in [{key}]" if isinstance(value, dict) else ""
                raise ConfigError(f"config file {file}: {name!r}{within} is not a setting")
            if isinstance(entry, list) and name in lists:
                entry = ",".join(map(str, entry))
            if isinstance(entry, (dict, list)):
                raise ConfigError(f"config file {file}: {name!r} must be a single value")
            values[name] = str(entry).lower() if isinstance(entry, bool) else str(entry)
    return values


def as_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Every setting by section and name, secrets masked: for logs and ``/info``."""
    shown: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, f in options():
        value = getattr(getattr(config, section), f.name)
        shown[section][f.name] = "***" if f.metadata["secret"] and value else value
    return shown


def resolve(config: Config, hardware: Hardware) -> Config:
    """The same settings with every "auto" decided for this machine.

    Raises ConfigError when a GPU is asked for by name and there is none, or
    when a value set in code is not one that its flag would accept.
    """
    _check_values(config)
    device = _resolve_device(config.model.device, hardware)
    on_gpu = device.startswith("cuda")
    engine = config.engine
    return Config(
        model=replace(config.model, device=device),
        engine=replace(
            engine,
            # "auto" stands where the engine decides by what it has timed: graphs, or batches.
            max_batch_tokens=engine.max_batch_tokens
            if on_gpu
            else _or(engine.max_batch_tokens, 4096),
            max_batch_requests=_or(engine.max_batch_requests, 2048 if on_gpu else 1024),
            max_batch_time=_or(engine.max_batch_time, 6.0) if on_gpu else engine.max_batch_time,
            threads=_or(engine.threads, hardware.cpus),
        ),
        server=replace(
            config.server,
            front_ends=_or(
                config.server.front_ends,
                min(8, max(1, hardware.cpus // (2 if on_gpu else 4))),
            ),
        ),
        network=replace(config.network, api_key=_all_keys(config.network)),
    )


def _all_keys(network: NetworkOptions) -> tuple[str, ...]:
    """Those of the settings and those of the file; raises ConfigError."""
    in_file = () if network.api_key_file is None else read_keys(Path(network.api_key_file))
    return tuple(dict.fromkeys([*network.api_key, *in_file]))


def tokenizer_choice(config: Config) -> str:
    """auto, nanotoken, gigatoken or tokenizers: what was asked for, less what is switched off."""
    return "tokenizers" if "fast-tokenizer" in config.engine.without else config.model.tokenizer


def _check_values(config: Config) -> None:
    """Hold every value, as the text it would be, against its option's own check."""
    for section, f in options():
        value = getattr(getattr(config, section), f.name)
        is_not_given = value in (None, ()) and value == f.default
        if is_not_given or value in f.metadata["in_code"]:
            continue
        parsed = parse_value(f, _as_text(value), f.name)
        # Text would have become another type: "overlap" a tuple of names, "2" a number.
        if isinstance(value, str) != isinstance(parsed, str) or parsed != value:
            if f.metadata["secret"]:
                raise ConfigError(f"{f.name}: *** is not valid: expected a str")
            raise ConfigError(f"{f.name}: {value!r} is not valid: expected {parsed!r}")


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _or(value: Any, decided: Any) -> Any:
    return decided if value == AUTO else value


def _resolve_device(device: str, hardware: Hardware) -> str:
    if device == AUTO:
        if not hardware.gpus and hardware.gpu_fault:
            logger.warning("--device auto takes the CPU: %s", hardware.gpu_fault)
        return "cuda:0" if hardware.gpus else "cpu"
    if device == "cpu":
        return device
    kind, _, number = ("cuda:0" if device == "cuda" else device).partition(":")
    if kind != "cuda" or not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"--device: {device!r} is not one of auto, cpu, cuda, cuda:N")
    index = int(number)
    if index >= len(hardware.gpus):
        raise ConfigError(
            f"--device {device}: this machine shows {len(hardware.gpus)} usable NVIDIA GPUs"
            f"{f' ({hardware.gpu_fault})' if hardware.gpu_fault else ''}; "
            "use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES"
        )
    return f"cuda:{index}"


def default_of(option_field: Field[Any]) -> Any:
    """The default of an option, for help texts."""
    return None if option_field.default is MISSING else option_field.default
