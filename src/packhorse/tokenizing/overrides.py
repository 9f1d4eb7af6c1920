"""What tokenizer_config.json says otherwise than tokenizer.json, and which of the two holds.

Transformers lets the config of a tokenizer that has a class of its own, such as BertTokenizer,
overrule some settings of its tokenizer.json, and models were trained through Transformers. Only
what the config says is put in place of the other; for what it leaves out tokenizer.json holds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packhorse.checkpoint import read_json
from packhorse.config_values import refusal
from packhorse.tokenizing.safe_cuts import Direction

logger = logging.getLogger(__name__)

FILE = "tokenizer_config.json"

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take all from tokenizer.json."""

_OWN = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}
"""Kind of a part of tokenizer.json to the keys of the config that overrule keys of it."""

_KEYS = {wanted for keys in _OWN.values() for wanted in keys}


def overridden(text: str, folder: Path) -> str:
    """The text of tokenizer.json, with what ``FILE`` in the folder says otherwise in its place.

    What cannot be read is returned as it is: whoever loads it says what is wrong.
    Raises CheckpointError for a value that the config must not have.
    """
    config = _config(folder)
    if config.get("tokenizer_class") in _GENERIC or not _KEYS & config.keys():
        return text
    try:
        tokenizer = json.loads(text)
    except (ValueError, RecursionError):
        return text
    changes = [
        f"{wanted}: {json.dumps(config[wanted])}"
        for part in _parts(tokenizer)
        for wanted, key in _OWN.get(str(part.get("type")), {}).items()
        if _changed(part, key, config, wanted, folder / FILE)
    ]
    if not changes:
        return text
    logger.warning(
        "%s overrules tokenizer.json, as it does in Transformers: %s",
        folder / FILE,
        ", ".join(changes),
    )
    return json.dumps(tokenizer, ensure_ascii=False)


def truncation_side(folder: Path) -> Direction:
    """The end that is cut off where a request does not say: the config's, else the right.

    Raises CheckpointError for another one.
    """
    side = _config(folder).get("truncation_side")
    if side is None or side == "right":
        return "right"
    if side == "left":
        return "left"
    raise refusal(folder / FILE, "truncation_side", side, '"right" or "left"')


def _config(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    return read_json(path) if path.exists() else {}


def _parts(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Its normalizer and its pre-tokenizer, or the parts of those that are sequences."""
    if not isinstance(tokenizer, dict):
        return
    for name, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        part = tokenizer.get(name)
        if not isinstance(part, dict):
            continue
        steps = part.get(inner) if part.get("type") == "Sequence" else [part]
        if isinstance(steps, list):
            yield from (step for step in steps if isinstance(step, dict))


def _changed(
    part: dict[str, Any], key: str, config: dict[str, Any], wanted: str, path: Path
) -> bool:
    """Put the config's value there, and say whether it is another one."""
    value = config.get(wanted)
    if wanted not in config or (value is None and wanted != "strip_accents"):
        return False
    if not isinstance(value, bool | None):
        raise refusal(path, wanted, value, "true or false")
    if part.get(key) is value:
        return False
    part[key] = value
    return True
