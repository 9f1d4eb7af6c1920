"""Keys, origins and networks, as settings say them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from packhorse.client_values import parse_keys, parse_networks, parse_origins, read_keys
from packhorse.config import Config, as_dict, load_config, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import Hardware
from packhorse.network_options import NetworkOptions

MACHINE = Hardware(2, frozenset())


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_a_key_is_a_digest_from_the_moment_it_is_read() -> None:
    assert parse_keys("one,two, one") == (digest("one"), digest("two"))
    assert parse_keys(digest("one")) == (digest("one"),)
    config = load_config({}, {"API_KEY": "one,two"})
    assert config.network.api_key == (digest("one"), digest("two"))
    assert as_dict(config)["network"]["api_key"] == "***"


@pytest.mark.parametrize("text", ["", "a,", "a b", "schlüssel", "a\nb"])
def test_what_cannot_be_a_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"api_key": text})
    assert "***" in str(caught.value)
    assert not text or text not in str(caught.value)


def test_keys_of_a_file_are_added(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\none\n\n  two  \n{digest('three')}\n")
    options = NetworkOptions(api_key=parse_keys("zero"), api_key_file=str(file))
    keys = resolve(Config(network=options), MACHINE).network.api_key
    assert keys == tuple(map(digest, ("zero", "one", "two", "three")))


@pytest.mark.parametrize("content", ["", "# none\n", "one,two\n", "a b\n", "schlüssel\n", None])
def test_a_file_without_usable_keys_never_means_an_open_server(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="--api-key-file") as caught:
        read_keys(file)
    assert "schlüssel" not in str(caught.value)


def test_origins_are_as_browsers_send_them() -> None:
    assert parse_origins("https://App.Example/, http://[::1]:3000") == (
        "https://app.example",
        "http://[::1]:3000",
    )
    assert parse_origins("*") == ("*",)
    for wrong in ("app.example", "https://app.example/path", "https://a:b", "", "*.example"):
        with pytest.raises(ValueError, match="origin"):
            parse_origins(wrong)


def test_networks() -> None:
    assert parse_networks("10.1.2.3/8,::1, unix") == ("10.0.0.0/8", "::1/128", "unix")
    with pytest.raises(ValueError, match="example"):
        parse_networks("proxy.example")


def test_lists_in_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[network]\ncors_allow_origin = ["https://a.example", "https://b.example"]\n')
    origins = load_config({}, {}, file).network.cors_allow_origin
    assert origins == ("https://a.example", "https://b.example")
    file.write_text("[server]\nport = [1, 2]\n")
    with pytest.raises(ConfigError, match="single value"):
        load_config({}, {}, file)
