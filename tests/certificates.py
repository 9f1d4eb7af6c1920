"""Certificates for tests, made with OpenSSL's command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """Two PEM files, valid for localhost and 127.0.0.1."""

    certificate: Path
    key: Path


def make_certificate(folder: Path, name: str = "server", password: str = "") -> Certificate:
    """A new one that is its own root. Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    command += ["-out", str(made.certificate), "-keyout", str(made.key)]
    subprocess.run(command, check=True, capture_output=True)
    return made
