"""TLS: the certificate, and taking up a renewed one without a restart."""

from __future__ import annotations

import os
import ssl

from packhorse.errors import ConfigError
from packhorse.network_options import NetworkOptions

HANDSHAKE_SECONDS = 10.0
"""A client that has not shaken hands by then is cut off."""


class Tls:
    """The server's side; ``context`` is for the connections.

    Raises ConfigError for files that cannot be used.
    """

    def __init__(self, options: NetworkOptions) -> None:
        if options.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        self._certificate = options.ssl_certfile
        self._key = options.ssl_keyfile or options.ssl_certfile
        self._password = options.ssl_keyfile_password
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._written = self._times()
        self._load()
        if options.ssl_ca_certs is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            try:
                self.context.load_verify_locations(options.ssl_ca_certs)
            except OSError as error:
                raise ConfigError(f"--ssl-ca-certs {options.ssl_ca_certs}: {error}") from None

    def refresh(self) -> bool:
        """Read the files again if they have changed; new connections get what is in them.

        Returns whether it did. Raises ConfigError for files that cannot be used: then the old
        certificate stays.
        """
        written = self._times()
        if written == self._written:
            return False
        self._written = written
        self._load()
        return True

    def _times(self) -> list[float]:
        try:
            return [os.stat(file).st_mtime for file in (self._certificate, self._key)]
        except OSError:  # while it is replaced; one that is missing at the start fails to load
            return []

    def _load(self) -> None:
        try:
            # Into a context that is thrown away first: a certificate whose key does not fit would
            # be kept in this one, and the key that fitted the old one would not.
            self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load_into(self.context)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"--ssl-certfile {self._certificate}, --ssl-keyfile {self._key}: {reason}"
            ) from None

    def _load_into(self, context: ssl.SSLContext) -> None:
        # With a password of None OpenSSL would ask for one on the terminal.
        context.load_cert_chain(self._certificate, self._key, password=lambda: self._password or "")


def tls_of(options: NetworkOptions) -> Tls | None:
    """What the settings ask for: None for plain HTTP. Raises ConfigError."""
    asked = (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)
    return None if asked == (None, None, None) else Tls(options)
