"""Numbers as arguments: what is none of them is told in argparse's way, never as a traceback."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.errors import ConfigError
from packhorse.tools.argument_types import above_zero, at_least_zero, positive
from packhorse.tools.output_files import check_outputs


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (positive, {"1": 1, "20": 20}, ["0", "-1", "1.5", "x", "", "٣"]),
        (above_zero, {"0.5": 0.5, "3": 3}, ["0", "-1", "nan", "inf", "1e12", "x", ""]),
        (at_least_zero, {"0": 0, "0.5": 0.5}, ["-0.1", "nan", "inf", "x", ""]),
    ],
)
def test_a_number_is_in_its_range_or_refused(
    kind: Callable[[str], float], good: dict[str, float], bad: list[str]
) -> None:
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(ArgumentTypeError, match="expected a"):
            kind(text)


def test_folders_of_outputs_are_made_and_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    check_outputs(None, tmp_path / "new/folder/a.json")
    assert (tmp_path / "new/folder").is_dir()
    assert not (tmp_path / "new/folder/a.json").exists()
    (tmp_path / "file").write_text("kept")
    check_outputs(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(ConfigError, match="is a folder"):
        check_outputs(tmp_path / "new")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_outputs(tmp_path / "file/a.json")
