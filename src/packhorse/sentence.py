"""What a sentence-transformers folder says: pooling, further layers, prompts, the length limit.

What is not computed as sentence-transformers would is refused, by file and name, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from packhorse.config_values import switch
from packhorse.errors import CheckpointError, ValidationError
from packhorse.sentence_files import (
    MODULES_FILE,
    PROMPTS_FILE,
    TRANSFORMERS,
    check_values,
    count_of,
    folder_settings,
    json_object,
    listed_modules,
    prompts_of,
    transformer_settings,
)
from packhorse.tasks import Task

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


@dataclass(frozen=True, slots=True)
class TruncateModule:
    """The first ``width`` numbers of each vector."""

    width: int


Module = DenseModule | NormModule | NormalizeModule | TruncateModule


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
    default_prompt        the same as a text, which overrules it; None: it does not
    pools_prompt   whether the prompt's tokens are pooled too
    twice_log1p    of a sparse model: whether its weights go through log1p once more
    max_active_dims   of a sparse model: how many weights of a text stay, the largest; None: all
    """

    poolings: tuple[Pooling, ...]
    modules: tuple[Module, ...]
    width: int
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    default_prompt: str | None = None
    pools_prompt: bool = True
    twice_log1p: bool = False
    max_active_dims: int | None = None

    def text_with_prompt(self, text: str, prompt: str) -> str:
        """The text as it is tokenised."""
        return (prompt + text).lower() if self.lowercase else prompt + text

    def prompt_named(self, name: str | None) -> str:
        """The prompt of this name; of None the default, which may be empty.

        Raises ValidationError for a name that there is not, and as ``checked_prompt`` does.
        """
        if name is None and self.default_prompt is not None:
            return self.checked_prompt(self.default_prompt)
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


def sentence_modules(
    folder: Path, hidden_size: int, pooling: Pooling | None = None
) -> SentenceModules:
    """The modules of a folder; of one without ``modules.json`` the mean, as there.

    ``pooling``, if given, takes the place of what the folder says.
    Raises CheckpointError for a module or a value that is not served.
    """
    listed = listed_modules(folder)
    after = [(kind, path) for kind, path in listed if kind not in (*TRANSFORMERS, "Dropout")]
    _check_kinds([kind for kind, _ in after], folder)
    if not after:
        plain = SentenceModules(("mean" if pooling is None else pooling,), (), hidden_size)
        # A list without pooling is that of a cross-encoder, whose settings mean nothing here.
        return plain if listed else _with_settings(plain, folder, Task.EMBED)
    poolings, pools_prompt = _pooling(folder / after[0][1] / "config.json", hidden_size)
    poolings = poolings if pooling is None else (pooling,)
    modules: list[Module] = []
    width = len(poolings) * hidden_size
    for kind, path in after[1:]:
        if kind == "Normalize":
            modules.append(_normalize(folder / path / "config.json"))
        elif kind == "LayerNorm":
            modules.append(NormModule(path, width))
        else:
            dense = _dense(folder, path, width)
            modules.append(dense)
            width = dense.out_features
    return _truncated(
        _with_settings(
            SentenceModules(poolings, tuple(modules), width, pools_prompt=pools_prompt),
            folder,
            Task.EMBED,
        ),
        folder,
    )


def sparse_modules(folder: Path, vocab_size: int) -> SentenceModules:
    """The same of a SPLADE model: a weight for each of ``vocab_size`` tokens.

    A folder without ``modules.json`` is taken for SPLADE's second version: the maximum over
    tokens of log1p(relu(logit)) (Formal et al. 2021, arXiv:2109.10086).
    Raises CheckpointError for a module or a value that is not served.
    """
    twice_log1p = False
    for kind, path in listed_modules(folder):
        if kind == "SpladePooling":
            twice_log1p = _splade_pooling(folder / path / "config.json")
        elif kind not in TRANSFORMERS:
            raise CheckpointError(
                f"{folder / MODULES_FILE}: the module {kind!r} is not served in a sparse model; "
                "served: MLMTransformer, Transformer, SpladePooling"
            )
    most = count_of(folder_settings(folder), "max_active_dims", folder / PROMPTS_FILE)
    modules = SentenceModules(
        ("splade",), (), vocab_size, twice_log1p=twice_log1p, max_active_dims=most
    )
    return _with_settings(modules, folder, Task.EMBED_SPARSE)


def _check_kinds(kinds: list[str], folder: Path) -> None:
    """Of the modules after the transformer: those that are served, and one Pooling before all."""
    for kind in kinds:
        if kind not in ("Pooling", "Normalize", "Dense", "LayerNorm"):
            raise CheckpointError(
                f"{folder / MODULES_FILE}: the module {kind!r} is not served; served: Transformer, "
                "Pooling, Dense, LayerNorm, Normalize, Dropout"
            )
    if kinds and (kinds[0] != "Pooling" or kinds.count("Pooling") > 1):
        raise CheckpointError(
            f"{folder / MODULES_FILE}: after its Transformer come {', '.join(kinds)}; one Pooling "
            "must be among them, before all others"
        )


def _with_settings(modules: SentenceModules, folder: Path, task: Task) -> SentenceModules:
    """With the folder's prompts, and what is said beside the transformer."""
    settings, prompts = transformer_settings(folder, task), prompts_of(folder)
    return replace(
        modules,
        max_length=settings.max_length,
        lowercase=settings.lowercase,
        prompts=prompts.texts,
        default_prompt_name=prompts.default_name,
    )


def _truncated(modules: SentenceModules, folder: Path) -> SentenceModules:
    """With vectors cut as the folder says (``truncate_dim``): last of all, and not normalized
    again, as there."""
    width = count_of(folder_settings(folder), "truncate_dim", folder / PROMPTS_FILE)
    if width is None or width >= modules.width:
        return modules
    return replace(modules, modules=(*modules.modules, TruncateModule(width)), width=width)


def _normalize(path: Path) -> NormalizeModule:
    """Old versions wrote no config beside it."""
    if path.is_file():
        check_values(json_object(path), path, _SENTENCE_TO_SENTENCE)
    return NormalizeModule()


_SENTENCE_TO_SENTENCE = dict.fromkeys(
    ("module_input_name", "module_output_name"), ("sentence_embedding",)
)
"""What a module after the pooling may read and write."""


def _pooling(path: Path, hidden_size: int) -> tuple[tuple[Pooling, ...], bool]:
    """Modes in the order of concatenation, and whether the prompt's tokens are pooled."""
    config = json_object(path)
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
    config = json_object(path) if path.is_file() else {}
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
    config = json_object(file)
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if inputs != width or not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1:
        raise CheckpointError(
            f"{file}: in_features {inputs!r} and out_features {outputs!r} do not fit vectors of "
            f"{width} numbers"
        )
    check_values(config, file, _SENTENCE_TO_SENTENCE | {"use_residual": (False,)})
    value = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(value).rpartition(".")[2]
    if not str(value).startswith("torch.nn.") or name not in ACTIVATIONS:
        raise CheckpointError(
            f'{file}: "activation_function" is {value!r}; accepted, of torch.nn: '
            + ", ".join(ACTIVATIONS)
        )
    return DenseModule(path, width, outputs, bool(config.get("bias", True)), ACTIVATIONS[name])
