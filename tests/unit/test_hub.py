"""packhorse.hub against a local folder and an imitation of the hub's few endpoints."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

from packhorse.errors import CheckpointError
from packhorse.hub import commit_of, fetch

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "vocab.txt": b"[PAD]",
    "sentencepiece.bpe.model": b"pieces",
    "model.safetensors": b"weights",
    "model-00001-of-00002.safetensors": b"half of them",
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "pytorch_model.bin": b"a pickle",
    "training_args.bin": b"another",
    "rust_model.ot": b"and another",
    "README.md": b"# words",
    "onnx/config.json": b"{}",
    "checkpoint-500/model.safetensors": b"earlier weights",
}
WANTED = set(list(FILES)[:7])


@dataclass
class Hub:
    """What the imitation serves, and what it was asked.

    repos  name to revision to (commit, files)
    token  what it insists on, if anything
    """

    url: str = ""
    repos: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = field(default_factory=dict)
    token: str | None = None
    gated: bool = False
    broken: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def add(self, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        """Serve a revision of a model, by branch and by commit. Returns the commit."""
        commit = hashlib.sha1(f"{name} {revision}".encode()).hexdigest()
        for reference in (revision, commit):
            self.repos.setdefault(name, {})[reference] = (commit, files)
        return commit

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path: metadata, the tree, or a file."""
        if self.broken:
            return 500, {}, b""
        if self.token is not None and token is not None and token != f"Bearer {self.token}":
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        at = next(at for at, part in enumerate(parts) if part in ("revision", "tree", "resolve"))
        name, kind, revision, *file = "/".join(parts[:at]), *parts[at:]
        if name not in self.repos or (self.token is not None and token is None):
            return 401 if self.token else 404, {"X-Error-Code": "RepoNotFound"}, b""
        if revision not in self.repos[name]:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        commit, files = self.repos[name][revision]
        if kind == "revision":
            siblings = [{"rfilename": file} for file in files]
            body = {"id": name, "sha": commit, "siblings": siblings, "private": False}
            return 200, {}, json.dumps(body).encode()
        if kind == "tree":
            return 200, {}, json.dumps([entry(*file) for file in files.items()]).encode()
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        content = files["/".join(file)]
        return 200, {"ETag": f'"{blob_id(content)}"', "X-Repo-Commit": commit}, content


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty imitation that the hub's client is pointed to, with none of the user's settings."""
    state = Hub()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, token = urlsplit(self.path).path, self.headers.get("Authorization")
            state.requests.append((self.command, path, token))
            status, headers, body = state.answer(path, token)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        point_client(monkeypatch, state.url)
        yield state
        huggingface_hub.close_session()
        server.shutdown()
        thread.join()


def point_client(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Do what HF_ENDPOINT does, which the client reads when it is imported."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    huggingface_hub.close_session()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_local_folder_is_returned_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(tmp_path) == tmp_path
    assert fetch(str(tmp_path)) == tmp_path
    assert commit_of(tmp_path) is None
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert fetch("owner/name") == Path("owner/name")  # a folder goes before a name on the hub
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch("~/owner") == tmp_path / "owner"


@pytest.mark.parametrize(
    "model_id",
    ["./model", "../model", "/no/such/model", "a/b/c", "~/none", "C:\\model", "model/", "", "a b"],
)
def test_path_without_folder_is_an_error_that_names_it(model_id: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist") as caught:
        fetch(model_id)
    assert repr(model_id) in str(caught.value)


def test_path_objects_are_never_names_on_the_hub() -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        fetch(Path("owner/name"))


def test_file_instead_of_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="is a file"):
        fetch(tmp_path / "model.safetensors")


def test_snapshot_holds_what_is_read_and_no_pickle(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add("owner/name", FILES)
    folder = fetch("owner/name", cache_dir=tmp_path)
    assert files_in(folder) == WANTED
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert commit_of(folder) == commit
    assert all(token is None for _, _, token in hub.requests)


def test_revision_is_honoured(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", {"config.json": b"1"})
    commit = hub.add("owner/name", {"config.json": b"2"}, revision="v2")
    for revision in ("v2", commit):
        folder = fetch("owner/name", revision=revision, cache_dir=tmp_path)
        assert (folder / "config.json").read_bytes() == b"2"
    folder = fetch("owner/name", cache_dir=tmp_path)
    assert (folder / "config.json").read_bytes() == b"1"


def test_unknown_revision_is_an_error_that_names_it(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    with pytest.raises(CheckpointError, match=r"'v9'.*branch, a tag or a full commit"):
        fetch("owner/name", revision="v9", cache_dir=tmp_path)


def test_token_is_sent_with_every_request(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    hub.token = "hf_secret"
    assert files_in(fetch("owner/name", token="hf_secret", cache_dir=tmp_path)) == WANTED
    assert {token for _, _, token in hub.requests} == {"Bearer hf_secret"}


def test_token_is_found_in_the_environment(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("owner/name", FILES)
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert files_in(fetch("owner/name", cache_dir=tmp_path)) == WANTED


def test_private_model_without_token_asks_for_one(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    hub.token = "hf_secret"
    with pytest.raises(CheckpointError, match="if it is private, give a token"):
        fetch("owner/name", cache_dir=tmp_path)


def test_wrong_token_is_said_to_be_wrong_and_never_shown(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    hub.token = "hf_secret"
    with pytest.raises(CheckpointError, match="refused the token") as caught:
        fetch("owner/name", token="hf_wrong", cache_dir=tmp_path)
    assert "hf_wrong" not in str(caught.value)


def test_gated_model_says_where_to_ask(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    hub.gated = True
    with pytest.raises(CheckpointError, match=r"gated: ask for access at http.*/owner/name"):
        fetch("owner/name", cache_dir=tmp_path)


@pytest.mark.parametrize("model_id", ["owner/other", "other"])
def test_unknown_model_is_neither_folder_nor_model(hub: Hub, tmp_path: Path, model_id: str) -> None:
    hub.repos["owner/name"] = {}
    with pytest.raises(CheckpointError, match="neither a folder here nor a model on http"):
        fetch(model_id, cache_dir=tmp_path)


def test_name_that_the_hub_forbids_is_an_error(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"could not be fetched.*HFValidationError"):
        fetch("owner/a--b", cache_dir=tmp_path)
    assert not hub.requests


def test_offline_uses_the_cache_and_asks_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    folder = fetch("owner/name", cache_dir=tmp_path)
    hub.requests.clear()
    assert fetch("owner/name", offline=True, cache_dir=tmp_path) == folder
    assert not hub.requests


def test_offline_without_cache_says_to_download_once(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    with pytest.raises(CheckpointError, match="start once without --offline"):
        fetch("owner/name", offline=True, cache_dir=tmp_path)
    assert not hub.requests


def test_offline_by_environment(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("owner/name", FILES)
    folder = fetch("owner/name", cache_dir=tmp_path)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("owner/name", cache_dir=tmp_path) == folder
    with pytest.raises(CheckpointError, match="start once without --offline"):
        fetch("owner/name", revision="v2", cache_dir=tmp_path)
    assert not hub.requests


def test_cache_serves_while_the_hub_is_down(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    folder = fetch("owner/name", cache_dir=tmp_path)
    hub.broken = True
    assert fetch("owner/name", cache_dir=tmp_path) == folder
    with pytest.raises(CheckpointError, match=r"did not deliver it .*500"):
        fetch("owner/other", cache_dir=tmp_path)


def test_no_network_says_what_to_check(hub: Hub, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    with pytest.MonkeyPatch.context() as patch:
        point_client(patch, f"http://127.0.0.1:{port}")
        with pytest.raises(CheckpointError, match=r"did not deliver it .*check the network"):
            fetch("owner/name", cache_dir=tmp_path)


def test_cache_that_cannot_be_written_is_an_error(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="could not be fetched"):
        fetch("owner/name", cache_dir=tmp_path / "file")


def test_environment_names_the_endpoint_and_torch_stays_out(hub: Hub, tmp_path: Path) -> None:
    hub.add("owner/name", FILES)
    code = """if True:
        import sys
        from packhorse.hub import fetch
        assert "huggingface_hub" not in sys.modules
        print(fetch("owner/name"))
        assert "torch" not in sys.modules and "transformers" not in sys.modules
    """
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environment.pop(name, None)
    run = [sys.executable, "-c", code]
    printed = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    assert files_in(Path(printed.stdout.strip())) == WANTED
    assert hub.requests
