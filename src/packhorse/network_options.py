"""The settings that say who may ask and by which ways: a part of the table of config.py."""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.client_values import parse_keys, parse_networks, parse_origins
from packhorse.option import boolean, option, positive


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Keys, origins, proxies, sockets."""

    api_key: tuple[str, ...] = option(
        (),
        "Keys that are let in, separated by commas or the flag repeated; without one, everybody "
        "is. `sha256:` and a key's digest in hex may stand for the key.",
        parse_keys,
        secret=True,
        tei=True,
        repeatable=True,
    )
    api_key_file: str | None = option(None, "File with more keys, one a line.")
    guard_health: bool = option(False, "Health routes need a key, too.", boolean)
    guard_metrics: bool = option(False, "`/metrics` and `/stats` need a key, too.", boolean)
    cors_allow_origin: tuple[str, ...] = option(
        (),
        "Origins whose web pages may read answers, or `*`; several as with keys.",
        parse_origins,
        tei=True,
        repeatable=True,
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Networks (10.0.0.0/8) of proxies whose X-Forwarded-For is believed; `unix` for those that "
        "come by the Unix socket.",
        parse_networks,
        repeatable=True,
    )
    uds: str | None = option(
        None, "Path of a Unix socket to listen on instead of an address and a port."
    )
    ssl_certfile: str | None = option(
        None, "Certificate in PEM, with those between it and the root's: HTTPS instead of HTTP."
    )
    ssl_keyfile: str | None = option(
        None, "Its private key in PEM, if that is not in the same file."
    )
    ssl_keyfile_password: str | None = option(None, "Password of that key.", secret=True)
    ssl_ca_certs: str | None = option(
        None, "Certificates in PEM; clients must show one that they have signed."
    )
    max_connections: int = option(
        10_000,
        "Most connections of clients, in all processes; more are refused with 503 and closed.",
        positive,
    )
    gzip: bool = option(
        False, "Compress large answers for clients that accept it; costs CPU time.", boolean
    )
