"""The Dockerfiles, read as a linter would: what they copy exists, and the images are modest."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from packhorse.config import options, variables_of

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy").glob("Dockerfile.*"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instruction and arguments, continuations joined, comments left out."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(words[0], words[1]) for line in lines if (words := line.split(None, 1))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_is_there_and_in_the_context(file: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    copied = [
        source
        for name, words in instructions(file)
        if name == "COPY" and "--from" not in words
        for source in words.split()[:-1]
    ]
    assert "pyproject.toml" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] in copied
    extras = re.findall(r"/src\[(\w+)\]", file.read_text(encoding="utf-8"))
    assert set(extras) <= set(project["optional-dependencies"])


def test_the_cpu_build_of_torch_is_one_that_the_package_keeps() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(one for one in project["dependencies"] if one.startswith("torch"))
    given = (ROOT / "deploy/Dockerfile.cpu").read_text(encoding="utf-8")
    assert re.findall(r"'(torch\b.*?)' --index-url \S+/cpu ", given) == [wanted]
    exact = re.search(r"^TORCH \?= torch==([\d.]+)$", (ROOT / "Makefile").read_text(), re.M)
    assert exact
    assert Version(exact[1]) in SpecifierSet(wanted.removeprefix("torch"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_image_is_small_and_not_root(file: Path) -> None:
    found = instructions(file)
    bases = [words for name, words in found if name == "FROM"]
    assert len(bases) == 2  # what is needed to build stays behind
    assert all("-slim" in base and ":latest" not in base for base in bases)
    last = found[max(place for place, (name, _) in enumerate(found) if name == "FROM") :]
    user = next(words for name, words in last if name == "USER")
    assert int(user) > 0  # a number, so that Kubernetes can check it
    for name, words in found:
        if name == "RUN":
            assert "pip install" not in words or words.count("pip install") == words.count(
                "--no-cache-dir"
            )
            assert "apt-get install" not in words or "rm -rf /var/lib/apt/lists" in words


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_probed_and_takes_flags(file: Path) -> None:
    given = dict(instructions(file))
    assert "/health'" in given["HEALTHCHECK"]
    json.loads(given["HEALTHCHECK"].partition("CMD ")[2])
    words = json.loads(given["ENTRYPOINT"])
    assert words[:2] == ["packhorse", "serve"]
    assert words[words.index("--port") + 1] == given["EXPOSE"]


def test_the_variable_of_the_deployment_page_exists() -> None:
    known = {name for _, setting in options() for name in variables_of(setting)}
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    named = re.findall(r"-e (\w+)=", page)
    assert named
    assert set(named) <= known
