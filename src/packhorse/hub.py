"""From a model's name to a folder: a local one as it is, or a snapshot of the hub's.

The hub's own environment variables hold: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_CACHE, HF_TOKEN.
Only files that are read are fetched, and no pickle unless that is allowed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from packhorse.errors import CheckpointError

FETCHED = (
    "*.json",  # config, tokenizer, vocabularies, the index of the shards
    "model*.safetensors",
    "[0-9]*/model*.safetensors",  # the modules of sentence-transformers
    "vocab*.txt",
    "merges.txt",
    "*.model",  # SentencePiece
)
PICKLED = ("pytorch_model*.bin", "[0-9]*/pytorch_model*.bin")
"""Fetched only where it is allowed, beside safetensors too if a model has both."""

NOT_FETCHED = ("[!0-9]*/*",)
"""Folders of a repository hold other formats and training states, with files of the same names.
Those that start with a number are modules of sentence-transformers: 0_Transformer, 1_Pooling."""

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def fetch(
    model_id: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
    allow_pickle: bool = False,
) -> Path:
    """The folder of a model, downloaded into the hub's cache if it is not there yet.

    model_id   a local folder, which is returned as it is, or the hub's ``owner/name``;
               a folder that exists goes before a name on the hub
    revision   branch, tag or commit on the hub; a local folder has none
    token      for private and gated models; None: what the hub's client finds by itself
    allow_pickle   fetch pytorch_model.bin too
    offline    never ask the hub, use what its cache holds

    Raises CheckpointError, which says what to do, for whatever goes wrong.
    """
    folder = _local_folder(model_id)
    if folder is not None:
        return folder
    # Takes 0.3 s, which a local folder need not wait for.
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(
            str(model_id),
            revision=revision,
            token=token or None,
            local_files_only=offline,
            cache_dir=cache_dir,
            allow_patterns=[*FETCHED, *(PICKLED if allow_pickle else ())],
            ignore_patterns=list(NOT_FETCHED),
        )
    # The client lets through its own errors, its HTTP library's and the disk's: no base is common.
    except Exception as error:
        reason = _reason(error, str(model_id), revision, offline)
        raise CheckpointError(reason) from error
    return Path(snapshot)


def commit_of(folder: Path) -> str | None:
    """The commit that a folder in the hub's cache is a snapshot of; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" else None


def _local_folder(model_id: str | Path) -> Path | None:
    """The local folder meant by ``model_id``, or None if it is a name on the hub.

    Raises CheckpointError when it can only be a path and no folder is there.
    """
    path = os.path.expanduser(model_id)
    if path and os.path.isdir(path):
        return Path(path)
    if isinstance(model_id, str) and _HUB_ID.fullmatch(model_id):
        return None
    what = "is a file" if os.path.exists(path) else "does not exist"
    raise CheckpointError(
        f"model {str(model_id)!r}: this folder {what}; give a folder that holds config.json, "
        "tokenizer.json and model.safetensors, or a name on the hub such as owner/name"
    )


def _reason(error: Exception, model_id: str, revision: str | None, offline: bool) -> str:
    """What went wrong with the download, and what to do about it."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    # Having looked into its cache in vain, the client hides the hub's answer behind that failure.
    told = error.__cause__ if isinstance(error.__cause__, errors.HfHubHTTPError) else error
    if isinstance(told, errors.GatedRepoError):
        return (
            f"model {model_id!r} is gated: ask for access at {endpoint}/{model_id}, "
            "then give a token that has it (--hf-token or HF_TOKEN)"
        )
    if isinstance(told, errors.RepositoryNotFoundError):
        return (
            f"model {model_id!r} is neither a folder here nor a model on {endpoint}; "
            "if it is private, give a token that may read it (--hf-token or HF_TOKEN)"
        )
    if isinstance(told, errors.RevisionNotFoundError):
        return (
            f"model {model_id!r} has no revision {revision!r} on {endpoint}: "
            "give a branch, a tag or a full commit hash (--revision)"
        )
    if isinstance(told, errors.HfHubHTTPError) and told.response.status_code in (401, 403):
        return (
            f"{endpoint} refused the token for model {model_id!r} "
            f"(status {told.response.status_code}): give one that may read it "
            "(--hf-token or HF_TOKEN)"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        wanted = f"model {model_id!r}, revision {revision or constants.DEFAULT_REVISION!r},"
        if offline or constants.HF_HUB_OFFLINE:
            return (
                f"{wanted} is not complete in the hub's cache, and offline nothing can be fetched: "
                "start once without --offline (and HF_HUB_OFFLINE), or give a local folder"
            )
        return (
            f"{wanted} is not complete in the hub's cache, and {endpoint} did not deliver it "
            f"({_first_line(error.__cause__ or error)}): check the network, the proxy and "
            "HF_ENDPOINT, or give a local folder"
        )
    return (
        f"model {model_id!r} could not be fetched from {endpoint} ({_first_line(error)}): "
        "try again, or give a local folder"
    )


def _first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
