"""What a sentence-transformers folder says: pooling, further layers, prompts, the length limit.

``modules.json`` lists the modules that a text goes through, each with a folder of its own. What
is not computed as sentence-transformers would is refused, by file and name, never left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from packhorse.config_values import switch
from packhorse.errors import CheckpointError, ValidationError
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

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len", "weighted_mean", "last", "splade"]

POOLINGS: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
"""Names in a Pooling module's config to ours."""

_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How configs before version 6 said it, in the order in which several are concatenated."""

ACTIVATIONS = {
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Identity": None,
}
"""Classes of torch.nn that may follow a Dense module, to the names that the head knows."""


_TRANSFORMERS = ("Transformer", "MLMTransformer")
"""Modules that turn tokens into hidden states, or into logits of a vocabulary."""


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A dense layer and an activation; ``folder`` holds its linear.weight and linear.bias."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str | None


@dataclass(frozen=True, slots=True)
class NormModule:
    """LayerNorm; ``folder`` holds its norm.weight and norm.bias."""

    folder: str
    width: int


@dataclass(frozen=True, slots=True)
class NormalizeModule:
    """Each vector to length 1."""


Module = DenseModule | NormModule | NormalizeModule


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """How hidden states become one vector for a text.

    poolings     what of the hidden states is read; several results lie side by side
    modules      what comes after, in order
    width        length of the vector
    max_length   the longest sequence in tokens, special tokens included; None: not said
    lowercase    whether texts are lowercased before they are tokenised
    prompts      by name: what is put before a text
    default_prompt_name   the prompt of a request that names none; None: no prompt
    pools_prompt   whether the prompt's tokens are pooled too
    twice_log1p    of a sparse model: whether its weights go through log1p once more
    """

    poolings: tuple[Pooling, ...]
    modules: tuple[Module, ...]
    width: int
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompt: bool = True
    twice_log1p: bool = False

    def text_with_prompt(self, text: str, prompt: str) -> str:
        """The text as it is tokenised."""
        return (prompt + text).lower() if self.lowercase else prompt + text

    def prompt_named(self, name: str | None) -> str:
        """The prompt of this name; of None the model's default, which may be empty.

        Raises ValidationError for a name that there is not, and as ``checked_prompt`` does.
        """
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            raise ValidationError(
                f"there is no prompt {name!r}; this model has "
                + (", ".join(sorted(self.prompts)) or "none")
            )
        return self.checked_prompt(self.prompts[name])

    def checked_prompt(self, prompt: str) -> str:
        """Raises ValidationError for a prompt that is left out of pooling by the first token.

        What is read then differs between versions of sentence-transformers: the first token of
        all, or the first after the prompt.
        """
        if prompt and not self.pools_prompt and "cls" in self.poolings:
            raise ValidationError(
                "this model pools the first token and leaves those of a prompt out (include_prompt "
                "is false): versions of sentence-transformers differ in what that means, so it is "
                "not served; send texts without a prompt"
            )
        return prompt

    @property
    def normalizes(self) -> bool:
        """Whether vectors come out with length 1."""
        return bool(self.modules) and isinstance(self.modules[-1], NormalizeModule)


def transformer_folder(folder: Path) -> Path:
    """Where the transformer's own files are: at the top, or in the folder that modules.json names.

    Raises CheckpointError for a file that is broken, and for several transformers.
    """
    if not (folder / MODULES_FILE).is_file():
        return folder
    paths = [path for kind, path in _listed(folder) if kind in _TRANSFORMERS]
    if len(paths) > 1:
        raise CheckpointError(
            f"{folder / MODULES_FILE}: it has {len(paths)} transformers, and one is served"
        )
    return folder / paths[0] if paths else folder


def task_of_folder(folder: Path) -> Task | None:
    """What sentence-transformers saved here, if it did: a model that pools, densely or sparsely."""
    if not (folder / MODULES_FILE).is_file():
        return None
    kinds = {kind for kind, _ in _listed(folder)}
    if "SpladePooling" in kinds:
        return Task.EMBED_SPARSE
    return Task.EMBED if "Pooling" in kinds else None


def sentence_modules(
    folder: Path, hidden_size: int, pooling: Pooling | None = None
) -> SentenceModules:
    """The modules of a folder; of one without ``modules.json`` the mean, as there.

    ``pooling``, if given, takes the place of what the folder says.
    Raises CheckpointError for a module or a value that is not served.
    """
    listed = _listed(folder) if (folder / MODULES_FILE).is_file() else []
    poolings: tuple[Pooling, ...] = ("mean",)
    modules: list[Module] = []
    width, pools_prompt = hidden_size, True
    for kind, path in listed:
        if kind in ("Transformer", "Dropout"):
            continue
        if kind == "Pooling":
            poolings, pools_prompt = _pooling(folder / path / "config.json", hidden_size)
            poolings = poolings if pooling is None else (pooling,)
            width = len(poolings) * hidden_size
        elif kind == "Normalize":
            modules.append(NormalizeModule())
        elif kind == "Dense":
            modules.append(_dense(folder, path, width))
            width = modules[-1].out_features  # type: ignore[union-attr]
        elif kind == "LayerNorm":
            modules.append(NormModule(path, width))
        else:
            raise CheckpointError(
                f"{folder / MODULES_FILE}: the module {kind!r} is not served; served: Transformer, "
                "Pooling, Dense, LayerNorm, Normalize, Dropout"
            )
    if not listed and pooling is not None:
        poolings = (pooling,)
    return _with_settings(
        SentenceModules(poolings, tuple(modules), width, pools_prompt=pools_prompt), folder
    )


def sparse_modules(folder: Path, vocab_size: int) -> SentenceModules:
    """The same of a SPLADE model: a weight for each of ``vocab_size`` tokens.

    A folder without ``modules.json`` is taken for SPLADE's second version: the maximum over
    tokens of log1p(relu(logit)) (Formal et al. 2021, arXiv:2109.10086).
    Raises CheckpointError for a module or a value that is not served.
    """
    twice_log1p = False
    for kind, path in _listed(folder) if (folder / MODULES_FILE).is_file() else []:
        if kind == "SpladePooling":
            twice_log1p = _splade_pooling(folder / path / "config.json")
        elif kind not in _TRANSFORMERS:
            raise CheckpointError(
                f"{folder / MODULES_FILE}: the module {kind!r} is not served in a sparse model; "
                "served: MLMTransformer, Transformer, SpladePooling"
            )
    modules = SentenceModules(("splade",), (), vocab_size, twice_log1p=twice_log1p)
    return _with_settings(modules, folder)


def _with_settings(modules: SentenceModules, folder: Path) -> SentenceModules:
    """With the folder's prompts, and the limits that are beside the transformer."""
    limit = _first_object(transformer_folder(folder), LIMIT_FILES)
    prompts = _first_object(folder, (PROMPTS_FILE,))
    return replace(
        modules,
        max_length=_limit(limit, folder),
        lowercase=switch(limit, "do_lower_case", folder),
        prompts=_prompts(prompts, folder / PROMPTS_FILE),
        default_prompt_name=_default_prompt(prompts, folder / PROMPTS_FILE),
    )


def rerank_activation(config: Mapping[str, Any], path: Path) -> str:
    """sigmoid or identity: what a cross-encoder's config.json puts after its logit.

    The sigmoid where it says nothing, as in sentence-transformers' CrossEncoder.
    Raises CheckpointError for another function.
    """
    own = config.get("sentence_transformers")
    value = own.get("activation_fn") if isinstance(own, dict) else None
    if value is None:
        value = config.get("sbert_ce_default_activation_function")
    if value is None:
        return "sigmoid"
    name = str(value).rpartition(".")[2]
    if str(value).startswith("torch.nn.") and name in ("Sigmoid", "Identity"):
        return name.lower()
    raise CheckpointError(
        f"{path}: the activation {value!r} of sentence-transformers is not served; "
        "served: torch.nn.Sigmoid and torch.nn.Identity"
    )


def _listed(folder: Path) -> list[tuple[str, str]]:
    """(class name, folder) of every module, in the order of the list, as sentence-transformers
    applies them: ``idx`` is for people."""
    path = folder / MODULES_FILE
    modules = _json(path)
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


def _pooling(path: Path, hidden_size: int) -> tuple[tuple[Pooling, ...], bool]:
    """Modes in the order of concatenation, and whether the prompt's tokens are pooled."""
    config = _object(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = _switched_on(config, path)
    modes = [modes] if isinstance(modes, str) else modes
    if (
        not isinstance(modes, list)
        or not modes
        or any(mode not in list(POOLINGS) for mode in modes)
    ):
        raise CheckpointError(
            f'{path}: "pooling_mode" is {modes!r}; accepted: one or more of {", ".join(POOLINGS)}'
        )
    width = config.get("embedding_dimension", config.get("word_embedding_dimension", hidden_size))
    if width != hidden_size:
        raise CheckpointError(
            f"{path}: it pools vectors of {width} numbers, the transformer gives {hidden_size}"
        )
    return tuple(POOLINGS[mode] for mode in modes), bool(config.get("include_prompt", True))


def _switched_on(config: Mapping[str, Any], path: Path) -> list[str]:
    """The modes of an older config; the mean where it has no switch."""
    there = {key: mode for key, mode in _SWITCHES.items() if config.get(key) is not None}
    modes = [mode for key, mode in there.items() if switch(config, key, path)]
    if there and not modes:
        raise CheckpointError(
            f"{path}: every pooling is switched off; one or more of these must be true: "
            + ", ".join(_SWITCHES)
        )
    return modes or ["mean"]


def _splade_pooling(path: Path) -> bool:
    """Whether log1p is applied twice (arXiv:2504.14839)."""
    config = _object(path) if path.is_file() else {}
    for key, accepted in (
        ("pooling_strategy", ("max",)),
        ("activation_function", ("relu", "log1p_relu")),
    ):
        if config.get(key, accepted[0]) not in accepted:
            raise CheckpointError(
                f'{path}: "{key}" is {config[key]!r}; accepted: {" or ".join(accepted)}'
            )
    return config.get("activation_function") == "log1p_relu"


def _dense(folder: Path, path: str, width: int) -> DenseModule:
    file = folder / path / "config.json"
    config = _object(file)
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if inputs != width or not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1:
        raise CheckpointError(
            f"{file}: in_features {inputs!r} and out_features {outputs!r} do not fit vectors of "
            f"{width} numbers"
        )
    for key, accepted in (
        ("module_input_name", "sentence_embedding"),
        ("module_output_name", "sentence_embedding"),
        ("use_residual", False),
    ):
        if config.get(key) not in (accepted, None):
            raise CheckpointError(f'{file}: "{key}" is {config[key]!r}; accepted: {accepted!r}')
    value = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(value).rpartition(".")[2]
    if not str(value).startswith("torch.nn.") or name not in ACTIVATIONS:
        raise CheckpointError(
            f'{file}: "activation_function" is {value!r}; accepted, of torch.nn: '
            + ", ".join(ACTIVATIONS)
        )
    return DenseModule(path, width, outputs, bool(config.get("bias", True)), ACTIVATIONS[name])


def _limit(config: Mapping[str, Any], folder: Path) -> int | None:
    value = config.get("max_seq_length")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f'{folder}: "max_seq_length" is {value!r}; accepted: a whole number of at least 1'
        )
    return value


def _prompts(config: Mapping[str, Any], path: Path) -> Mapping[str, str]:
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise CheckpointError(f'{path}: "prompts" must be an object: name to text')
    # A name without a text is a name that may be used and says nothing.
    return {str(name): str(text or "") for name, text in prompts.items()}


def _default_prompt(config: Mapping[str, Any], path: Path) -> str | None:
    name = config.get("default_prompt_name")
    if name is None or name in (config.get("prompts") or {}):
        return None if name is None else str(name)
    raise CheckpointError(f'{path}: "default_prompt_name" is {name!r}, which is not in "prompts"')


def _first_object(folder: Path, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The JSON object in the first of these files that is there; empty if none is."""
    for name in names:
        if (folder / name).is_file():
            return _object(folder / name)
    return {}


def _object(path: Path) -> dict[str, Any]:
    value = _json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, though {MODULES_FILE} names it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
