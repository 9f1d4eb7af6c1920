"""The library as its users call it, on the demo model and tiny checkpoints."""

from __future__ import annotations

import asyncio
import doctest
import gc
import importlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import packhorse.encoder
from packhorse import AsyncEncoder, Encoder
from packhorse.async_encoder import AT_ONCE
from packhorse.config import OPTIMISATIONS
from packhorse.engine.cpu_runner import CpuRunner
from packhorse.engine.cpu_streams import MOST_STREAMS
from packhorse.engine.engine import Engine
from packhorse.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    InternalError,
    NonFiniteOutputError,
    TokenizationError,
    UnavailableError,
    ValidationError,
)
from packhorse.hardware import detect
from packhorse.request import Completions, Output, Sequences
from packhorse.verbs import Plan
from tests import tiny_checkpoints


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(tiny_checkpoints.shared(num_labels=3), device="cpu", dtype="float32")


def test_labels_come_best_first_with_their_scores(encoder: Encoder) -> None:
    (result,) = encoder.classify(["a good film"])
    assert sorted(c.label for c in result) == sorted(encoder.labels)
    assert [c.score for c in result] == sorted((c.score for c in result), reverse=True)
    assert sum(c.score for c in result) == pytest.approx(1, abs=1e-6)
    scores = dict(zip(encoder.labels, encoder.predict_proba(["a good film"])[0], strict=True))
    assert {c.label: c.score for c in result} == pytest.approx(scores)


def test_top_k_and_raw_scores(encoder: Encoder) -> None:
    texts = ["a good film", "the sea"]
    assert [len(row) for row in encoder.classify(texts, top_k=1)] == [1, 1]
    logits = encoder.logits(encoder.encode(texts))
    raw = encoder.classify(texts, raw_scores=True)
    assert [c.score for c in raw[1]] == pytest.approx(sorted(logits[1], reverse=True))
    with pytest.raises(ValidationError, match="top_k"):
        encoder.classify(texts, top_k=0)


def test_nothing_in_nothing_out(encoder: Encoder) -> None:
    assert encoder.classify([]) == []
    assert encoder.predict_proba([]).shape == (0, 3)


@pytest.mark.case(1)
def test_blank_texts_are_texts(encoder: Encoder) -> None:
    inputs = ["hello", "", " \t\n", "world"]
    together = encoder.predict_proba(inputs)
    assert np.isfinite(together).all()
    assert encoder.encode(inputs).lengths.tolist()[1:3] == [2, 2]
    alone = np.concatenate([encoder.predict_proba([text]) for text in inputs])
    assert np.abs(together - alone).max() < 1e-6


def test_any_iterable_will_do_but_a_text_is_not_one(encoder: Encoder) -> None:
    assert encoder.predict_proba(text for text in ["one", "two"]).shape == (2, 3)
    with pytest.raises(ValidationError, match="a list of texts"):
        encoder.classify("one")


def test_a_pair_is_read_as_a_pair(encoder: Encoder) -> None:
    pair, joined, first = encoder.predict_proba([("a film", "the sea"), "a film the sea", "a film"])
    assert np.abs(pair - joined).max() > 1e-3
    assert np.abs(pair - first).max() > 1e-3


def test_an_input_at_fault_is_named_and_not_quoted(encoder: Encoder) -> None:
    with pytest.raises(TokenizationError, match="1") as caught:
        encoder.predict_proba(["fine", "secret \ud800"])
    assert "secret" not in str(caught.value)
    with pytest.raises(ValidationError, match="1"):
        encoder.predict_proba(["fine", 7])  # type: ignore[list-item]
    with pytest.raises(TokenizationError, match=r"1700\]"):
        encoder.predict_proba([*["fine"] * 1700, "\ud800"])


@pytest.mark.case(13)
def test_long_texts_are_cut_on_the_side_asked_for_or_refused(encoder: Encoder) -> None:
    long = " ".join(f"{word} sea" for word in tiny_checkpoints.WORDS[:200])
    ids = encoder.encode([long, "short"])
    assert ids.truncated.tolist() == [True, False]
    assert ids.lengths[0] == encoder.info["max_input_length"] == 128
    right, left = (
        encoder.predict_proba([long], truncation_direction=side)  # type: ignore[arg-type]
        for side in ("right", "left")
    )
    assert np.abs(right - left).max() > 1e-4
    with pytest.raises(ValidationError, match="128"):
        encoder.predict_proba([long], truncate=False)


def test_many_texts_keep_their_order(encoder: Encoder) -> None:
    texts = [" ".join(tiny_checkpoints.WORDS[i % 300 : i % 300 + i % 7]) for i in range(5000)]
    together = encoder.predict_proba(texts)
    some = range(0, 5000, 619)
    assert np.abs(together[some] - encoder.predict_proba([texts[i] for i in some])).max() < 1e-5


def test_several_threads_get_their_own_answers(encoder: Encoder) -> None:
    words = tiny_checkpoints.WORDS[:40]
    expected = encoder.predict_proba(words)
    wrong: list[str] = []

    def ask(word: str, row: np.ndarray) -> None:
        for _ in range(20):
            if np.abs(encoder.predict_proba([word])[0] - row).max() > 1e-5:
                wrong.append(word)

    threads = [
        threading.Thread(target=ask, args=each) for each in zip(words, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_after_closing_there_is_a_clear_error() -> None:
    with Encoder(tiny_checkpoints.shared(), device="cpu") as encoder:
        encoder.classify(["a"])
    encoder.close()
    with pytest.raises(UnavailableError, match="closed"):
        encoder.classify(["a"])


def test_an_engine_that_stops_fails_who_waits_and_who_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Engine) -> list[Completions]:
        if not self.queued()[0]:  # a turn before the request came
            return []
        raise RuntimeError("planted")

    with Encoder(tiny_checkpoints.shared(), device="cpu") as encoder:
        monkeypatch.setattr(Engine, "step", broken)
        with pytest.raises(InternalError, match="planted"):
            encoder.classify(["a"])
        with pytest.raises(UnavailableError):
            encoder.classify(["a"])


@pytest.mark.parametrize("name", OPTIMISATIONS)
def test_each_optimisation_can_be_switched_off_and_changes_no_answer(name: str) -> None:
    texts = [" ".join(tiny_checkpoints.WORDS[i : i + i % 9]) for i in range(300)]
    folder = tiny_checkpoints.shared(num_labels=3)
    with Encoder(folder) as plain, Encoder(folder, without=[name]) as less:
        assert np.abs(plain.predict_proba(texts) - less.predict_proba(texts)).max() < 1e-5


def test_awaits_share_an_engine() -> None:
    async def ask() -> list[str]:
        async with AsyncEncoder(tiny_checkpoints.shared(), device="cpu") as encoder:
            many = await asyncio.gather(*(encoder.classify([w], top_k=1) for w in "abcdefgh"))
            alone = [await encoder.classify([w], top_k=1) for w in "abcdefgh"]
            assert (await encoder.predict_proba(["a", "b"])).shape == (2, 2)
            return [m[0][0].label for m in many] + [a[0][0].label for a in alone]

    labels = asyncio.run(ask())
    assert labels[:8] == labels[8:]


@pytest.mark.case(73)
def test_not_a_number_is_an_error_for_its_text_only(tmp_path: Path) -> None:
    folder = tiny_checkpoints.make_bert(tmp_path / "model")
    word = tiny_checkpoints.WORDS[50]
    with Encoder(folder, device="cpu") as encoder:
        identity = int(encoder.encode([word]).input_ids[1])

    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["bert.embeddings.word_embeddings.weight"][identity, 0] = float("nan")
        return tensors

    tiny_checkpoints.edit_tensors(folder, poison)
    with Encoder(folder, device="cpu") as encoder:
        with pytest.raises(NonFiniteOutputError, match="input 1"):
            encoder.predict_proba(["fine", word, "fine"])
        assert np.isfinite(encoder.predict_proba(["fine", "fine"])).all()


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Encoder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="tpu"):
        Encoder(device="tpu")
    with pytest.raises(DeviceError, match="float16"):
        Encoder(device="cpu", dtype="float16")
    with pytest.raises(ConfigError, match="dtype"):
        Encoder(device="cpu", dtype="int3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_refused_and_auto_says_what_it_took() -> None:
    with pytest.raises(ConfigError, match="GPU"):
        Encoder(device="cuda")
    with Encoder(tiny_checkpoints.shared()) as encoder:
        assert encoder.info["device"] == "cpu"


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("without", ("graph",), "without: 'graph' is not valid: 'graph' is not one of first-token"),
        ("without", "overlap", r"without: 'overlap' is not valid: expected \('overlap',\)"),
        ("max_batch_tokens", -5, "max_batch_tokens: '-5' is not valid: expected a whole number"),
        ("max_batch_tokens", 0, "max_batch_tokens: '0' is not valid: expected a whole number"),
        ("max_batch_time", -3, "max_batch_time: '-3' is not valid: expected a number above 0"),
        ("max_batch_time", 0, "max_batch_time: '0' is not valid: expected a number above 0"),
        ("threads", 2.5, "threads: '2.5' is not valid: expected a whole number of at least 1"),
        ("threads", 0, "threads: '0' is not valid: expected a whole number of at least 1"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, value: Any, says: str) -> None:
    wrong: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=says):
        Encoder(tiny_checkpoints.shared(), device="cpu", **wrong)


FORKING = """
import os, sys
from packhorse import Encoder
from packhorse.errors import UnavailableError

encoder = Encoder(sys.argv[1], device="cpu")
encoder.classify(["a"])
child = os.fork()
if child == 0:
    try:
        encoder.classify(["a"])
    except UnavailableError as error:
        os.write(1, str(error).encode())
    encoder.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
encoder.classify(["a"])  # the child closed nothing of its parent's
encoder.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.case(25)
def test_a_forked_child_is_told_to_make_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tiny_checkpoints.shared())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "this encoder was made before fork; make an Encoder in each process"


def test_the_library_can_be_imported_where_there_are_no_posix_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("packhorse.encoder", "packhorse.tools.files.run")
    before = [importlib.import_module(name) for name in names]  # and what they are built on
    for missing in ("fcntl", "resource", "pwd", "grp"):
        monkeypatch.setitem(sys.modules, missing, None)
    ours = _forgotten()
    try:
        after = [importlib.import_module(name) for name in names]
        assert all(old is not new for old, new in zip(before, after, strict=True))
    finally:
        _forgotten()
        sys.modules.update(ours)


def _forgotten() -> dict[str, Any]:
    """Our modules, which the next import would read again."""
    ours = [name for name in sys.modules if name.partition(".")[0] == "packhorse"]
    return {name: sys.modules.pop(name) for name in ours}


def test_the_cpu_engine_signals_through_a_socket_that_never_blocks(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[CpuRunner] = []
    start = CpuRunner.__init__

    def remembered(self: CpuRunner, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(CpuRunner, "__init__", remembered)
    with Encoder(tiny_checkpoints.shared(), device="cpu"):
        fd = made[0].completion_fd
        assert stat.S_ISSOCK(os.fstat(fd).st_mode)
        assert not os.get_blocking(fd)


def _threads() -> set[threading.Thread]:
    """Ours."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("packhorse")}


def _eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_encoders_that_are_dropped_end_their_threads() -> None:
    before = _threads()
    encoders = [Encoder(tiny_checkpoints.shared(), device="cpu") for _ in range(3)]
    cores = detect().cpus
    streams = cores // -(-cores // MOST_STREAMS) if cores > 1 else 0
    assert len(_threads() - before) == 3 * (2 + streams)  # the engine, the runner, its streams
    for encoder in encoders:
        encoder.classify(["a"])
    del encoders, encoder
    gc.collect()
    assert _eventually(lambda: not _threads() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_loads_that_fail_leave_no_file_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Engine) -> None:
        raise DeviceError("planted")

    threads = _threads()
    with Encoder(tiny_checkpoints.shared(), device="cpu"):
        pass  # what is opened once, by torch for example
    before = len(os.listdir("/proc/self/fd"))
    for dtype in ("float16", "float32"):  # before there is a runner, and after
        if dtype == "float32":
            monkeypatch.setattr(Engine, "warm_up", broken)
        for _ in range(5):
            with pytest.raises(DeviceError):
                Encoder(tiny_checkpoints.shared(), device="cpu", dtype=dtype)
    assert len(os.listdir("/proc/self/fd")) == before
    assert _eventually(lambda: not _threads() - threads)


def test_the_callers_number_of_torch_threads_stays() -> None:
    before = torch.get_num_threads()
    with Encoder(tiny_checkpoints.shared(), device="cpu", threads=before + 1) as encoder:
        encoder.classify(["a"])
        assert torch.get_num_threads() == before


class _Gated:
    """Holds the CPU's first batch back, and counts what runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.sequences = 0
        compute = CpuRunner._run

        def run(runner: CpuRunner, batch: Sequences) -> Output:
            self.entered.set()
            self.opened.wait(20)
            self.sequences += len(batch)
            return compute(runner, batch)

        monkeypatch.setattr(CpuRunner, "_run", run)


def test_awaits_that_are_cancelled_cost_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> int:
        async with AsyncEncoder(tiny_checkpoints.shared(), device="cpu") as encoder:
            gate = _Gated(monkeypatch)
            first = asyncio.create_task(encoder.classify(["a"]))
            await asyncio.to_thread(gate.entered.wait, 20)
            others = [asyncio.create_task(encoder.classify(["b"] * 10)) for _ in range(5)]
            await asyncio.sleep(0.3)  # all of them tokenised and in the engine
            for other in others:
                other.cancel()
            await asyncio.wait(others)
            gate.opened.set()
            await first
            await encoder.classify(["c"])
            return gate.sequences

    assert asyncio.run(ask()) == 2


def test_an_await_that_is_cancelled_while_it_tokenises_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask() -> int:
        async with AsyncEncoder(tiny_checkpoints.shared(), device="cpu") as encoder:
            gate = _Gated(monkeypatch)
            gate.opened.set()
            tokenizer = encoder._loaded.tokenizer
            begun, go, encode = threading.Event(), threading.Event(), tokenizer.encode

            def slow(*args: Any, **kwargs: Any) -> Sequences:
                begun.set()
                go.wait(20)
                return encode(*args, **kwargs)

            monkeypatch.setattr(type(tokenizer), "encode", lambda _, *a, **k: slow(*a, **k))
            task = asyncio.create_task(encoder.classify(["b"] * 9000))
            await asyncio.to_thread(begun.wait, 20)
            task.cancel()
            await asyncio.wait([task])
            go.set()
            await encoder.classify(["c"])
            return gate.sequences

    assert asyncio.run(ask()) < 2049  # at most the first piece, were it launched at once


def test_a_large_answer_becomes_a_result_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    result = Plan.result

    def noting(plan: Plan[Any], answers: Any) -> Any:
        threads.append(threading.get_ident())
        return result(plan, answers)

    async def ask() -> None:
        async with AsyncEncoder(tiny_checkpoints.shared(), device="cpu") as encoder:
            monkeypatch.setattr(Plan, "result", noting)
            assert len(await encoder.classify(["a"])) == 1
            assert len(await encoder.classify(["a"] * (AT_ONCE + 1))) == AT_ONCE + 1

    asyncio.run(ask())
    assert [one == threading.get_ident() for one in threads] == [True, False]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(packhorse.encoder).failed == 0
