"""A server of real processes for tests: started, looked at, broken and stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.fake_engine.sitecustomize import CONTROL_FILE
from tests.e2e.fake_runner.sitecustomize import CONTROL_FILE as DEVICE_FILE

_PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Else httpx reads all certificates of the system for each request, which takes 0.1 s."""

FAKE_ENGINE = Path(__file__).parent / "fake_engine"
FAKE_RUNNER = Path(__file__).parent / "fake_runner"

_SERVE = """
import sys
from packhorse.config import load_config
from packhorse.errors import SetupError
from packhorse.tools.serve import serve
try:
    status = serve(load_config(dict(word.split("=", 1) for word in sys.argv[1:]), {}))
except SetupError as error:
    sys.exit(f"packhorse: error: {error}")
sys.exit(status)
"""


class Service:
    """One server. Its engine is a fake, unless ``real``; see fake_engine for what ``control`` can.

    With ``fake_device`` the engine is real and only what is below it a fake: see fake_runner.

    The port is a free one, and the checkpoint the demo model unless settings say otherwise.
    """

    def __init__(
        self,
        real: bool = False,
        fake_device: bool = False,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """``prefix`` is a command that runs the server's."""
        self._prefix = prefix
        self._folder = tempfile.TemporaryDirectory(prefix="packhorse-test-")
        folder = Path(self._folder.name)
        self._control_file = folder / "control.json"
        self.log_file = folder / "log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PACKHORSE_")}
        if not real:
            fake, variable = (
                (FAKE_RUNNER, DEVICE_FILE) if fake_device else (FAKE_ENGINE, CONTROL_FILE)
            )
            path = os.pathsep.join(filter(None, [str(fake), inherited.get("PYTHONPATH")]))
            inherited |= {"PYTHONPATH": path, variable: str(self._control_file)}
        self._environment = inherited | (environment or {})
        self._settings = {"port": 0, "front_ends": 1, "standby": "off"} | settings
        self.url = ""
        self.process: subprocess.Popen[str] | None = None
        self.control()

    def control(self, **values: Any) -> None:
        """What the fake engine, or the fake device, does from now on."""
        new = self._control_file.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.rename(self._control_file)

    def start(self, wait: bool = True) -> Service:
        """Start; wait until it says that it serves, or has ended."""
        words = [f"{name}={value}" for name, value in self._settings.items()]
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [*self._prefix, sys.executable, "-c", _SERVE, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                text=True,
            )
        if wait:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()  # empty when it has ended
            self.url = line.split()[-1] if line else ""
        return self

    @property
    def log(self) -> str:
        """What all processes said on standard error."""
        return self.log_file.read_text()

    def children(self, title: str = "") -> list[int]:
        """Process ids of the children, or of those whose title contains these words."""
        assert self.process is not None
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if parent == self.process.pid and title in command:
                found.append(int(folder.name))
        return sorted(found)

    def child(self, title: str) -> int:
        """The one child whose title contains these words."""
        (found,) = self.children(title)
        return found

    def signal(self, number: int) -> None:
        """To the supervisor."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = 60) -> int:
        """Until it has ended; its exit status."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """End it and return the exit status; kills what does not end."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            children = self.children()
            self.process.kill()
            for child in children:
                _kill(child)
            status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def close(self) -> None:
        """Stop, and remove the files."""
        self.stop()
        self._folder.cleanup()

    def get(self, path: str, **options: Any) -> httpx.Response:
        """One request on a connection of its own."""
        return httpx.get(self.url + path, timeout=60, verify=_PLAIN, **options)

    def predict(self, inputs: Any, timeout: float = 60, **options: Any) -> httpx.Response:
        """One request on a connection of its own."""
        return httpx.post(
            self.url + "/predict",
            json={"inputs": inputs, **options},
            timeout=timeout,
            verify=_PLAIN,
        )

    def metric(self, name: str) -> float:
        """A sample of /metrics, by name and labels as written there, but without the model's."""
        for line in self.get("/metrics").text.splitlines():
            plain = re.sub(r'(?:,|(?<={))model="[^"]*"', "", line).replace("{}", "")
            if plain.startswith(name + " "):
                return float(line.split()[-1])
        raise KeyError(name)


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def service(**settings: Any) -> Iterator[Service]:
    """A server that has started, for the duration of a with block."""
    made = Service(**settings)
    try:
        yield made.start()
    finally:
        made.close()


def until(condition: Callable[[], object], seconds: float = 60) -> float:
    """Wait until the condition holds; returns how long that took, in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "waited in vain"
        time.sleep(0.02)
    return time.monotonic() - started
