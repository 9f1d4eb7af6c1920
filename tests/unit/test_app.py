"""The routes of one front end, without processes: an engine that answers in the same loop."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from packhorse.channel.board import Board
from packhorse.checkpoint import load_checkpoint
from packhorse.config import Config, ServerOptions, resolve
from packhorse.errors import NonFiniteOutputError, UnavailableError
from packhorse.hardware import Hardware
from packhorse.launch import SLOT_WORDS
from packhorse.metrics import INPUTS_IN_FLIGHT, TOKENS_IN_FLIGHT
from packhorse.network_options import NetworkOptions
from packhorse.request import Completions, Sequences
from packhorse.server import dispatcher as dispatching
from packhorse.server.admission import Admission
from packhorse.server.answer_room import AnswerRoom, AnswerSizes
from packhorse.server.app import App
from packhorse.server.dispatcher import Dispatcher
from packhorse.server.observations import Observations
from packhorse.server.page import DOCUMENT, POLICY
from packhorse.server.pending import Block, Pending
from packhorse.server.service import Service
from packhorse.tasks import Task
from packhorse.tokenizing.tokenizer import Tokenizer

NAN_LENGTH = 9


class EchoEngine:
    """Stands in for a link and for the client of all links.

    It answers after ``seconds``; what was sent while ``holds``, when it is told to ``release``.
    Logits are the number of tokens and the last id but one; sequences of NAN_LENGTH give NaN.
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        self.info: dict[str, Any] | None = {"dtype": "float32", "device": "cpu"}
        self.sent: list[int] = []  # requests in each message
        self.seconds = 0.0
        self.holds = False
        self.held: list[tuple[Sequence[Pending], Block]] = []

    def best(self) -> EchoEngine:
        return self

    def send(self, requests: Sequence[Pending], sequences: Sequences) -> None:
        self.sent.append(len(requests))
        lengths = sequences.lengths
        codes = np.where(lengths == NAN_LENGTH, NonFiniteOutputError.code, 0).astype(np.uint8)
        logits = np.stack([lengths, sequences.input_ids[sequences.cu_seqlens[1:] - 2]], axis=1)
        block = Block(
            Completions(
                tickets=np.arange(len(requests), dtype=np.uint64),
                offsets=np.zeros(len(requests), np.int32),
                counts=np.array([pending.count for pending in requests], np.int32),
                codes=codes,
                values=np.where(codes[:, None] == 0, logits, np.nan).astype(np.float32),
                queue_wait=np.zeros(len(requests), np.float32),
                inference=0.002,
            )
        )
        if self.holds:
            self.held.append((requests, block))
        else:
            asyncio.get_running_loop().call_later(self.seconds, self._deliver, requests, block)

    def release(self) -> None:
        for requests, block in self.held:
            self._deliver(requests, block)
        self.holds, self.held = False, []

    def _deliver(self, requests: Sequence[Pending], block: Block) -> None:
        row = 0
        for pending in requests:
            pending.parts = [(block, 0, row, pending.count)]
            pending.inference = 0.002
            row += pending.count
            if not pending.future.done():
                pending.future.set_result(None)


class Rig:
    def __init__(self, service: Service, engine: EchoEngine, client: httpx.AsyncClient) -> None:
        self.service = service
        self.engine = engine
        self.client = client
        self.board = service.board

    async def predict(self, inputs: Any, **options: Any) -> httpx.Response:
        return await self.client.post("/predict", json={"inputs": inputs, **options})


KINDS = (ServerOptions, NetworkOptions)

TOKENIZER = Tokenizer.load(load_checkpoint(), parallel=False)


@asynccontextmanager
async def rig(
    folder: Path | None = None, task: Task | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """A front end of the demo model, or of the checkpoint in ``folder``, which has two labels."""
    checkpoint = load_checkpoint(folder, task=task)
    tokenizer = Tokenizer.load(checkpoint, parallel=False) if folder else TOKENIZER
    server, network = ({k: v for k, v in settings.items() if hasattr(kind, k)} for kind in KINDS)
    assert len(server) + len(network) == len(settings)
    config = resolve(
        Config(server=ServerOptions(**server), network=NetworkOptions(**network)),
        Hardware(2, frozenset()),
    )
    board = Board.create(2, SLOT_WORDS)
    engine = EchoEngine()
    admission = Admission(board, 1, config.server.max_concurrent_requests, tokenizer.max_length)
    room = AnswerRoom(AnswerSizes.of_model(checkpoint, config.server.answer_limit))
    with ThreadPoolExecutor(1) as threads:
        service = Service(
            config=config,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            dispatcher=Dispatcher(tokenizer, threads, engine, admission, room),  # type: ignore[arg-type]
            engines=engine,  # type: ignore[arg-type]
            admission=admission,
            observations=Observations(board.slots[1]),
            board=board,
            slot=board.slots[1],
        )
        transport = httpx.ASGITransport(App(service))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Rig(service, engine, client)
    assert room.taken == 0
    assert board.total(INPUTS_IN_FLIGHT.first) == 0
    assert board.total(TOKENS_IN_FLIGHT.first) == 0


def lengths_in(answer: Any) -> list[float]:
    """The fake's first logit, the number of tokens, of each input; for raw scores."""
    return [
        next(one["score"] for one in row if one["label"] == "NEGATIVE")
        for row in (answer if isinstance(answer[0], list) else [answer])
    ]


def error_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error", "error_type"}
    return f"{response.status_code} {body['error_type']}: {body['error']}"


def test_single_pair_and_batch() -> None:
    async def main() -> None:
        async with rig() as r:
            single = await r.predict("good film", raw_scores=True)
            assert single.status_code == 200
            assert lengths_in(single.json()) == [4]
            pair = await r.predict(["good film", "bad film"], raw_scores=True)
            assert lengths_in(pair.json()) == [7]
            batch = await r.predict(
                [["good film"], ["good film", "bad"], ["film"], [""]], raw_scores=True
            )
            assert lengths_in(batch.json()) == [4, 6, 3, 2]
            one = await r.predict([["good film"]], raw_scores=True)
            assert one.json() == [single.json()]
            scores = (await r.predict("good film")).json()
            assert sum(row["score"] for row in scores) == pytest.approx(1)
            assert scores == sorted(scores, key=lambda row: -row["score"])

    asyncio.run(main())


def test_headers() -> None:
    async def main() -> None:
        async with rig() as r:
            response = await r.predict([["good film"], ["a very good film " * 300]])
            assert response.headers["x-compute-type"] == "cpu+optimized"
            assert response.headers["x-compute-tokens"] == str(4 + 512)
            assert response.headers["x-compute-characters"] == str(9 + 17 * 300)
            assert response.headers["x-truncated"] == "1"
            assert float(response.headers["x-inference-time"]) == 2.0
            for name in ("compute", "total", "tokenization", "queue"):
                assert float(response.headers[f"x-{name}-time"]) >= 0
            assert (await r.predict("x")).headers["x-truncated"] == "0"

    asyncio.run(main())


@pytest.mark.case(13)
def test_truncation_options() -> None:
    long_text = "bad " * 600 + "good"

    async def main() -> None:
        async with rig(auto_truncate=False) as r:
            refused = await r.predict(long_text)
            assert error_of(refused).startswith("422 Validation")
            assert "512" in refused.text
            cut = await r.predict(long_text, truncate=True, raw_scores=True)
            left = await r.predict(
                long_text, truncate=True, raw_scores=True, truncation_direction="Left"
            )
            assert lengths_in(cut.json()) == lengths_in(left.json()) == [512]
            assert cut.json() != left.json()  # the other logit is the last token's id
        async with rig() as r:
            assert (await r.predict(long_text)).status_code == 200
            assert (await r.predict(long_text, truncate=False)).status_code == 422

    asyncio.run(main())


def test_requests_of_one_turn_leave_together_and_keep_their_answers() -> None:
    async def main() -> None:
        async with rig() as r:
            texts = ["good " * n for n in range(1, 6)]
            answers = await asyncio.gather(
                *[r.predict(text, raw_scores=True) for text in texts],
                r.predict([["good"], ["good good"]], raw_scores=True),
                r.predict("good", raw_scores=True, truncation_direction="left"),
            )
            found = [lengths_in(answer.json()) for answer in answers]
            assert found == [[3], [4], [5], [6], [7], [3, 4], [3]]
            assert sum(r.engine.sent) == 7
            assert len(r.engine.sent) < 7

    asyncio.run(main())


@pytest.mark.case(73, 81)
def test_only_the_requests_at_fault_fail() -> None:
    async def main() -> None:
        async with rig() as r:
            answers = await asyncio.gather(
                *[r.predict("good", raw_scores=True) for _ in range(31)],
                r.predict("bad " * 600, truncate=False),
                r.predict([["good"], ["bad " * 600]], truncate=False),
                r.predict("good " * (NAN_LENGTH - 2)),
            )
            assert [a.status_code for a in answers] == [200] * 31 + [422, 422, 500]
            assert all(lengths_in(a.json()) == [3] for a in answers[:31])
            assert "inputs[0]" in error_of(answers[31])
            assert "inputs[1]" in error_of(answers[32])
            assert "non_finite_output" in error_of(answers[33])
            metrics = (await r.client.get("/metrics")).text
            assert 'packhorse_non_finite_sequences_total{model="packhorse-demo"} 1.0' in metrics

    asyncio.run(main())


def test_one_bad_input_fails_its_list_and_names_it() -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.predict([["good"], ["good " * (NAN_LENGTH - 2)], ["good"]])
            assert error_of(answer).startswith("500 Backend: `inputs[1]`")
            assert "null" not in answer.text

    asyncio.run(main())


@pytest.mark.case(81)
def test_surrogates_are_refused() -> None:
    async def main() -> None:
        async with rig() as r:
            body = b'{"inputs":[["a"],["\\ud800 and more text"]]}'
            answer = await r.client.post("/predict", content=body)
            assert answer.status_code in (400, 422)
            error_of(answer)

    asyncio.run(main())


@pytest.mark.case(85)
def test_limits() -> None:
    async def main() -> None:
        async with rig(max_client_batch_size=3, max_concurrent_requests=4, payload_limit=1000) as r:
            assert "at most 3" in error_of(await r.predict([["a"]] * 4))
            too_large = await r.predict("a" * 1001)
            assert error_of(too_large).startswith("413 Validation: the body is larger than 1000")
            r.engine.holds = True
            first = asyncio.create_task(r.predict([["a"]] * 3))
            while not r.engine.held:
                await asyncio.sleep(0.001)
            r.engine.holds = False
            refused = await r.predict([["a"]] * 2)
            assert error_of(refused).startswith("429 Overloaded")
            assert refused.headers["retry-after"] == "1"
            assert (await r.predict("a")).status_code == 200
            r.engine.release()
            assert (await first).status_code == 200
            assert (await r.predict([["a"]] * 3)).status_code == 200

    asyncio.run(main())


def test_large_requests_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, answered = Tokenizer.encode, threading.Event()

    def slow(self: Tokenizer, inputs: Any, **options: Any) -> Sequences:
        if len(inputs[0]) > dispatching.INLINE_CHARACTERS:
            assert answered.wait(30)  # in vain, if the other waits for this one
            time.sleep(0.05)
        return encode(self, inputs, **options)

    monkeypatch.setattr(Tokenizer, "encode", slow)

    async def main() -> None:
        async with rig() as r:
            large = asyncio.create_task(r.predict("good film " * 5000, raw_scores=True))
            await asyncio.sleep(0.05)
            assert (await r.predict("good")).status_code == 200
            answered.set()
            answer = await large
            assert lengths_in(answer.json()) == [512]
            assert float(answer.headers["x-tokenization-time"]) >= 50

    asyncio.run(main())


def test_many_small_requests_are_divided_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "TURN_CHARACTERS", 100)

    async def main() -> None:
        async with rig() as r:
            answers = await asyncio.gather(*[r.predict("x" * 60) for _ in range(5)])
            assert all(answer.status_code == 200 for answer in answers)
            assert r.engine.sent == [1] * 5

    asyncio.run(main())


def test_a_bug_in_the_tokenizer_is_ours_and_not_logged_with_the_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Tokenizer, inputs: Any, **options: Any) -> Sequences:
        raise KeyError("secret text")

    monkeypatch.setattr(Tokenizer, "encode", broken)

    async def main() -> None:
        async with rig() as r:
            assert error_of(await r.predict("secret text")).startswith("500 Backend")
            assert error_of(await r.predict("secret text " * 3000)).startswith("500 Backend")

    asyncio.run(main())
    assert "KeyError" in caplog.text
    assert "secret" not in caplog.text


def test_health_follows_the_engine() -> None:
    async def main() -> None:
        async with rig() as r:
            for path in ("/health", "/ping", "/ready", "/health/ready", "/health/live"):
                answer = await r.client.get(path)
                assert (answer.status_code, answer.content) == (200, b"")
            r.engine.fault = "the engine is not ready yet"
            for path in ("/health", "/ping", "/ready", "/health/ready"):
                answer = await r.client.get(path)
                assert error_of(answer) == "503 Unhealthy: the engine is not ready yet"
                assert answer.headers["retry-after"] == "1"
            assert (await r.client.get("/health/live")).status_code == 200
            assert error_of(await r.predict("a")).startswith("503 Unhealthy")
            r.engine.fault = None
            r.service.draining = True
            assert "shutting down" in error_of(await r.client.get("/health"))
            with pytest.raises(UnavailableError):
                r.service.check_ready()

    asyncio.run(main())


def test_info() -> None:
    async def main() -> None:
        async with rig(max_client_batch_size=77) as r:
            info = (await r.client.get("/info")).json()
            assert info["model_type"]["classifier"]["id2label"] == {
                "0": "NEGATIVE",
                "1": "POSITIVE",
            }
            assert info["model_type"]["classifier"]["label2id"] == {"NEGATIVE": 0, "POSITIVE": 1}
            assert info["max_client_batch_size"] == 77
            assert info["max_input_length"] == 512
            assert (info["device"], info["tokenizer"]) == ("cpu", TOKENIZER.backend)
            assert info["config"]["server"]["front_ends"] == 1
            r.engine.info = None
            assert error_of(await r.client.get("/info")).startswith("503")

    asyncio.run(main())


@pytest.mark.case(115)
@pytest.mark.parametrize(
    "path", ["/", "/health", "/health/live", "/info", "/metrics", "/stats", "/nowhere"]
)
def test_head_is_get_without_a_body(path: str) -> None:
    async def main() -> None:
        async with rig() as r:
            head, get = await r.client.head(path), await r.client.get(path)
            assert head.status_code == get.status_code
            assert head.headers.get("content-type") == get.headers.get("content-type")

    asyncio.run(main())


@pytest.mark.case(99)
def test_unknown_routes_and_methods() -> None:
    async def main() -> None:
        async with rig() as r:
            before = len((await r.client.get("/metrics")).text.splitlines())
            for number in range(50):
                assert error_of(await r.client.get(f"/wp-{number}")).startswith("404 Validation")
            assert error_of(await r.client.get("/predictions/")).startswith("404")
            wrong = await r.client.get("/predict")
            assert error_of(wrong).startswith("405 Validation")
            assert wrong.headers["allow"] == "POST"
            assert error_of(await r.client.post("/health")).startswith("405")
            metrics = (await r.client.get("/metrics")).text
            assert len(metrics.splitlines()) == before
            for series, count in (
                ('{route="unmatched",status="404",model="packhorse-demo"}', 51),
                ('{route="predict",status="405",model="packhorse-demo"}', 1),
            ):
                assert f"packhorse_requests_total{series} {count}.0" in metrics

    asyncio.run(main())


def test_the_root_page_lists_what_is_there() -> None:
    async def main() -> None:
        async with rig() as r:
            page = (await r.client.get("/")).text
            for path in ("/predict", "/health", "/info", "/metrics"):
                assert path in page

    asyncio.run(main())


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("application/json, TEXT/HTML; q=0.5", True),
        *(("*/*", False), ("", False), ("text/html;q=0", False), ("text/html; q=0.000", False)),
        *(("text/*", False), ("text/htmlx", False), ("application/json", False)),
    ],
)
def test_a_browser_gets_the_page_and_others_the_list(accept: str, is_page: bool) -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.client.get("/", headers={"accept": accept})
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind == ("text/html" if is_page else "text/plain")
            assert answer.headers["vary"] == "accept"
            assert ("content-security-policy" in answer.headers) == is_page

    asyncio.run(main())


def test_the_page_is_one_file_that_its_policy_knows() -> None:
    text = DOCUMENT.decode()
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in POLICY
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//|@import|url\(", text)
    assert "unsafe" not in POLICY


def test_stats_grow_with_what_was_answered() -> None:
    async def main() -> None:
        async with rig() as r:
            before = (await r.client.get("/stats")).json()
            await r.client.post("/predict", json={"inputs": [["a"], ["b"]]})
            await r.client.post("/predict", json={"inputs": []})
            answer = await r.client.get("/stats")
            after = answer.json()
            assert answer.headers["cache-control"] == "no-store"
            grown = {k: v - before["counters"][k] for k, v in after["counters"].items()}
            assert (grown["requests"], grown["sequences"], grown["tokens"]) == (1, 2, 6)
            assert sum(after["latency"]["counts"]) - sum(before["latency"]["counts"]) == 1
            assert len(after["latency"]["counts"]) == len(after["latency"]["bounds_seconds"]) + 1
            assert after["time"] > before["time"]
            assert after["model"]["name"] == "packhorse-demo"
            assert (after["model"]["task"], after["model"]["fault"]) == ("classify", None)
            r.engine.fault = "it is being replaced"
            assert (await r.client.get("/stats")).json()["model"]["fault"] == r.engine.fault

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((b"{bad", 400), (b"", 400), (b"null", 422), (b"[]", 422), (b'{"inputs":"\xff"}', 400)),
        *((b"[" * 100_000, 422), (b'{"inputs":NaN}', 400), (b'{"inputs":[]}', 400)),
        *((b'{"inputs":"a","inputs":"b"}', 200), (b'{"inputs":"a","x":[[1]]}', 200)),
    ],
)
@pytest.mark.case(109)
def test_bodies(body: bytes, status: int) -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.client.post("/predict", content=body)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/json"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        *(("text/plain", 415), ("application/x-www-form-urlencoded", 415)),
        *(("application/json;charset=utf-8", 200), ("application/json", 200)),
    ],
)
@pytest.mark.case(109)
def test_content_types(content_type: str, status: int) -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.client.post(
                "/predict", content=b'{"inputs":"a"}', headers={"content-type": content_type}
            )
            assert answer.status_code == status
            json.loads(answer.content)

    asyncio.run(main())
