"""packhorse.config: where a value comes from, what is refused, and what stays secret."""

from __future__ import annotations

import argparse
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packhorse.config import (
    AUTO,
    SECTIONS,
    Config,
    EngineOptions,
    ModelOptions,
    ServerOptions,
    as_dict,
    flag_of,
    load_config,
    options,
    parse_value,
    resolve,
    tokenizer_choice,
    variables_of,
)
from packhorse.errors import ConfigError
from packhorse.hardware import Gpu, Hardware
from packhorse.tools.option_flags import add_settings, read_settings

CPU_ONLY = Hardware(cpus=6, cpu_features=frozenset())
TWO_GPUS = Hardware(cpus=16, cpu_features=frozenset(), gpus=(Gpu("H200", (9, 0)),) * 2)


def load(
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    return load_config(flags or {}, environment or {}, file)


def toml(folder: Path, text: str) -> Path:
    path = folder / "packhorse.toml"
    path.write_text(text)
    return path


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    file = toml(tmp_path, "[server]\nport = 3\n")
    environment = {"PACKHORSE_PORT": "2"}
    assert load({"port": "1"}, environment, file).server.port == 1
    assert load({}, environment, file).server.port == 2
    assert load({}, {}, file).server.port == 3
    assert load().server.port == 8000


def test_our_variable_goes_before_the_one_of_text_embeddings_inference() -> None:
    assert load(environment={"PORT": "5", "PACKHORSE_PORT": "4"}).server.port == 4
    assert load(environment={"PORT": "5"}).server.port == 5


def test_hostname_alone_is_not_read_since_shells_set_it() -> None:
    assert load(environment={"HOSTNAME": "a-container"}).server.hostname == "127.0.0.1"
    assert load(environment={"PACKHORSE_HOSTNAME": "::1"}).server.hostname == "::1"


def test_settings_of_ours_alone_have_no_bare_variable() -> None:
    assert load(environment={"DEVICE": "cuda", "THREADS": "3"}) == Config()


@pytest.mark.parametrize("scheme", ["tcp", "udp", "sctp"])
def test_the_address_that_kubernetes_sets_is_no_port_of_ours(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = {
        "PACKHORSE_PORT": f"{scheme}://10.43.1.2:8080",
        "PACKHORSE_SERVICE_PORT": "8080",
        "PACKHORSE_PORT_8080_TCP_ADDR": "10.43.1.2",
    }
    assert load_config({}, service).server.port == 8000
    assert "PACKHORSE_PORT is " in caplog.text
    assert load_config({}, service | {"PORT": "81"}).server.port == 81
    with pytest.raises(ConfigError, match="PORT: 'tcp"):
        load_config({}, {"PORT": "tcp://10.43.1.2:8080"})  # nobody sets that for us


def test_blanks_around_a_variable_are_not_of_its_value() -> None:
    given = {"PACKHORSE_PORT": " 81\r\n", "HF_TOKEN": "secret\n", "MODEL_ID": " \t"}
    config = load_config({}, given)
    assert (config.server.port, config.model.hf_token, config.model.model_id) == (
        81,
        "secret",
        None,
    )


def test_an_empty_variable_counts_as_none() -> None:
    assert load(environment={"PACKHORSE_PORT": "", "MODEL_ID": ""}) == Config()


@pytest.mark.parametrize("form", ["port = 7\n", "[server]\nport = 7\n", 'port = "7"\n'])
def test_sections_of_the_file_only_group(tmp_path: Path, form: str) -> None:
    assert load(file=toml(tmp_path, form)).server.port == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 7\n", "'prot' is not a setting"),
        ("[server]\nprot = 7\n", r"'prot' in \[server\] is not a setting"),
        ("[model]\nport = 7\n", r"'port' in \[model\] is not a setting"),
        ("port = [7]\n", "'port' must be a single value"),
        ("[model.model_id]\na = 1\n", "'model_id' must be a single value"),
        ("port = \n", "config file .*packhorse.toml: Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(file=toml(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: .*No such file"):
        load(file=tmp_path / "no.toml")


@pytest.mark.parametrize("text", ["true", "True", "1", "yes"])
def test_ways_to_say_true(text: str) -> None:
    assert load({"offline": text}).model.offline is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "no"])
def test_ways_to_say_false(text: str) -> None:
    assert load({"auto_truncate": text}).server.auto_truncate is False


def test_a_boolean_of_the_file(tmp_path: Path) -> None:
    assert load(file=toml(tmp_path, "offline = true\n")).model.offline is True


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("port", "65536", "--port: '65536' is not valid: expected a port from 0 to 65535"),
        ("port", "-1", "expected a port"),
        ("port", "http", "expected a port"),
        ("port", "٨٠", "expected a port"),  # digits, but not ones to write a port with
        ("offline", "maybe", "expected true or false"),
        ("threads", "0", "expected a whole number of at least 1"),
        ("threads", "1.5", "expected a whole number"),
        ("threads", "many", "expected a whole number"),
        ("max_batch_time", "0", "expected a number above 0"),
        ("max_batch_time", "nan", "expected a number above 0"),
        ("max_batch_time", "inf", "expected a number above 0"),
        ("max_batch_time", "slow", "expected a number above 0"),
        ("dtype", "int4", "--dtype: 'int4' is not one of auto, float32, float16, bfloat16, int8"),
        ("tokenizer", "slow", "is not one of auto, nanotoken, gigatoken, tokenizers"),
        ("log_level", "loud", "is not one of debug, info"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_accepted(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load({name: text})


def test_the_message_names_where_the_value_came_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="environment variable PORT: 'x'"):
        load(environment={"PORT": "x"})
    with pytest.raises(ConfigError, match=r"packhorse\.toml: port: 'x'"):
        load(file=toml(tmp_path, 'port = "x"\n'))


def test_a_secret_is_never_shown() -> None:
    config = load({"hf_token": "hf_secret"})
    assert config.model.hf_token == "hf_secret"
    assert as_dict(config)["model"]["hf_token"] == "***"
    assert "hf_secret" not in repr(as_dict(config))
    assert as_dict(load())["model"]["hf_token"] is None


def test_a_secret_that_is_wrong_is_not_quoted() -> None:
    def no_secret(text: str) -> str:
        raise ValueError("expected another")

    field = next(field for _, field in options() if field.name == "hf_token")
    metadata = dict(field.metadata) | {"parse": no_secret}
    fake: Any = argparse.Namespace(name=field.name, metadata=metadata)
    with pytest.raises(ConfigError, match=r"--hf-token: \*\*\* is not valid: expected another"):
        parse_value(fake, "hf_secret", "--hf-token")


def test_as_dict_has_every_setting_by_section() -> None:
    shown = as_dict(Config())
    assert list(shown) == list(SECTIONS)
    assert [(section, name) for section in shown for name in shown[section]] == [
        (section, field.name) for section, field in options()
    ]


def test_every_setting_has_help_and_names_that_are_its_own() -> None:
    flags = [flag_of(field) for _, field in options()]
    variables = [name for _, field in options() for name in variables_of(field)]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    assert all(field.metadata["help"].endswith(".") for _, field in options())


def test_every_default_is_a_value_that_is_accepted() -> None:
    for _, field in options():
        if field.default not in (None, ()):
            text = str(field.default).lower() if field.default is not AUTO else AUTO
            text = ",".join(field.default) if isinstance(field.default, tuple) else text
            assert parse_value(field, text, "default") == field.default


def settings(*argv: str) -> Config:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_settings(parser, SECTIONS)
    return read_settings(parser.parse_args(argv))


def test_every_setting_can_be_given_as_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, field in options():
        for variable in variables_of(field):
            monkeypatch.delenv(variable, raising=False)
    values = {
        "device": "cpu",
        "hostname": "::1",
        "hf_token": "t",
        "log_level": "error",
        "without": "graphs",
        "cors_allow_origin": "*",
        "trusted_proxies": "::1",
        "dedup": "off",
        "standby": "off",
        "otlp_endpoint": "http://localhost:4318",
    }
    for section, field in options():
        choices = field.metadata["choices"]
        text = values.get(field.name) or (choices[-1] if choices else "1")
        expected = parse_value(field, text, "test")
        assert expected != field.default or field.name in ("tokenization_workers", "auto_truncate")
        given = settings(flag_of(field), text)
        kind = getattr(Config(), section)
        assert given == replace(Config(), **{section: replace(kind, **{field.name: expected})})


def test_a_switch_alone_means_true_and_has_an_opposite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACKHORSE_OFFLINE", raising=False)
    assert settings("--offline").model.offline is True
    assert settings("--no-offline").model.offline is False
    assert settings("--offline", "false").model.offline is False
    monkeypatch.setenv("PACKHORSE_OFFLINE", "true")
    assert settings("--no-offline").model.offline is False


def autos(config: Config) -> list[str]:
    shown = as_dict(config)
    return [name for section in shown for name in shown[section] if shown[section][name] == AUTO]


def test_resolve_decides_every_auto_but_what_the_checkpoint_or_timing_decides() -> None:
    for hardware in (CPU_ONLY, TWO_GPUS):
        timed = ["max_batch_tokens"] if hardware.gpus else ["max_batch_time"]
        own = ["task", "pooling", "dtype", "tokenizer"]
        assert autos(resolve(Config(), hardware)) == [*own, *timed]


def test_resolve_keeps_what_was_chosen_and_changes_nothing_the_second_time() -> None:
    chosen = load({"threads": "3", "max_batch_tokens": "77", "front_ends": "5"})
    once = resolve(chosen, CPU_ONLY)
    assert (once.engine.threads, once.engine.max_batch_tokens) == (3, 77)
    assert once.server.front_ends == 5
    assert resolve(once, CPU_ONLY) == once


def test_threads_are_the_cores_of_the_quota() -> None:
    assert resolve(Config(), CPU_ONLY).engine.threads == 6


def test_auto_takes_a_gpu_if_there_is_one_and_the_cpu_else() -> None:
    assert resolve(Config(), TWO_GPUS).model.device == "cuda:0"
    assert resolve(Config(), CPU_ONLY).model.device == "cpu"


@pytest.mark.parametrize(
    ("asked", "decided"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")]
)
def test_a_device_that_is_there(asked: str, decided: str) -> None:
    assert resolve(load({"device": asked}), TWO_GPUS).model.device == decided


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:9"])
def test_a_gpu_that_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match=rf"--device {asked}: .* 0 usable NVIDIA GPUs; use"):
        resolve(load({"device": asked}), CPU_ONLY)


def test_the_drivers_complaint_is_passed_on() -> None:
    hardware = replace(CPU_ONLY, gpu_fault="the CUDA driver answers cuInit with error 803")
    with pytest.raises(ConfigError, match=r"\(the CUDA driver answers cuInit with error 803\)"):
        resolve(load({"device": "cuda"}), hardware)


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "0", "mps"])
def test_what_is_no_device_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match="is not one of auto, cpu, cuda, cuda:N"):
        resolve(load({"device": asked}), TWO_GPUS)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Config(engine=EngineOptions(without=("graph",))), "without: 'graph' .* not one of first"),
        (
            Config(engine=EngineOptions(without="graphs")),  # type: ignore[arg-type]
            r"without: 'graphs' is not valid: expected \('graphs',\)",
        ),
        (Config(engine=EngineOptions(max_batch_tokens=-5)), "max_batch_tokens: '-5' is not valid"),
        (Config(engine=EngineOptions(max_batch_time=-3)), "max_batch_time: '-3' is not valid"),
        (Config(engine=EngineOptions(threads=2.5)), "threads: '2.5' .* a whole number"),  # type: ignore[arg-type]
        (Config(engine=EngineOptions(threads="2")), "threads: '2' is not valid: expected 2"),
        (Config(engine=EngineOptions(threads=True)), "threads: 'true' is not valid"),
        (Config(server=ServerOptions(port=70000)), "port: '70000' is not valid: expected a port"),
        (
            Config(model=ModelOptions(offline="no")),  # type: ignore[arg-type]
            "offline: 'no' is not valid: expected False",
        ),
        (Config(model=ModelOptions(dtype="int4")), "dtype: 'int4' is not one of auto"),
    ],
)
def test_a_wrong_value_that_is_set_in_code_is_refused(config: Config, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(config, CPU_ONLY)


def test_a_wrong_secret_that_is_set_in_code_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"hf_token: \*\*\* is not valid") as caught:
        resolve(Config(model=ModelOptions(hf_token=b"hf_s")), CPU_ONLY)  # type: ignore[arg-type]
    assert "hf_s" not in str(caught.value)


def test_code_can_leave_batches_without_a_bound_in_time() -> None:
    config = Config(engine=EngineOptions(max_batch_time=math.inf, without=("graphs", "overlap")))
    assert resolve(config, CPU_ONLY).engine.max_batch_time == math.inf


def test_auto_says_once_why_it_does_not_take_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    hardware = replace(CPU_ONLY, gpu_fault="the CUDA driver answers cuInit with error 803")
    with caplog.at_level(logging.WARNING):
        resolve(resolve(Config(), hardware), hardware)
        resolve(load({"device": "cpu"}), hardware)
        resolve(Config(), CPU_ONLY)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "takes the CPU: the CUDA driver answers cuInit with error 803" in record.getMessage()


def test_the_fast_tokenizer_can_be_switched_off() -> None:
    assert tokenizer_choice(load({"tokenizer": "nanotoken"})) == "nanotoken"
    assert tokenizer_choice(load({"without": "overlap,fast-tokenizer"})) == "tokenizers"


def test_flags_with_several_values_may_be_repeated() -> None:
    given = settings("--cors-allow-origin", "https://a.b", "--cors-allow-origin", "https://c.d")
    assert given.network.cors_allow_origin == ("https://a.b", "https://c.d")
    assert settings("--api-key", "a", "--api-key", "b") == settings("--api-key", "a,b")
    assert settings("--without", "dedup", "--without", "overlap").engine.without == (
        "dedup",
        "overlap",
    )
