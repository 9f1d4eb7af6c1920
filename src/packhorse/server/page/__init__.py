"""The live page: one HTML document, with its style and its script inside."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As Content-Security-Policy names what it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _read("page.css"), _read("page.js")

DOCUMENT = (
    _read("page.html").replace("/*page.css*/", _STYLE).replace("/*page.js*/", _SCRIPT)
).encode()
"""Joined when the process starts: whoever has the page needs no second request."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_digest(_SCRIPT)}",
        f"style-src {_digest(_STYLE)}",
        "connect-src 'self'",
        "img-src data:",  # its icon is empty, so that browsers ask for none
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Its Content-Security-Policy: its own script and style, requests to this server, nothing else."""
