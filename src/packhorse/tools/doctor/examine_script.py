"""Examine a user's script in a process of its own, started and awaited here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from packhorse.errors import ConfigError, PackhorseError
from packhorse.tools.doctor.examinee import Assignment, Report
from packhorse.tools.doctor.findings import Examination
from packhorse.tools.doctor.script import Place


class ScriptError(PackhorseError):
    """The script raised, ended or took too long."""


def examine_script(
    place: Place, calls: str, texts: list[str], seconds: float, patience: float
) -> Examination:
    """The examination.

    seconds   of one call with all texts; a slower program is given fewer
    patience  after so many seconds it is given up

    Raises ConfigError where the callable is not there, ScriptError where it fails.
    """
    with TemporaryDirectory(prefix="packhorse-doctor-") as folder:
        report = Path(folder) / "report.json"
        assignment = Assignment(str(place.file), place.name, calls, texts, seconds, str(report))
        process = subprocess.Popen(
            [sys.executable, "-m", "packhorse.tools.doctor.examinee"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
        )
        try:
            process.communicate(msgspec.json.encode(assignment), patience)
        except subprocess.TimeoutExpired:
            raise ScriptError(
                f"{place} was not done after {patience:.0f} s: give it fewer or shorter --texts, "
                "or a longer --timeout"
            ) from None
        finally:
            process.kill()
            process.wait()
        if not report.exists():
            raise ScriptError(f"{place} ended its process with status {process.returncode}")
        return _examination(msgspec.json.decode(report.read_bytes(), type=Report))


def _examination(report: Report) -> Examination:
    if report.examination is not None:
        return report.examination
    raise (ConfigError if report.is_setup else ScriptError)(report.fault or "")
