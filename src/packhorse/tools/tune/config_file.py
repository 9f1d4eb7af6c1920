"""The settings that were found, as a file that ``packhorse serve --config`` reads."""

from __future__ import annotations

import json
import re

from packhorse.config import options
from packhorse.tools.bench.units import digits
from packhorse.tools.tune.results import Settings, Tuning

_PLAIN = re.compile(r"true|false|(0|[1-9][0-9]*)([.][0-9]+)?")
"""What TOML reads without quotes; of strings JSON's escapes are TOML's, too."""


def config_text(tuning: Tuning) -> str:
    """TOML: fixed settings and those that were found; how fast they were is in its comments."""
    settings = tuning.fixed | tuning.best.settings
    lines = [f"# {line}" for line in _about(tuning)]
    section = None
    for name_of_section, option in options():
        if option.name not in settings or option.metadata["secret"]:
            continue
        if name_of_section != section:
            section = name_of_section
            lines += ["", f"[{section}]"]
        lines.append(f"{option.name} = {_toml(settings, option.name)}")
    return "\n".join(lines) + "\n"


def _about(tuning: Tuning) -> list[str]:
    best = tuning.best.best(tuning.p99_ms)
    assert best is not None
    limit = "" if tuning.p99_ms is None else f", within a p99 of {digits(tuning.p99_ms)} ms"
    return [
        f"Found by packhorse tune for {tuning.model}{limit}:",
        f"{digits(best.texts_per_second)} texts/s with {best.connections} connections, "
        f"p50 {digits(best.p50_ms)} ms, p99 {digits(best.p99_ms)} ms.",
        "packhorse serve --config THIS_FILE",
    ]


def _toml(settings: Settings, name: str) -> str:
    """A number or a truth as such, anything else in quotes: names too that look like numbers."""
    value = settings[name]
    is_name = name in {option.name for _, option in options() if option.metadata["parse"] is str}
    if _PLAIN.fullmatch(value) and not is_name:
        return value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
