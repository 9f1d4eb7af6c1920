"""The small parts of a front end: bodies, admission, the HTTP socket, back-off, logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import os
import signal
import socket
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from packhorse import child as children
from packhorse import logs
from packhorse.channel.board import Board
from packhorse.child import Child, Kind, described, environment_of
from packhorse.client_values import parse_keys
from packhorse.config import Config, EngineOptions, ModelOptions, tokenizer_choice
from packhorse.errors import (
    ConfigError,
    OverloadedError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    ValidationError,
)
from packhorse.launch import Launch, tell
from packhorse.metrics import INPUTS_IN_FLIGHT, TOKENS_IN_FLIGHT, words
from packhorse.network_options import NetworkOptions
from packhorse.server.admission import Admission
from packhorse.server.body import ClientGoneError, read_body
from packhorse.server.listen import bind, url_of
from packhorse.server.pending import Pending
from packhorse.suspects import MOST


def read(pieces: list[bytes], limit: int = 100, **headers: str) -> bytes:
    """The body that arrives in these pieces; an empty list is a client that hangs up."""
    messages = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ] or [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(read_body({"packhorse.headers": dict(raw)}, receive, limit))


def test_a_body_in_one_or_several_pieces() -> None:
    assert read([b"{}"]) == b"{}"
    assert read([b"{", b'"a":', b"1}"]) == b'{"a":1}'
    assert read([b""]) == b""


@pytest.mark.parametrize("pieces", [[b"x" * 101], [b"x" * 60, b"y" * 60, b"z"]])
def test_a_body_over_the_limit(pieces: list[bytes]) -> None:
    with pytest.raises(PayloadTooLargeError, match="100 bytes"):
        read(pieces)


def test_a_body_that_declares_to_be_over_the_limit_is_not_read() -> None:
    with pytest.raises(PayloadTooLargeError):
        read([], content_length="101")


def test_a_client_that_hangs_up() -> None:
    with pytest.raises(ClientGoneError):
        read([])


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            "application/json",
            "application/json;charset=utf-8",
            'Application/JSON; Charset="UTF-8"',
        ),
        "application/vnd.api+json",
    ],
)
def test_json_types_are_read(content_type: str) -> None:
    assert read([b"{}"], content_type=content_type) == b"{}"


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "application/json; charset=latin-1"},
        {"content_type": ""},
        {"content_encoding": "zstd"},
        {"content_encoding": "gzip, gzip"},
    ],
)
def test_other_types_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(UnsupportedMediaTypeError):
        read([b"{}"], **headers)


def test_admission_counts_all_front_ends() -> None:
    board = Board.create(3, words())
    one, other = (Admission(board, slot, limit=10, max_length=512) for slot in (1, 2))
    tokens = one.reserve(6, 600)
    assert tokens == 6 * 2 + 150
    with pytest.raises(OverloadedError, match="at most 10"):
        other.reserve(5, 5)
    other_tokens = other.reserve(4, 400)
    one.settle(tokens, 100, 600)
    assert board.total(INPUTS_IN_FLIGHT.first) == 10
    assert board.total(TOKENS_IN_FLIGHT.first) == 100 + other_tokens
    loop = asyncio.new_event_loop()
    first = Pending(["x"] * 6, 600, True, "right", tokens, loop.create_future())
    first.tokens = 100
    one.release(first)
    other.release(Pending(["x"] * 4, 400, True, "right", other_tokens, loop.create_future()))
    loop.close()
    assert board.total(INPUTS_IN_FLIGHT.first) == 0
    assert board.total(TOKENS_IN_FLIGHT.first) == 0
    other.reserve(10, 10)


def test_admission_refuses_for_good_what_never_fits() -> None:
    with pytest.raises(ValidationError, match="11 inputs"):
        Admission(Board.create(1, words()), 0, limit=10, max_length=512).reserve(11, 11)


def test_admission_learns_how_long_tokens_are() -> None:
    admission = Admission(Board.create(1, words()), 0, limit=10**6, max_length=512)
    assert admission.reserve(1, 4000) == 512  # an input is cut there
    for _ in range(100):
        admission.settle(0, 100, 100)  # a token for each character
    assert admission.reserve(2, 400) == pytest.approx(2 * 2 + 400 * 11000 / 14000, abs=1)


def test_a_dead_predecessors_inputs_are_forgotten() -> None:
    board = Board.create(2, words())
    Admission(board, 1, limit=10, max_length=512).reserve(10, 10)
    Admission(board, 1, limit=10, max_length=512).reserve(10, 10)


def test_a_taken_port_is_named() -> None:
    first = bind("127.0.0.1", 0)
    first.listen()
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"port {port} on 127\.0\.0\.1 is taken"):
        bind("127.0.0.1", port)
    first.close()
    bind("127.0.0.1", port).close()


def test_addresses_that_are_not_here() -> None:
    with pytest.raises(ConfigError, match="not an address of this machine"):
        bind("192.0.2.1", 0)
    with pytest.raises(ConfigError, match="--hostname"):
        bind("nowhere.invalid", 0)


def test_urls() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    if socket.has_ipv6:
        try:
            for hostname in ("::1", "[::1]"):
                with bind(hostname, 0) as sock:
                    assert url_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"
        except ConfigError:
            pytest.skip("this machine has no IPv6")


def launch() -> Launch:
    return Launch(
        parent=1,
        index=3,
        config=Config(),
        model_id="m",
        folder="/nowhere",
        revision=None,
        board_fd=0,
        slots=1,
        slot=0,
        listener_fd=0,
        status_fd=-1,
        engines=[],
    )


def test_a_child_that_never_was_ready_is_given_up() -> None:
    child = Child(Kind.ENGINE, launch())
    assert str(child) == "engine 3"
    assert child.given_up


def test_back_off_and_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(children._MODULES, Kind.FRONT_END, "bisect")  # ends at once
    child = Child(Kind.FRONT_END, launch())
    now = 1000.0
    waits = []
    for _ in range(children.STARTS_IN_A_ROW):
        child.was_ever_ready = True
        assert not child.given_up
        child.start()
        assert child.process is not None
        child.process.wait()
        child.ready_since = now
        child.bury(now + 0.5)
        waits.append(child.start_at - now - 0.5)
    assert waits == pytest.approx([0.0, 0.2, 1.0, 2.0, 2.0])
    assert child.given_up
    child.start()
    child.ready_since = now  # and it stays ready long enough
    child.bury(now + children.STEADY_SECONDS)
    assert not child.given_up


def test_what_was_ready_and_is_killed_is_started_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(children._MODULES, Kind.FRONT_END, "asyncio")  # waits for its input
    child = Child(Kind.FRONT_END, launch())
    for _ in range(2 * children.STARTS_IN_A_ROW):
        child.start()
        child.ready_since, child.was_ever_ready = 1000.0, True
        child.signal(signal.SIGKILL)
        assert child.bury(1000.1) == -signal.SIGKILL
        assert child.start_at == 1000.1
        assert not child.given_up


def test_what_is_killed_before_it_is_ready_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(children._MODULES, Kind.FRONT_END, "asyncio")
    child = Child(Kind.FRONT_END, launch())
    child.was_ever_ready = True
    for _ in range(children.STARTS_IN_A_ROW):
        assert not child.given_up
        child.start()
        child.signal(signal.SIGKILL)
        child.bury(1000.0)
    assert child.given_up


@pytest.mark.parametrize(
    ("without", "tokenizer", "wanted"),
    [
        ((), "auto", "auto"),
        (("overlap",), "nanotoken", "nanotoken"),
        (("fast-tokenizer",), "auto", "tokenizers"),
    ],
)
def test_the_fast_tokenizer_can_be_switched_off(
    without: tuple[str, ...], tokenizer: str, wanted: str
) -> None:
    engine, model = EngineOptions(without=without), ModelOptions(tokenizer=tokenizer)
    assert tokenizer_choice(Config(engine=engine, model=model)) == wanted


@pytest.mark.parametrize(
    ("status", "words"), [(0, "ended with status 0"), (-9, "was killed by SIGKILL"), (-999, "999")]
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert words in described(status)


def test_an_engine_is_told_of_no_key_and_no_password() -> None:
    network = NetworkOptions(api_key=parse_keys("secret"), ssl_keyfile_password="secret")
    common = replace(launch(), config=Config(network=network))
    assert common.for_front_end(0).config.network == network
    assert common.for_engine(0, "cpu", 5, -1).config.network == NetworkOptions()


def test_a_launch_crosses_as_it_is() -> None:
    sent = launch().for_engine(0, "cpu", 5, -1).reporting_to(7)
    pipe = io.BytesIO()
    tell(pipe, sent)
    assert msgspec.msgpack.decode(pipe.getvalue()[4:], type=Launch) == sent
    assert EngineOptions(max_batch_time=math.inf) == msgspec.msgpack.decode(
        msgspec.msgpack.encode(EngineOptions(max_batch_time=math.inf)), type=EngineOptions
    )


@pytest.mark.timeout(20)
def test_a_child_that_does_not_read_yet_can_be_told_of_all_suspects() -> None:
    marks = [(512, (1 << 64) - 1 - i) for i in range(MOST)]
    told = launch().suspecting(marks, marks)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe, os.fdopen(reading, "rb") as read:
        tell(pipe, told)
        (length,) = struct.unpack("!I", read.read(4))
        assert msgspec.msgpack.decode(read.read(length), type=Launch) == told


def test_logs_never_quote_an_exception_of_others() -> None:
    try:
        raise ValueError("a user's secret text")
    except ValueError as error:
        said = logs.describe(error)
    assert "secret" not in said
    assert "ValueError in test_logs_never_quote" in said
    assert "at most 1" in logs.describe(OverloadedError("at most 1"))


def test_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure("info", "front end 1", json_lines=True)
        logging.getLogger("x").info("hello %d", 1)
        logs.configure("warning", "front end 1")
        logging.getLogger("x").info("not this")
        logging.getLogger("x").warning("hello %d", 2)
    finally:
        root.handlers[:], root.level = before[0], before[1]
    first, second = capsys.readouterr().err.splitlines()
    line = json.loads(first)
    assert (line["level"], line["process"], line["message"]) == ("info", "front end 1", "hello 1")
    assert second.endswith("Z WARNING front end 1: hello 2")


def test_a_child_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "API_KEY", "PACKHORSE_API_KEY", "PACKHORSE_SSL_KEYFILE_PASSWORD"):
        monkeypatch.setenv(name, "secret-value")
    monkeypatch.setenv("PACKHORSE_PORT", "8000")
    for kind in Kind:
        environment = environment_of(kind)
        assert "secret-value" not in environment.values()
        assert environment["PACKHORSE_PORT"] == "8000"
