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
from functools import partial
from pathlib import Path
from typing import Any

from packhorse import fallback
from packhorse.config_values import (
    DTYPES,
    LARGEST,
    dtype_named,
    is_integer,
    refusal,
    stated_length,
)
from packhorse.config_values import read_json as read_json
from packhorse.errors import CheckpointError
from packhorse.families import (
    ACTIVATIONS,
    FAMILIES,
    OTHER_CLASSES,
    Family,
    Setting,
    activation_named,
    served,
)
from packhorse.hub import commit_of, fetch
from packhorse.labels import ProblemType as ProblemType
from packhorse.labels import labels_of, problem_type_of
from packhorse.positions import DisentangledPositions, RotaryPositions, positions_of
from packhorse.sentence import (
    Pooling,
    SentenceModules,
    rerank_activation,
    sentence_modules,
    sparse_modules,
    task_of_folder,
    transformer_folder,
)
from packhorse.tasks import DOES, Task

logger = logging.getLogger(__name__)

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""The sentiment classifier that is served when no model is named."""

DEMO_MODEL_ID = "packhorse-demo"
"""What the demo model is called in answers and logs."""

_ALBERT_GROUPS = Setting("num_hidden_groups", 1)
"""How many sets of weights ALBERT's layers share; no other family has it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of an encoder, in one vocabulary for every family.

    Lengths are in tokens. ``first_position`` is the position id of a
    sequence's first token: 0, or pad_token_id + 1 in the RoBERTa kin.
    ``head_act`` is the head's activation where the config names it, ``mean_pooled`` whether the
    head reads the mean of all tokens, ``positions`` how places enter attention besides a table.
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
    head_act: str | None = None
    mean_pooled: bool = False
    positions: RotaryPositions | DisentangledPositions | None = None

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
    ``transformer`` is the folder of config, weights and tokenizer: ``folder``, or one in it.
    ``max_length`` is in tokens, special tokens included.
    ``labels`` are in the order of the head's rows; the weights' shapes are held against them.
    A model that embeds has none, and ``sentence`` says how hidden states become a vector; one that
    fills masks has none either.
    ``allow_pickle`` lets the weights be read from pytorch_model.bin.
    ``rerank_activation`` is what a score of RERANK goes through: sigmoid or identity.
    """

    model_id: str
    revision: str | None
    folder: Path
    transformer: Path
    config: Mapping[str, Any]
    architecture: Architecture
    labels: tuple[str, ...]
    problem_type: ProblemType
    max_length: int
    task: Task = Task.CLASSIFY
    sentence: SentenceModules | None = None
    rerank_activation: str = "sigmoid"
    allow_pickle: bool = False

    @property
    def width(self) -> int:
        """Columns of the model's output: its labels, the length of a vector, or its vocabulary."""
        if self.task is Task.FILL_MASK:
            return self.architecture.vocab_size
        return len(self.labels) if self.sentence is None else self.sentence.width

    @property
    def tokenizer_file(self) -> Path:
        return self.transformer / "tokenizer.json"

    @property
    def is_packed(self) -> bool:
        """Whether there is a packed path for its family; if not it runs through Transformers."""
        return self.architecture.family in FAMILIES

    @property
    def family(self) -> Family:
        """The row of a family with a packed path."""
        return FAMILIES[self.architecture.family]


def load_checkpoint(
    model: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
    task: Task | None = None,
    pooling: Pooling | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Fetch a model if need be, and read all of it but its weights.

    ``model`` is a folder, a name on the hub, or None for the demo model. ``task``
    is what the model shall do; None: what its files say that it was made for.
    ``pooling`` overrules the folder's where texts are embedded; ``allow_pickle``
    lets weights be read that are pickled. The other arguments are those of ``hub.fetch``.

    Raises CheckpointError for a file that is missing or broken, and for every
    value that is wrong or not served, with the file, the key and what is accepted.
    """
    if model is None:
        folder, model_id = DEMO_MODEL, DEMO_MODEL_ID
    else:
        folder = fetch(
            model,
            revision=revision,
            token=token,
            offline=offline,
            cache_dir=cache_dir,
            allow_pickle=allow_pickle,
        )
        model_id = str(model)
    transformer = transformer_folder(folder)
    path = transformer / "config.json"
    config = read_json(path)
    family = _family(config, path)
    if pooling == "splade" and task in (None, Task.EMBED):
        task = Task.EMBED_SPARSE  # as in text-embeddings-inference, which has no other name for it
    if task is None:
        task = _task(config, family, path, task_of_folder(folder))
    architecture = _architecture(config, family, path)
    sentence = None
    if task is Task.EMBED:
        sentence = sentence_modules(folder, architecture.hidden_size, pooling)
    elif task is Task.EMBED_SPARSE and pooling in ("splade", None):
        sentence = sparse_modules(folder, architecture.vocab_size)
    elif pooling is not None:
        raise CheckpointError(
            f"the pooling {pooling} is not for this task: {model_id} {DOES[task]}"
        )
    labels = () if sentence or task is Task.FILL_MASK else labels_of(config, path)
    task = _with_labels(task, labels, path)
    checkpoint = Checkpoint(
        model_id=model_id,
        revision=commit_of(folder),
        folder=folder,
        transformer=transformer,
        config=config,
        architecture=architecture,
        labels=labels,
        problem_type=problem_type_of(config, len(labels), path)
        if task.is_classifier
        else ProblemType.SINGLE_LABEL,
        max_length=_max_length(transformer / "tokenizer_config.json", architecture, sentence),
        task=task,
        sentence=sentence,
        rerank_activation=rerank_activation(config, path) if task is Task.RERANK else "sigmoid",
        allow_pickle=allow_pickle,
    )
    _check_tokenizer_file(checkpoint.tokenizer_file)
    return checkpoint


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
    other = fallback.fallback_family(config)
    if other is not None and fallback.is_installed():
        return other
    accepted = f"{', '.join(FAMILIES)} (served: {served()})"
    raise refusal(
        path, "model_type", name, accepted if other is None else f"{accepted}; {fallback.HINT}"
    )


def _architectures(config: Mapping[str, Any], path: Path) -> list[str]:
    """The class names that the checkpoint was saved from; none in some old ones."""
    names = config.get("architectures")
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refusal(path, "architectures", names, "a list of class names")
    return names


def _task(config: Mapping[str, Any], family: Family, path: Path, by_modules: Task | None) -> Task:
    """What the checkpoint was made for.

    A folder of sentence-transformers that pools is for embedding (``by_modules``). Else the class
    name says it; without one it may be a classifier: if it is not, the missing head is found
    among the weights. Raises CheckpointError for a head that is not served.
    """
    names = _architectures(config, path)
    tasks = [family.architectures[name] for name in names if name in family.architectures]
    if (tasks or not names) and by_modules is not None:
        return by_modules
    if tasks or not names:
        return tasks[0] if tasks else Task.CLASSIFY
    kinds = (kind for end, kind in OTHER_CLASSES.items() if names[0].endswith(end))
    kind = next(kinds, "a model of another kind")
    raise refusal(path, "architectures", names, f"{served()}; {names[0]} is {kind}")


def _with_labels(task: Task, labels: tuple[str, ...], path: Path) -> Task:
    """The task, once the labels are known: a classifier with a single one reranks.

    Raises CheckpointError when it shall rerank and has several.
    """
    if task is Task.RERANK and len(labels) != 1:
        raise CheckpointError(
            f"{path}: the model has {len(labels)} labels, and only one with a single label can "
            "rerank: give another --task"
        )
    return Task.RERANK if task is Task.CLASSIFY and len(labels) == 1 else task


def _architecture(config: Mapping[str, Any], family: Family, path: Path) -> Architecture:
    """The shape of the encoder, every value checked by itself and against the others."""
    for key, values in family.only.items():
        if config.get(key) not in values:
            accepted = " or ".join(json.dumps(value) for value in values if value is not None)
            raise refusal(path, key, config[key], accepted or "no such key")

    def size(field: str) -> int:
        return _size(config, family.settings[field], path)

    head_act = family.settings.get("head_act")
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
        head_act=_activation(config, head_act, path) if head_act else None,
        mean_pooled=config.get("classifier_pooling") == "mean",
        positions=positions_of(family.positions, config, partial(refusal, path)),
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
        raise refusal(path, key, architecture.num_heads, accepted)
    if architecture.max_positions < 1:
        key = family.settings["max_position_embeddings"].key or "max_position_embeddings"
        accepted = f"more than {architecture.first_position}, the first token's position"
        raise refusal(path, key, architecture.max_position_embeddings, accepted)


def _value(config: Mapping[str, Any], setting: Setting) -> tuple[str, Any]:
    """Key and value of a setting; the default only where the key is absent, as in Transformers."""
    if setting.key is None:
        return "", setting.default
    return setting.key, config.get(setting.key, setting.default)


def _size(config: Mapping[str, Any], setting: Setting, path: Path) -> int:
    """A whole number from 1 on; 0 only where that is a family's fixed value or its default.

    A default of None means that it must be there.
    """
    key, value = _value(config, setting)
    least = 1 if setting.default is None else min(1, setting.default)
    if setting.key is None or is_integer(value, least):
        return int(value)
    raise refusal(path, key, value, f"a whole number from 1 to {LARGEST}")


def _activation(config: Mapping[str, Any], setting: Setting, path: Path) -> str:
    key, value = _value(config, setting)
    if (name := activation_named(value)) is not None:
        return name
    raise refusal(path, key, value, ", ".join(ACTIVATIONS))


def _epsilon(config: Mapping[str, Any], setting: Setting, path: Path) -> float:
    key, value = _value(config, setting)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value < 1:  # false for NaN too
        return float(value)
    raise refusal(path, key, value, "a number between 0 and 1")


def _pad_token_id(config: Mapping[str, Any], family: Family, path: Path) -> int:
    """The pad id, which is read only in families whose positions are counted from it.

    In the others null and -1 occur on the hub and mean nothing: the default stands in.
    """
    setting = family.settings["pad_token_id"]
    key, value = _value(config, setting)
    vocab_size = _size(config, family.settings["vocab_size"], path)
    if setting.key is None or (is_integer(value, 0) and value < vocab_size):
        return int(value)
    if family.first_position is not None:
        return int(setting.default)
    raise refusal(path, key, value, f"a whole number from 0 to {vocab_size - 1}")


def _first_position(config: Mapping[str, Any], family: Family, path: Path) -> int:
    if family.first_position is not None:
        return family.first_position
    return _pad_token_id(config, family, path) + 1


def _dtype(config: Mapping[str, Any], path: Path) -> str | None:
    """The type the weights were saved in, as far as the config says; ``dtype`` is the newer key."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(key)
    name = dtype_named(value)
    if value is None or name is not None:
        return name
    raise refusal(path, key, value, ", ".join(DTYPES))


def _max_length(path: Path, architecture: Architecture, sentence: SentenceModules | None) -> int:
    """The longest sequence served: what has positions, or less if the tokenizer's config says so.

    What sentence-transformers' own config says goes before the tokenizer's, as it does there.
    """
    if sentence is not None and sentence.max_length is not None:
        return min(sentence.max_length, architecture.max_positions)
    stated = stated_length(path)
    return min(stated or architecture.max_positions, architecture.max_positions)


def _check_tokenizer_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; where only a vocabulary is there, Transformers writes it: "
            f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained(…)"
        )
