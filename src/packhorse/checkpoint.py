"""A checkpoint on disk: which files it has, what its config says. Reads JSON only, never weights.

Both towers stand on this: the front ends need limits, labels and the
tokenizer's files; the engine needs shapes and the weights' files. It imports
neither torch nor an HTTP server.

Config keys mean what they mean to Transformers, defaults included. What it
would compute otherwise than we do is refused here, by key and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packhorse import fallback
from packhorse.architecture import Architecture as Architecture
from packhorse.architecture import architecture_of
from packhorse.config_values import read_json as read_json
from packhorse.config_values import refusal, stated_length
from packhorse.cross_encoder import CrossEncoder, cross_encoder
from packhorse.errors import CheckpointError
from packhorse.families import FAMILIES, OTHER_CLASSES, Family, served
from packhorse.hub import commit_of, fetch
from packhorse.labels import ProblemType as ProblemType
from packhorse.labels import labels_of, problem_type_of
from packhorse.sentence import Pooling, SentenceModules, sentence_modules, sparse_modules
from packhorse.sentence_files import task_of_folder, transformer_folder
from packhorse.tasks import DOES, Task

DEMO_MODEL = Path(__file__).parent / "demo_model"
"""The sentiment classifier that is served when no model is named."""

DEMO_MODEL_ID = "packhorse-demo"
"""What the demo model is called in answers and logs."""


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
    ``cross_encoder`` is what RERANK puts before a query, and what its scores go through.
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
    cross_encoder: CrossEncoder = field(default_factory=CrossEncoder)
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
    architecture = architecture_of(config, family, path)
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
    scores = cross_encoder(folder, config, path) if task is Task.RERANK else CrossEncoder()
    limit = scores.max_length if sentence is None else sentence.max_length
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
        max_length=_max_length(transformer / "tokenizer_config.json", architecture, limit),
        task=task,
        sentence=sentence,
        cross_encoder=scores,
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


def _max_length(path: Path, architecture: Architecture, limit: int | None) -> int:
    """The longest sequence served: what has positions, or less if the tokenizer's config says so.

    ``limit``, that of sentence-transformers' own config, goes before the tokenizer's, as there.
    """
    if limit is not None:
        return min(limit, architecture.max_positions)
    stated = stated_length(path)
    return min(stated or architecture.max_positions, architecture.max_positions)


def _check_tokenizer_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; where only a vocabulary is there, Transformers writes it: "
            f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained(…)"
        )
