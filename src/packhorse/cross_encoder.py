"""What a folder says of its cross-encoder: what follows the logit, prompt, the length limit.

sentence-transformers 2 and 3 wrote ``sbert_ce_default_activation_function`` into config.json,
4 and 5 an object ``sentence_transformers``; since 5.4 there is a modules.json, and what is said
stands in config_sentence_transformers.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packhorse.errors import CheckpointError
from packhorse.sentence_files import (
    PROMPTS_FILE,
    folder_settings,
    listed_modules,
    prompts_of,
    transformer_settings,
)
from packhorse.tasks import Task

Activation = Literal["sigmoid", "identity"]


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """activation  what a score goes through
    prompt      what goes before each query
    max_length  the longest sequence in tokens, special tokens included; None: not said
    """

    activation: Activation = "sigmoid"
    prompt: str = ""
    max_length: int | None = None

    def prompted(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """The pairs as they are tokenised: (query, document)."""
        if not self.prompt:
            return list(pairs)
        return [(self.prompt + query, document) for query, document in pairs]


def cross_encoder(folder: Path, config: Mapping[str, Any], path: Path) -> CrossEncoder:
    """What the folder, and the config that ``path`` holds, say of it.

    The sigmoid where they say nothing, as in sentence-transformers' CrossEncoder.
    Raises CheckpointError for what is not served.
    """
    own = folder_settings(folder)
    # The modules of a folder that was saved as another kind of model are not read there either.
    if not listed_modules(folder) or own.get("model_type") != "CrossEncoder":
        return CrossEncoder(_activation(_of_config(config), path))
    settings, prompts = transformer_settings(folder, Task.RERANK), prompts_of(folder)
    if settings.lowercase:
        raise CheckpointError(f'{folder}: "do_lower_case" is not served of a cross-encoder')
    value, place = own.get("activation_fn"), folder / PROMPTS_FILE
    if value is None:
        value, place = _of_config(config), path
    return CrossEncoder(
        _activation(value, place),
        "" if prompts.default_name is None else prompts.texts[prompts.default_name],
        settings.max_length,
    )


def _of_config(config: Mapping[str, Any]) -> Any:
    """How versions before 5.4 said it."""
    own = config.get("sentence_transformers")
    value = own.get("activation_fn") if isinstance(own, dict) else None
    return config.get("sbert_ce_default_activation_function") if value is None else value


def _activation(value: Any, path: Path) -> Activation:
    if value is None:
        return "sigmoid"
    module, _, name = str(value).rpartition(".")
    if module.startswith("torch.nn"):
        if name == "Sigmoid":
            return "sigmoid"
        if name == "Identity":
            return "identity"
    raise CheckpointError(
        f"{path}: the activation {value!r} of sentence-transformers is not served; "
        "served: torch.nn.Sigmoid and torch.nn.Identity"
    )
