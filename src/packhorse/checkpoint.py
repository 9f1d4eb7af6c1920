"""A checkpoint on disk: which files it has, what its config says. Reads JSON only, never weights.

Both towers stand on this: the front ends need limits, labels and the
tokenizer's files; the engine needs shapes and the weights' files. It imports
neither torch nor an HTTP server.

Config keys mean what they mean to Transformers, defaults included. What it
would compute otherwise than we do is refused here, by key and value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from packhorse.errors import CheckpointError
from packhorse.families import ACTIVATIONS, FAMILIES, OTHER_TASKS, Family, Setting, served
from packhorse.hub import commit_of, fetch

logger = logging.getLogger(__name__)

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""The sentiment classifier that is served when no model is named."""

DEMO_MODEL_ID = "packhorse-demo"
"""What the demo model is called in answers and logs."""

UNLIMITED = 1_000_000_000
"""A tokenizer's length limit from here on means that it has none: Transformers writes 1e30."""

_ALBERT_GROUPS = Setting("num_hidden_groups", 1)
"""How many sets of weights ALBERT's layers share; no other family has it."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_LARGEST = 2**31 - 1  # ids, positions and lengths travel as int32


class ProblemType(StrEnum):
    """How logits become scores, in the words of Transformers' config.

    A config without ``problem_type`` gets what Transformers' text
    classification pipeline does: the softmax for two labels or more and, for
    one label, the sigmoid, which is MULTI_LABEL with a single label.
    """

    SINGLE_LABEL = "single_label_classification"  # softmax over labels
    MULTI_LABEL = "multi_label_classification"  # sigmoid for each label
    REGRESSION = "regression"  # the logit itself


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a BERT-kin encoder, in one vocabulary for every family.

    Lengths are in tokens. ``first_position`` is the position id of a
    sequence's first token: 0, or pad_token_id + 1 in the RoBERTa kin.
    """

    family: str
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    max_position_embeddings: int
    first_position: int
    type_vocab_size: int
    pad_token_id: int
    torch_dtype: str | None

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_positions(self) -> int:
        """The longest sequence, special tokens included, that has positions."""
        return self.max_position_embeddings - self.first_position


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model folder, read and checked but for its weights.

    ``revision`` is the commit that is served, None unless the hub's cache holds the folder.
    ``max_length`` is in tokens, special tokens included.
    ``labels`` are in the order of the head's rows; the weights' shapes are held against them.
    """

    model_id: str
    revision: str | None
    folder: Path
    config: Mapping[str, Any]
    architecture: Architecture
    labels: tuple[str, ...]
    problem_type: ProblemType
    max_length: int

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture.family]


def load_checkpoint(
    model: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
) -> Checkpoint:
    """Fetch a model if need be, and read all of it but its weights.

    ``model`` is a folder, a name on the hub, or None for the demo model; the
    other arguments are those of ``hub.fetch``.

    Raises CheckpointError for a file that is missing or broken, and for every
    value that is wrong or not served, with the file, the key and what is accepted.
    """
    if model is None:
        folder, model_id = DEMO_MODEL, DEMO_MODEL_ID
    else:
        folder = fetch(model, revision=revision, token=token, offline=offline, cache_dir=cache_dir)
        model_id = str(model)
    path = folder / "config.json"
    config = read_json(path)
    family = _family(config, path)
    _check_task(config, family, path)
    architecture = _architecture(config, family, path)
    labels = _labels(config, path)
    checkpoint = Checkpoint(
        model_id=model_id,
        revision=commit_of(folder),
        folder=folder,
        config=config,
        architecture=architecture,
        labels=labels,
        problem_type=_problem_type(config, len(labels), path),
        max_length=_max_length(folder / "tokenizer_config.json", architecture),
    )
    _check_tokenizer_file(checkpoint.tokenizer_file)
    return checkpoint


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint.

    Raises CheckpointError when it is missing, broken or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: is {path.parent} a model folder?") from None
    # ValueError is wrong UTF-8, broken JSON or a number of absurd length.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _refusal(path: Path, key: str, value: object, accepted: str) -> CheckpointError:
    """The error for one wrong value: file, key, value, and what would be right."""
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    if len(shown) > 100:
        shown = shown[:100] + "…"
    return CheckpointError(f'{path}: "{key}" is {shown}; accepted: {accepted}')


def _family(config: Mapping[str, Any], path: Path) -> Family:
    """The row for this config: by ``model_type``, in old checkpoints without by class name."""
    name = config.get("model_type")
    if name is None:
        classes = _architectures(config, path)
        for family in FAMILIES.values():
            if any(served_class in classes for served_class in family.architectures):
                return family
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    raise _refusal(path, "model_type", name, f"{', '.join(FAMILIES)} (served: {served()})")


def _architectures(config: Mapping[str, Any], path: Path) -> list[str]:
    """The class names that the checkpoint was saved from; none in some old ones."""
    names = config.get("architectures")
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refusal(path, "architectures", names, "a list of class names")
    return names


def _check_task(config: Mapping[str, Any], family: Family, path: Path) -> None:
    """Raise unless the head is one that is served.

    Without class names it may be: if it is not, the missing head is found among the weights.
    """
    names = _architectures(config, path)
    if not names or any(name in family.architectures for name in names):
        return
    kinds = (kind for end, kind in OTHER_TASKS.items() if names[0].endswith(end))
    kind = next(kinds, "a model of another kind")
    raise _refusal(path, "architectures", names, f"{served()}; {names[0]} is {kind}")


def _architecture(config: Mapping[str, Any], family: Family, path: Path) -> Architecture:
    """The shape of the encoder, every value checked by itself and against the others."""
    for key, values in family.only.items():
        if config.get(key) not in values:
            accepted = " or ".join(json.dumps(value) for value in values if value is not None)
            raise _refusal(path, key, config[key], accepted or "no such key")

    def size(field: str) -> int:
        return _size(config, family.settings[field], path)

    architecture = Architecture(
        family=family.model_type,
        vocab_size=size("vocab_size"),
        embedding_size=size("embedding_size") or size("hidden_size"),
        hidden_size=size("hidden_size"),
        num_layers=size("num_layers"),
        num_heads=size("num_heads"),
        intermediate_size=size("intermediate_size"),
        hidden_act=_activation(config, family.settings["hidden_act"], path),
        layer_norm_eps=_epsilon(config, family.settings["layer_norm_eps"], path),
        max_position_embeddings=size("max_position_embeddings"),
        first_position=_first_position(config, family, path),
        type_vocab_size=size("type_vocab_size"),
        pad_token_id=_pad_token_id(config, family, path),
        torch_dtype=_dtype(config, path),
    )
    _check_fit(architecture, family, path)
    if family.model_type == "albert":
        _size(config, _ALBERT_GROUPS, path)  # the loader divides by it
    return architecture


def _check_fit(architecture: Architecture, family: Family, path: Path) -> None:
    """Raise for values that are fine each, but not together."""
    if architecture.hidden_size % architecture.num_heads:
        key = family.settings["num_heads"].key or "num_heads"
        accepted = f"a divisor of the hidden size, {architecture.hidden_size}"
        raise _refusal(path, key, architecture.num_heads, accepted)
    if architecture.max_positions < 1:
        key = family.settings["max_position_embeddings"].key or "max_position_embeddings"
        accepted = f"more than {architecture.first_position}, the first token's position"
        raise _refusal(path, key, architecture.max_position_embeddings, accepted)


def _value(config: Mapping[str, Any], setting: Setting) -> tuple[str, Any]:
    """Key and value of a setting; the default only where the key is absent, as in Transformers."""
    if setting.key is None:
        return "", setting.default
    return setting.key, config.get(setting.key, setting.default)


def _size(config: Mapping[str, Any], setting: Setting, path: Path) -> int:
    """A whole number from 1 on (0 only as a family's fixed value)."""
    key, value = _value(config, setting)
    if setting.key is None or _is_integer(value, 1):
        return int(value)
    raise _refusal(path, key, value, f"a whole number from 1 to {_LARGEST}")


def _is_integer(value: object, least: int) -> bool:
    """Whether this JSON value is a whole number from ``least`` on that fits an int32."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and least <= value <= _LARGEST  # type: ignore[operator]


def _activation(config: Mapping[str, Any], setting: Setting, path: Path) -> str:
    key, value = _value(config, setting)
    if isinstance(value, str) and value in ACTIVATIONS:
        return value
    raise _refusal(path, key, value, ", ".join(ACTIVATIONS))


def _epsilon(config: Mapping[str, Any], setting: Setting, path: Path) -> float:
    key, value = _value(config, setting)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value < 1:  # false for NaN too
        return float(value)
    raise _refusal(path, key, value, "a number between 0 and 1")


def _pad_token_id(config: Mapping[str, Any], family: Family, path: Path) -> int:
    """The pad id, which is read only in families whose positions are counted from it.

    In the others null and -1 occur on the hub and mean nothing: the default stands in.
    """
    setting = family.settings["pad_token_id"]
    key, value = _value(config, setting)
    vocab_size = _size(config, family.settings["vocab_size"], path)
    if setting.key is None or (_is_integer(value, 0) and value < vocab_size):
        return int(value)
    if family.first_position is not None:
        return int(setting.default)
    raise _refusal(path, key, value, f"a whole number from 0 to {vocab_size - 1}")


def _first_position(config: Mapping[str, Any], family: Family, path: Path) -> int:
    if family.first_position is not None:
        return family.first_position
    return _pad_token_id(config, family, path) + 1


def _dtype(config: Mapping[str, Any], path: Path) -> str | None:
    """The type the weights were saved in, as far as the config says; ``dtype`` is the newer key."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(key)
    if value is None or value in _DTYPES:
        return value
    raise _refusal(path, key, value, ", ".join(_DTYPES))


def _labels(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Names of the head's rows, by the rules of Transformers.

    ``id2label`` names them; ``num_labels``, if it says another number, wins
    and the names are LABEL_0, LABEL_1, …; two labels if neither is there. We
    are stricter in one thing: a gap in the ids is an error, not one that waits
    until the nameless label is predicted.
    """
    names = config.get("id2label")
    if names is None:
        names = {}
    elif not isinstance(names, dict) or not names:
        raise _refusal(path, "id2label", names, 'an object such as {"0": "no", "1": "yes"}')
    count = config.get("num_labels", len(names) or 2)
    if not _is_integer(count, 1):
        raise _refusal(path, "num_labels", count, "a whole number of at least 1")
    if len(names) != count:
        if names:
            logger.warning(
                "%s: num_labels is %d, so the %d names of id2label are not used",
                path,
                count,
                len(names),
            )
        return tuple(f"LABEL_{row}" for row in range(count))
    return tuple(_named_rows(names, path))


def _named_rows(names: Mapping[str, Any], path: Path) -> list[str]:
    """The labels of ``id2label`` in the order of their ids: "10" comes after "9"."""
    try:
        by_row = {int(key): label for key, label in names.items()}
    except ValueError:
        raise _refusal(path, "id2label", names, "whole numbers as keys") from None
    if sorted(by_row) != list(range(len(names))):
        raise _refusal(path, "id2label", names, f"the keys 0 to {len(names) - 1}, each once")
    for label in by_row.values():
        # A number is what some data sets have for names.
        if not isinstance(label, (str, int)):
            raise _refusal(path, "id2label", names, "strings as labels")
    return [str(by_row[row]) for row in range(len(names))]


def _problem_type(config: Mapping[str, Any], num_labels: int, path: Path) -> ProblemType:
    """Which function makes scores, as Transformers' text classification pipeline decides it."""
    value = config.get("problem_type")
    if value is None:
        return ProblemType.MULTI_LABEL if num_labels == 1 else ProblemType.SINGLE_LABEL
    if value not in list(ProblemType):
        raise _refusal(path, "problem_type", value, f"{', '.join(ProblemType)}, or null")
    if value == ProblemType.SINGLE_LABEL and num_labels == 1:
        # The softmax of one number is 1.0 whatever the text; Transformers refuses it too.
        raise _refusal(path, "problem_type", value, "regression or null where there is one label")
    return ProblemType(value)


def _max_length(path: Path, architecture: Architecture) -> int:
    """The longest sequence served: what has positions, or less if the tokenizer's config says so.

    A ``truncation`` in tokenizer.json does not count, as it does not for
    Transformers: it is what the tokenizer was last used with, not a limit.
    """
    config = read_json(path) if path.exists() else {}
    value = config.get("model_max_length", config.get("max_len"))  # the older key
    if value is None:
        return architecture.max_positions
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and value >= UNLIMITED:
        return architecture.max_positions
    if not is_number or not 1 <= value < UNLIMITED or value != int(value):
        raise _refusal(path, "model_max_length", value, "a whole number of tokens from 1 on")
    return min(int(value), architecture.max_positions)


def _check_tokenizer_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; where only a vocabulary is there, Transformers writes it: "
            f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained(…)"
        )
