"""packhorse.cli: commands, exit codes, and a start that imports nothing heavy."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from packhorse import __version__, cli
from packhorse.config import Config, flag_of, options
from packhorse.errors import ConfigError, InternalError
from packhorse.tools.unknown_flags import INSTEAD


class Probe(ModuleType):
    """A command that does what a test says."""

    def __init__(self, behave: Any) -> None:
        super().__init__("probe")
        self.behave = behave

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int)

    def run(self, arguments: argparse.Namespace) -> Any:
        return self.behave(arguments)


def run_probe(monkeypatch: pytest.MonkeyPatch, behave: Any, *argv: str) -> int:
    monkeypatch.setitem(sys.modules, "probe", Probe(behave))
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("probe", "try something", "probe"),))
    return cli.main(["probe", *argv])


def raising(error: BaseException) -> Any:
    def behave(_: argparse.Namespace) -> int:
        raise error

    return behave


def usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"packhorse {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(command.name in shown and command.summary in shown for command in cli.COMMANDS)


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "classify" in capsys.readouterr().err


def test_every_command_can_be_loaded_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        assert command.name in help_of(command.name, capsys)


def test_every_setting_is_in_the_help_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    words = re.split(r"[\s,=\[\]]+", help_of("serve", capsys))
    for _, field in options():
        assert flag_of(field) in words
        assert f"PACKHORSE_{field.name.upper()}." in words or (
            f"PACKHORSE_{field.name.upper()}" in words
        )


def test_every_argument_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        command.load().add_arguments(parser)
        assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("argv", [["sing"], ["serve", "--prot", "80"], ["serve", "--por", "80"]])
def test_unknown_words_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "packhorse" in usage_error(argv, capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--prometheus-port 9000 --hostname ::1",
            "--prometheus-port: metrics are on the main port",
        ),
        ("--prometheus-port=9000", "--prometheus-port: metrics are on the main port"),
        ("--disable-spans --max-num-seqs 8", "leave it out; --max-num-seqs: --max-batch-requests"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag\n"),
    ],
)
def test_flags_of_other_servers_are_refused_with_what_to_do(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["serve", *words.split()])
    assert told in capsys.readouterr().err


def test_no_flag_that_is_there_is_told_to_be_missing() -> None:
    there = {flag for _, f in options() for flag in (flag_of(f), *f.metadata["also"])}
    assert not there & INSTEAD.keys()


def test_other_spellings_of_flags_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--host", "0.0.0.0", "-p", "0", "--hf-api-token", "t"]
    _, config = serve(monkeypatch, *words)
    assert (config.server.hostname, config.server.port) == ("0.0.0.0", 0)
    assert config.model.hf_token == "t"


def test_the_commands_own_arguments_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_probe(monkeypatch, lambda arguments: arguments.number, "--number", "7") == 7


def test_a_setup_error_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_probe(monkeypatch, raising(ConfigError("this is\n wrong"))) == 2
    assert capsys.readouterr() == ("", "packhorse: error: this is wrong\n")


def test_another_error_of_ours_is_one_line_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_probe(monkeypatch, raising(InternalError("the device failed"))) == 1
    assert capsys.readouterr().err == "packhorse: error: the device failed\n"


def test_a_full_disk_is_one_line_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(28, "No space left on device", "out.csv")
    assert run_probe(monkeypatch, raising(error)) == 1
    assert capsys.readouterr().err == "packhorse: error: No space left on device: out.csv\n"


def test_an_interruption_is_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert run_probe(monkeypatch, raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "packhorse: interrupted\n"


def test_an_interruption_does_not_wait_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    monkeypatch.setattr(os, "_exit", codes.append)
    run_probe(monkeypatch, raising(KeyboardInterrupt()))
    assert codes == [130]


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "packhorse.cli", "info", "--json"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("argv", [["--help"], ["classify", "--help"], ["serve", "--help"]])
def test_help_imports_neither_torch_nor_numpy(argv: list[str]) -> None:
    program = (
        "import sys, contextlib, io\n"
        "from packhorse import cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    cli.main({argv})\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'tokenizers', 'starlette', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def serve(monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[int, Config]:
    """Run ``packhorse serve`` with a supervisor that only notes what it was given."""
    import packhorse

    given: list[Config] = []
    supervisor = ModuleType("packhorse.supervisor")
    vars(supervisor)["run"] = lambda config, http: given.append(config) or 5
    monkeypatch.setitem(sys.modules, "packhorse.supervisor", supervisor)
    monkeypatch.setitem(vars(packhorse), "supervisor", supervisor)
    code = cli.main(["serve", *argv])
    return code, given[0] if given else Config()


def test_serve_hands_the_settings_to_the_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[server]\nport = 1\nhostname = '::1'\n")
    code, config = serve(monkeypatch, "a/model", "--port", "0", "--config", str(file))
    assert code == 5
    assert config.model.model_id == "a/model"
    assert (config.server.port, config.server.hostname) == (0, "::1")


def test_the_model_can_be_named_in_one_way_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(monkeypatch, "a/b", "--model-id", "a/b")[1].model.model_id == "a/b"
    assert serve(monkeypatch, "a/b", "--model-id", "c/d")[0] == 2
    assert "both a/b and --model-id c/d" in capsys.readouterr().err


def test_info_shows_machine_model_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--device", "cpu", "--threads", "3"]) == 0
    shown = capsys.readouterr().out
    for words in (f"packhorse +{__version__}", "model +packhorse-demo", "NEGATIVE, POSITIVE"):
        assert re.search(words, shown)
    assert re.search(r"limit +512 tokens", shown)
    assert re.search(r"threads +3\b", shown)


def test_info_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert cli.main(["info", "--json", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert set(shown) == {"machine", "model", "settings"}
    assert shown["machine"]["cpus"] >= 1
    assert shown["machine"]["libraries"]["torch"] is not None
    assert shown["model"]["labels"] == ["NEGATIVE", "POSITIVE"]
    assert shown["model"]["files"]["config.json"] > 0
    assert shown["settings"]["model"]["hf_token"] == "***"
    assert "hf_secret" not in text


def test_info_of_a_model_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_info_does_not_import_torch() -> None:
    program = (
        "import sys; from packhorse import cli; assert cli.main(['info']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)


def test_help_imports_nothing_but_the_standard_library() -> None:
    """So it is there at once: numpy alone would take as long as all of it."""
    program = """
        import sys
        before = set(sys.modules)  # what the installation loads at every start
        from packhorse import cli
        for words in (["--help"], ["serve", "--help"]):
            try:
                cli.main(words)
            except SystemExit:
                pass
        names = {name.partition(".")[0] for name in sys.modules if name not in before}
        sys.exit(" ".join(sorted(names - sys.stdlib_module_names - {"packhorse"})) or None)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
