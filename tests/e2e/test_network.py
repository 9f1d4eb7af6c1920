"""Ways to the server besides plain TCP, and limits of connections, on real processes."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.certificates import make_certificate
from tests.e2e.service import Service, service, until

pytestmark = pytest.mark.long

REQUEST = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"


def test_https(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with service(ssl_certfile=made.certificate, ssl_keyfile=made.key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(made.certificate))
        with httpx.Client(base_url=server.url, verify=trust, timeout=20) as client:
            for inputs in ("a", [["a"]] * 3000):
                answer = client.post("/predict", json={"inputs": inputs})
                assert answer.status_code == 200
            assert len(answer.json()) == 3000
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health", timeout=20)  # a root that it does not know
        plain = server.url.replace("https", "http")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(plain + "/health", timeout=20)
        host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
        with socket.create_connection((host, port)):  # shakes no hands, and disturbs nobody
            assert httpx.get(server.url + "/health", verify=trust, timeout=20).status_code == 200
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((host, port)) as sock,
            context.wrap_socket(sock) as secure,
        ):
            assert secure.version() == "TLSv1.2"


def test_clients_without_a_certificate_are_refused_where_one_is_wanted(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "client")
    with service(
        ssl_certfile=made.certificate, ssl_keyfile=made.key, ssl_ca_certs=other.certificate
    ) as server:
        trust = ssl.create_default_context(cafile=str(made.certificate))
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url + "/health", verify=trust, timeout=20)
        trust.load_cert_chain(other.certificate, other.key)
        assert httpx.get(server.url + "/health", verify=trust, timeout=20).status_code == 200


def test_a_certificate_that_cannot_be_used_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    made = Service(ssl_certfile=tmp_path / "missing.pem")
    try:
        made.start()
        assert made.wait() == 1
        assert "missing.pem" in made.log
    finally:
        made.close()


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with service(uds=path, access_log="true", trusted_proxies="unix") as server:
        assert server.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://x", timeout=20) as client:
            assert client.post("/predict", json={"inputs": "a"}).status_code == 200
            client.get("/health", headers={"x-forwarded-for": "1.2.3.4"})
        until(lambda: "addr:1.2.3.4" in server.log)
        assert "POST predict 200" in server.log
        assert "addr:unix" in server.log
        assert server.stop() == 0
        assert not path.exists()


def connected(port: int) -> socket.socket | None:
    """A connection that was answered and stays open; None where it was over the limit."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(REQUEST)
    if sock.recv(65536).startswith(b"HTTP/1.1 200"):
        return sock
    sock.close()
    return None


def test_connections_over_the_limit_are_told_so_and_closed() -> None:
    with service(max_connections=3) as server, ExitStack() as closing:
        port = int(server.url.rpartition(":")[2])
        kept: list[socket.socket] = []

        def one_more() -> bool:
            """Those who looked whether the service is ready may not have been closed yet."""
            if sock := connected(port):
                kept.append(closing.enter_context(sock))
            return len(kept) == 3

        until(one_more)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as over:
            over.sendall(REQUEST)
            answer = b"".join(iter(lambda: over.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"--max-connections" in answer
            assert b"connection: close" in answer.lower()
            assert b"retry-after" in answer
        for sock in kept:  # those within the limit are not disturbed
            sock.sendall(REQUEST)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        kept.pop().close()
        until(lambda: httpx.get(server.url + "/health").status_code == 200)
