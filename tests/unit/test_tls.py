"""Certificates: which are refused, and how a renewed one is taken up."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from packhorse.errors import ConfigError
from packhorse.network_options import NetworkOptions
from packhorse.server.tls import Tls, tls_of
from tests.certificates import make_certificate


def shown_name(tls: Tls, root: Path) -> str:
    """The common name of the certificate that a client gets."""
    client = ssl.create_default_context(cafile=str(root))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = tls.context.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client_end.getpeercert()
    assert certificate is not None
    ((_, name),) = certificate["subject"][0]  # type: ignore[misc]
    return str(name)


def test_plain_http_unless_asked_otherwise() -> None:
    assert tls_of(NetworkOptions()) is None
    with pytest.raises(ConfigError, match="--ssl-certfile"):
        tls_of(NetworkOptions(ssl_keyfile="key.pem"))


def test_a_password_is_never_asked_for_on_the_terminal(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, password="a-password")
    options = {"ssl_certfile": str(made.certificate), "ssl_keyfile": str(made.key)}
    for password in (None, "wrong"):
        with pytest.raises(ConfigError, match="--ssl-keyfile") as caught:
            Tls(NetworkOptions(**options, ssl_keyfile_password=password))  # type: ignore[arg-type]
        assert "wrong" not in str(caught.value)
    tls = Tls(NetworkOptions(**options, ssl_keyfile_password="a-password"))  # type: ignore[arg-type]
    assert shown_name(tls, made.certificate) == "server"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "some.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"some\.pem"):
        tls_of(NetworkOptions(ssl_certfile=str(file)))


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(tmp_path: Path) -> None:
    old = make_certificate(tmp_path)
    tls = Tls(NetworkOptions(ssl_certfile=str(old.certificate), ssl_keyfile=str(old.key)))
    assert tls.refresh() is False
    new = make_certificate(tmp_path, "renewed")
    old.certificate.write_text("half of a certifi")
    os.utime(old.certificate, (1, 1))
    with pytest.raises(ConfigError):
        tls.refresh()
    os.replace(new.key, old.key)
    os.replace(new.certificate, old.certificate)
    assert tls.refresh() is True
    assert shown_name(tls, old.certificate) == "renewed"


def test_a_certificate_whose_key_is_not_there_yet_leaves_the_old_pair_in_use(
    tmp_path: Path,
) -> None:
    old = make_certificate(tmp_path)
    root = tmp_path / "root.pem"
    root.write_bytes(old.certificate.read_bytes())
    tls = Tls(NetworkOptions(ssl_certfile=str(old.certificate), ssl_keyfile=str(old.key)))
    new = make_certificate(tmp_path, "renewed")
    os.replace(new.certificate, old.certificate)
    os.utime(old.certificate, (1, 1))
    with pytest.raises(ConfigError):
        tls.refresh()
    assert shown_name(tls, root) == "server"
