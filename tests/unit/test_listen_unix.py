"""The Unix socket that clients connect to: whose it is, and what is left of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from packhorse.config import Config
from packhorse.errors import ConfigError
from packhorse.network_options import NetworkOptions
from packhorse.server.listen import bind_unix, bound, url_of


def test_a_socket_for_owner_and_group_that_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    config = Config(network=NetworkOptions(uds=str(path)))
    with bound(config) as sock:
        assert url_of(sock) == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        with pytest.raises(ConfigError, match="another process listens"), bound(config):
            pass
        sock.close()  # as the supervisor does when it ends
    assert not path.exists()


def test_a_dead_servers_socket_is_replaced_and_another_servers_is_left(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    bind_unix(str(path)).close()
    assert path.exists()
    with bound(Config(network=NetworkOptions(uds=str(path)))) as sock:
        kept = os.open(path, os.O_PATH)  # so that its inode's number is not used again
        sock.close()
        other = bind_unix(str(path))  # started while the first one ends
    assert path.exists()
    other.close()
    os.close(kept)


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("precious")
    for wrong in (path, tmp_path / "missing" / "http.sock", tmp_path / ("long" * 40)):
        with pytest.raises(ConfigError, match="--uds"):
            bind_unix(str(wrong))
    assert path.read_text() == "precious"
