"""The documentation as a site: ``python scripts/docs_site.py`` writes ``site/`` from ``docs/``.

Pages link to other parts of the repository, which a site does not have: pictures are taken along,
other links become their words. Links between pages are left, and the build is strict about them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS, STAGED = ROOT / "docs", ROOT / "build/docs"
PICTURES = (".svg", ".png")


def stage() -> None:
    """Copy ``docs/`` to ``build/docs/``, with no link that leaves it."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(DOCS, STAGED)
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        (STAGED / page.relative_to(DOCS)).write_text(_within(text, page), encoding="utf-8")


def _within(text: str, page: Path) -> str:
    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        file = (page.parent / target.partition("#")[0]).resolve()
        if "://" in target or target.startswith("#") or file.is_relative_to(DOCS):
            return match[0]
        if file.suffix not in PICTURES:
            return words
        (STAGED / "pictures").mkdir(exist_ok=True)
        shutil.copy(file, STAGED / "pictures" / file.name)
        up = "../" * (len(page.relative_to(DOCS).parts) - 1)
        return f"{mark}[{words}]({up}pictures/{file.name})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


if __name__ == "__main__":
    stage()
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT
    )
    sys.exit(built.returncode)
