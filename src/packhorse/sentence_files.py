"""The files of a sentence-transformers folder: found, read, and held against what is served.

``modules.json`` lists the modules that a text goes through, each with a folder of its own. What
would be computed otherwise than there is refused, by file and key, never left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packhorse.config_values import switch
from packhorse.errors import CheckpointError
from packhorse.tasks import Task

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LIMIT_FILES = (
    "sentence_bert_config.json",
    *(
        f"sentence_{kind}_config.json"
        for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)

TRANSFORMERS = ("Transformer", "MLMTransformer")
"""Modules that turn tokens into hidden states, or into logits of a vocabulary."""

_OUTPUTS: Mapping[Task, tuple[str, str, str]] = {
    Task.EMBED: ("feature-extraction", "last_hidden_state", "token_embeddings"),
    Task.EMBED_SPARSE: ("fill-mask", "logits", "token_embeddings"),
    Task.RERANK: ("sequence-classification", "logits", "scores"),
}
"""By task: what the Transformer module is loaded for, what of its output is read, and as what."""

_UNREAD = ("query_length", "document_length", "query_expansion", "tokenizer_name_or_path")
"""Settings of the Transformer module that change what is computed, and are not served."""

_ARGUMENTS = ("tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
"""Settings that overrule the tokenizer's or the model's own config, old and new names."""

_HARMLESS = {
    "trust_remote_code",
    "use_fast",
    "padding_side",
    "clean_up_tokenization_spaces",
    "use_cache",
}
"""Keys of those that change no number here: there is no padding, and no code of a model's own."""


@dataclass(frozen=True, slots=True)
class TransformerSettings:
    """What is beside the transformer: the longest sequence (None: not said), and lowercasing."""

    max_length: int | None = None
    lowercase: bool = False


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts by name, and the name of that which is put where a request names none."""

    texts: Mapping[str, str] = field(default_factory=dict)
    default_name: str | None = None


def transformer_folder(folder: Path) -> Path:
    """Where the transformer's own files are: at the top, or in the folder that modules.json names.

    Raises CheckpointError for a file that is broken, for several transformers, and for none.
    """
    if not (folder / MODULES_FILE).is_file():
        return folder
    listed = listed_modules(folder)
    paths = [path for kind, path in listed if kind in TRANSFORMERS]
    if len(paths) > 1:
        raise CheckpointError(
            f"{folder / MODULES_FILE}: it has {len(paths)} transformers, and one is served"
        )
    if not paths:
        raise CheckpointError(
            f"{folder / MODULES_FILE}: its modules are {', '.join(kind for kind, _ in listed)}; "
            "what is served begins with a Transformer"
        )
    return folder / paths[0]


def task_of_folder(folder: Path) -> Task | None:
    """What sentence-transformers saved here, if it did: a model that pools, densely or sparsely."""
    if not (folder / MODULES_FILE).is_file():
        return None
    kinds = {kind for kind, _ in listed_modules(folder)}
    if "SpladePooling" in kinds:
        return Task.EMBED_SPARSE
    return Task.EMBED if "Pooling" in kinds else None


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """(class name, folder) of every module, in the order of the list, as sentence-transformers
    applies them: ``idx`` is for people. None where there is no list.

    Raises CheckpointError for a list that is broken or has code of the model's own.
    """
    if not (folder / MODULES_FILE).is_file():
        return []
    path = folder / MODULES_FILE
    modules = json_value(path)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise CheckpointError(f"{path} must hold a JSON list of objects")
    if not modules:
        raise CheckpointError(f"{path} lists no modules: at least a Transformer must be there")
    found = []
    for module in modules:
        kind, place = module.get("type"), module.get("path", "")
        # Another folder's weights must not be read by way of "..".
        if not isinstance(kind, str) or not isinstance(place, str) or Path(place).name != place:
            raise CheckpointError(f"{path}: a module needs a type and a path that is a folder name")
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(
                f"{path}: the module {kind!r} is code of the model's own, which is never run"
            )
        found.append((kind.rpartition(".")[2], place))
    return found


def transformer_settings(folder: Path, task: Task) -> TransformerSettings:
    """What the folder says beside its transformer.

    Raises CheckpointError for what is not served.
    """
    own = transformer_folder(folder)
    path = next((own / name for name in LIMIT_FILES if (own / name).is_file()), None)
    if path is None:
        return TransformerSettings()
    config = json_object(path)
    _check_outputs(config, path, task)
    _check_unread(config, path)
    return TransformerSettings(
        count_of(config, "max_seq_length", path), switch(config, "do_lower_case", path)
    )


def _check_outputs(config: Mapping[str, Any], path: Path, task: Task) -> None:
    """What the Transformer module is loaded for, and what of its output goes on."""
    loaded_for, output, name = _OUTPUTS[task]
    check_values(config, path, {"transformer_task": (loaded_for,), "module_output_name": (name,)})
    modalities = config.get("modality_config")
    if modalities is None:
        return
    accepted = {"method": "forward", "method_output_name": output}
    if not isinstance(modalities, dict) or modalities.get("text") != accepted:
        raise CheckpointError(
            f'{path}: "modality_config" is {modalities!r}; accepted: {{"text": {accepted!r}}}'
        )
    if "message" in modalities:
        raise CheckpointError(
            f'{path}: "modality_config" has "message", which puts texts into a chat template: '
            "that is not served"
        )


def _check_unread(config: Mapping[str, Any], path: Path) -> None:
    """Settings that would change what is computed, and are not read."""
    check_values(config, path, dict.fromkeys(_UNREAD, ()))
    processing = config.get("processing_kwargs") or {}
    if any(processing.get(kind) for kind in ("text", "common", "chat_template")):
        raise CheckpointError(
            f'{path}: "processing_kwargs" is {processing!r}: what it changes is not served'
        )
    for name in _ARGUMENTS:
        changed = set(config.get(name) or {}) - _HARMLESS
        if changed:
            raise CheckpointError(
                f'{path}: "{name}" has {", ".join(sorted(changed))}, which is not served here: '
                "put it into the config of the tokenizer or of the model"
            )


def check_values(
    config: Mapping[str, Any], path: Path, accepted: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raises CheckpointError for a key whose value is neither null nor one of those accepted."""
    for key, values in accepted.items():
        value = config.get(key)
        if value is not None and value not in values:
            names = " or ".join(map(repr, values)) or "null"
            raise CheckpointError(f'{path}: "{key}" is {value!r}; accepted: {names}')


def folder_settings(folder: Path) -> Mapping[str, Any]:
    """config_sentence_transformers.json; empty where there is none."""
    path = folder / PROMPTS_FILE
    return json_object(path) if path.is_file() else {}


def prompts_of(folder: Path) -> Prompts:
    """The folder's prompts. Raises CheckpointError for a default that is none of them."""
    config, path = folder_settings(folder), folder / PROMPTS_FILE
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise CheckpointError(f'{path}: "prompts" must be an object: name to text')
    name = config.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise CheckpointError(
            f'{path}: "default_prompt_name" is {name!r}, which is not in "prompts"'
        )
    # A name without a text is a name that may be used and says nothing.
    texts = {str(each): str(text or "") for each, text in prompts.items()}
    return Prompts(texts, None if name is None else str(name))


def count_of(config: Mapping[str, Any], key: str, path: Path) -> int | None:
    """A whole number of at least 1, or None where the key is null or missing."""
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f'{path}: "{key}" is {value!r}; accepted: a whole number of at least 1'
        )
    return value


def json_object(path: Path) -> dict[str, Any]:
    """A file that holds an object. Raises CheckpointError."""
    value = json_value(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def json_value(path: Path) -> Any:
    """What a file holds. Raises CheckpointError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, though {MODULES_FILE} names it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
