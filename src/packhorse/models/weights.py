"""The tensors of a checkpoint: streamed from its files, held against what is expected.

A tensor is mapped into memory, not read: it costs nothing until it is used.
Nothing is ever filled with random numbers. A tensor that is missing, is not
expected, or has another shape stops the start with its name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from packhorse.checkpoint import Checkpoint, read_json
from packhorse.errors import CheckpointError
from packhorse.models.pickled import PICKLED, PICKLED_FILES, unpickled

logger = logging.getLogger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What weights may be stored in. Integers would be quantised weights, which are not served."""

LEGACY_NAMES = {
    f"{norm}.{old}": f"{norm}.{new}"
    for norm in ("LayerNorm", "layer_norm")
    for old, new in (("gamma", "weight"), ("beta", "bias"))
}
"""How names of LayerNorms ended in checkpoints converted from TensorFlow in 2018 and 2019."""

WRAPPERS = {"module.": "DataParallel or DistributedDataParallel", "_orig_mod.": "torch.compile"}
"""Prefix that a training wrapper puts before every name, to the wrapper."""

MODERN_HEAD = "lm_predictions."
"""DeBERTa's head of a masked language model, as it was released."""

LISTED = 10
"""How many names a message lists before it only counts."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def load_tensors(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    *,
    prefix: str,
    ignorable: Sequence[str] = (),
    optional: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """Every expected tensor by its name, in the checkpoint's type, mapped into memory.

    expected   name to shape; trunk names without the family's prefix
               ("embeddings.word_embeddings.weight"), heads as they are ("classifier.weight")
    prefix     the family's prefix without the dot ("bert"), which a file's names may have or lack
    ignorable  patterns (as in ``fnmatch``) of names, prefix removed, that may be there unread
    optional   as ``expected``, of tensors that may be missing

    The tensors are views of the files: copy or convert them before a file can
    change, and never write to them.

    Raises CheckpointError that names every fault: tensors missing, unexpected,
    there twice, of another shape, or not of a floating type.
    """
    found: dict[str, Tensor] = {}
    faults = _Faults()
    ignored = []
    shapes = dict(expected) | dict(optional or {})
    for stored_name, tensor in iterate(checkpoint):
        name = plain_name(stored_name, prefix)
        if name in found:
            faults.repeated.append(stored_name)
        elif name in shapes:
            found[name] = tensor
            faults.check(name, tensor, shapes[name])
        elif any(fnmatchcase(name, pattern) for pattern in ignorable):
            ignored.append(stored_name)
        else:
            faults.unexpected.append(stored_name)
    faults.missing += [name for name in expected if name not in found]
    faults.modern_head = any(plain_name(n, prefix).startswith(MODERN_HEAD) for n in ignored)
    if faults:
        raise CheckpointError(faults.message(checkpoint))
    if ignored:
        logger.info("%s: not read, as nothing here uses them: %s", checkpoint.folder, some(ignored))
    _log_non_finite(checkpoint, found)
    return found


def iterate(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of everything in the checkpoint's files, one after the other.

    Names are those of the file, tensors on the CPU and mapped into memory.

    Raises CheckpointError, with the file's name, when one is missing, broken,
    or does not hold what the index says.
    """
    for path, listed in _files(checkpoint.transformer, checkpoint.allow_pickle).items():
        if path.suffix == PICKLED:
            tensors = unpickled(path)
            if listed is not None:
                _check_listing(path, tensors, listed, PICKLED_FILES[1])
            yield from tensors.items()
            continue
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                names = list(file.keys())
                if listed is not None:
                    _check_listing(path, names, listed, INDEX_FILE)
                for name in names:
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_broken(path, error)) from error


def plain_name(stored_name: str, prefix: str) -> str:
    """A file's name of a tensor without the family's prefix, and in today's spelling."""
    name = stored_name.removeprefix(f"{prefix}.")
    for ending, modern in LEGACY_NAMES.items():
        if name.endswith(ending):
            return name.removesuffix(ending) + modern
    return name


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED} more"


@dataclass(slots=True)
class _Faults:
    """What is wrong with the tensors of a checkpoint, by kind. True if anything is."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)
    other_labels: int | None = None  # rows of a head that are not as many as the labels
    modern_head: bool = False  # whether DeBERTa's head is there under its other names

    def __bool__(self) -> bool:
        return any((self.missing, self.unexpected, self.repeated, self.misshapen, self.mistyped))

    def check(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Note a tensor whose shape or type is not as expected."""
        if tensor.dtype not in DTYPES:
            self.mistyped.append(f"{name} ({str(tensor.dtype).removeprefix('torch.')})")
        if tuple(tensor.shape) != shape:
            self.misshapen.append(f"{name} {tuple(tensor.shape)} instead of {shape}")
            has_rows = tensor.ndim > 0 and tuple(tensor.shape[1:]) == shape[1:]
            if name.startswith("classifier.") and has_rows:
                self.other_labels = tensor.shape[0]

    def message(self, checkpoint: Checkpoint) -> str:
        """One line a kind of fault, and what may be behind it."""
        lines = [f"{checkpoint.folder}: the weights do not fit config.json"]
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "there twice, with and without the prefix or in two spellings": self.repeated,
            "of another shape": self.misshapen,
            "not of a floating type (quantised weights are not served)": self.mistyped,
        }
        for kind, names in kinds.items():
            if names:
                count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
                lines.append(f"{count} {kind}: {some(names)}")
        return "\n  ".join(lines + self._hints(checkpoint))

    def _hints(self, checkpoint: Checkpoint) -> list[str]:
        hints = []
        for wrapper, by in WRAPPERS.items():
            if any(name.startswith(wrapper) for name in self.unexpected):
                hints.append(
                    f"the names start with {wrapper!r}, the mark of {by}: "
                    "save the model inside the wrapper, or rename the tensors"
                )
        if self.modern_head and any(name.startswith("cls.") for name in self.missing):
            hints.append(
                f'the head is there as {MODERN_HEAD}*: say "legacy": false in config.json, as '
                "Transformers wants it too"
            )
        if self.other_labels is not None:
            hints.append(
                f"the head has {self.other_labels} rows, but config.json names "
                f"{len(checkpoint.labels)} labels: correct id2label or num_labels there"
            )
        if any(name.startswith("classifier.") for name in self.missing):
            hints.append(
                "there is no trained classification head: random numbers would give random scores"
            )
        return hints


def _files(folder: Path, allow_pickle: bool) -> dict[Path, frozenset[str] | None]:
    """The files of the weights, to the names that the index lists for each (None without index).

    A single file goes before shards, and safetensors before pickle, as in Transformers.
    Raises CheckpointError when there is none, or a shard is missing.
    """
    kinds = [(SINGLE_FILE, INDEX_FILE)] + ([PICKLED_FILES] if allow_pickle else [])
    for single, shards in kinds:
        if (folder / single).is_file():
            return {folder / single: None}
        if (folder / shards).is_file():
            return _shards(folder, folder / shards)
    raise CheckpointError(_no_weights(folder))


def _shards(folder: Path, index: Path) -> dict[Path, frozenset[str] | None]:
    """The files that an index names. Raises CheckpointError when one is missing."""
    names_by_shard = _names_by_shard(read_json(index).get("weight_map"), index)
    missing = [shard for shard in names_by_shard if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: shards that {index.name} lists are missing: {some(missing)}"
        )
    return {folder / shard: frozenset(names) for shard, names in names_by_shard.items()}


def _names_by_shard(weight_map: Any, index: Path) -> dict[str, list[str]]:
    """The index turned around: file name to the names of its tensors."""
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{index}: "weight_map" must be an object: tensor name to file name')
    names_by_shard: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        # A path could lead out of the folder.
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise CheckpointError(f'{index}: "weight_map" gives {shard!r}; accepted: a file name')
        names_by_shard.setdefault(shard, []).append(name)
    return names_by_shard


def _check_listing(path: Path, names: Iterable[str], listed: frozenset[str], index: str) -> None:
    """Raise unless a shard holds exactly the tensors that the file ``index`` lists for it."""
    absent, unlisted = sorted(listed.difference(names)), sorted(set(names) - listed)
    if absent:
        raise CheckpointError(f"{path} lacks tensors that {index} lists for it: {some(absent)}")
    if unlisted:
        raise CheckpointError(
            f"{path} holds tensors that {index} does not list for it: {some(unlisted)}"
        )


def _no_weights(folder: Path) -> str:
    """The message for a folder without safetensors files."""
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    found = (
        f" but {some(pickles)}, which is pickle: give --allow-pickle (allow_pickle=True) to have "
        "its tensors read, and nothing else of it"
        if pickles
        else ""
    )
    return (
        f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}{found}; if the weights are in "
        "another format, convert them with Transformers: AutoModelForSequenceClassification"
        ".from_pretrained(…).save_pretrained(…)"
    )


def _broken(path: Path, error: Exception) -> str:
    """The message for a safetensors file that cannot be read."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        is_pointer = False
    if is_pointer:
        return f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` in its folder"
    return f"{path} cannot be read as safetensors, is it complete? ({error})"


def _log_non_finite(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
    """Warn of NaN and infinity among the weights.

    They are let through: what they spoil is refused where it is served, row by row.
    """
    names = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if names:
        logger.warning(
            "%s: NaN or infinite numbers in %d tensors: %s",
            checkpoint.folder,
            len(names),
            some(names),
        )


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; one pass without a copy, as the extremes of a NaN are NaN."""
    low, high = tensor.aminmax()
    return math.isfinite(low) and math.isfinite(high)
