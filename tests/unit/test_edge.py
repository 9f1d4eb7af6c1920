"""What every request passes, before its route: keys, CORS, ids, addresses, the access log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest

from packhorse import logs
from packhorse.client_values import parse_keys
from packhorse.server.api_keys import ApiKeys
from packhorse.server.body import Receive, Scope, Send
from packhorse.server.client_address import TrustedProxies
from packhorse.server.request_ids import LONGEST, RequestIds
from packhorse.server.routes.predict import Predict
from tests.unit.test_app import error_of, rig

KEY, OTHER = "a-key", "another-key"
KEYS = parse_keys(f"{KEY},{OTHER}")
PAGE = "https://app.example"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def seen_clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom requests to /predict come from, as scheduling will see it."""
    clients: list[str] = []
    answer = Predict.__call__

    async def spying(self: Predict, scope: Scope, receive: Receive, send: Send) -> None:
        clients.append(scope["packhorse.client"])
        await answer(self, scope, receive, send)

    monkeypatch.setattr(Predict, "__call__", spying)
    return clients


def test_requests_need_one_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = seen_clients(monkeypatch)

    async def main() -> None:
        async with rig(api_key=KEYS) as r:
            body = {"inputs": "a"}
            for headers in (
                *({}, bearer("wrong"), bearer(""), bearer(KEY + "x"), {"authorization": KEY}),
                *({"authorization": f"Basic {KEY}"}, {"x-api-key": ""}, {"x-api-key": KEYS[0]}),
            ):
                answer = await r.client.post("/predict", json=body, headers=headers)
                assert error_of(answer).startswith("401 Unauthorized"), headers
                assert answer.headers["www-authenticate"].startswith("Bearer ")
                assert KEY not in answer.text
            assert clients == []
            for headers in (bearer(KEY), bearer(OTHER), {"x-api-key": KEY}):
                answer = await r.client.post("/predict", json=body, headers=headers)
                assert answer.status_code == 200
            lower = {"Authorization": f"bearer  {KEY}"}
            assert (await r.client.get("/info", headers=lower)).status_code == 200
            numbers = (await r.client.get("/metrics")).text
            assert re.search(r'requests_total\{route="predict",status="401".*\} 8\.0', numbers)

    asyncio.run(main())
    assert clients[0] == clients[2] != clients[1]
    assert clients[0] == "key:" + KEYS[0].removeprefix("sha256:")[:16]


def test_every_route_is_guarded_but_those_that_are_open_by_choice() -> None:
    async def main() -> None:
        async with rig(api_key=KEYS) as r:
            for path in ("/", "/health", "/health/", "/ready", "/ping", "/metrics", "/stats"):
                assert (await r.client.get(path)).status_code == 200
                assert (await r.client.head(path)).status_code == 200
            for path in ("/info", "/predict", "/predict/", "/nowhere"):
                assert (await r.client.get(path)).status_code == 401, path
                assert (await r.client.head(path)).status_code == 401, path
        async with rig(api_key=KEYS, guard_health=True, guard_metrics=True) as r:
            for path in ("/health", "/health/", "/ready", "/ping", "/metrics", "/stats"):
                assert (await r.client.get(path)).status_code == 401
                assert (await r.client.get(path, headers=bearer(KEY))).status_code == 200

    asyncio.run(main())


def test_a_key_is_kept_as_nothing_but_its_digest() -> None:
    keys = ApiKeys(KEYS)
    assert keys.identify({b"x-api-key": KEY.encode()}).startswith("key:")
    assert KEY not in repr(vars(keys))


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }


@pytest.mark.parametrize("allowed", ["*", PAGE])
@pytest.mark.case(111)
def test_web_pages_of_allowed_origins_can_read_every_answer(allowed: str) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"cors_allow_origin": (allowed,), "api_key": KEYS}
        async with rig(**options, max_concurrent_requests=4) as r:
            before = await r.client.options("/predict", headers=preflight(PAGE))
            assert before.status_code == 204
            assert before.headers["access-control-allow-origin"] == allowed
            assert "authorization" in before.headers["access-control-allow-headers"]
            assert "content-type" in before.headers["access-control-allow-headers"]
            assert "POST" in before.headers["access-control-allow-methods"]

            async def ask(inputs: Any, **headers: str) -> httpx.Response:
                headers = {"origin": PAGE} | bearer(KEY) | headers
                return await r.client.post("/predict", json={"inputs": inputs}, headers=headers)

            async def check(answer: httpx.Response, status: int) -> None:
                assert answer.status_code == status
                assert answer.headers["access-control-allow-origin"] == allowed
                assert answer.headers["access-control-expose-headers"] == "*"

            await check(await ask("a"), 200)
            await check(await ask("a", authorization="x"), 401)
            await check(await ask([]), 400)
            await check(await ask([["a"]] * 5), 422)
            await check(await r.client.get("/info", headers={"origin": PAGE} | bearer(KEY)), 200)
            await check(await r.client.get("/no", headers={"origin": PAGE} | bearer(KEY)), 404)
            r.engine.holds = True
            first = asyncio.create_task(ask([["a"]] * 4))
            while not r.engine.held:
                await asyncio.sleep(0.001)
            await check(await ask("a"), 429)
            r.engine.release()
            await check(await first, 200)
            r.engine.fault = "the engine is not ready yet"
            await check(await ask("a"), 503)
            await check(await r.client.get("/health", headers={"origin": PAGE}), 503)

    asyncio.run(main())


@pytest.mark.case(111)
def test_web_pages_of_other_origins_can_read_none() -> None:
    async def main() -> None:
        async with rig(cors_allow_origin=(PAGE,)) as r:
            for origin in ("https://evil.example", PAGE + ".evil.example", "null"):
                refused = await r.client.options("/predict", headers=preflight(origin))
                assert error_of(refused).startswith("403")
                answers = [
                    await r.client.post(
                        "/predict", json={"inputs": "a"}, headers={"origin": origin}
                    ),
                    await r.client.get("/nowhere", headers={"origin": origin}),
                ]
                for answer in (refused, *answers):
                    assert "access-control-allow-origin" not in answer.headers
                    assert answer.headers["vary"] == "origin"  # or a cache mixes them up

    asyncio.run(main())


@pytest.mark.case(111)
def test_nothing_of_cors_where_it_is_not_set() -> None:
    async def main() -> None:
        async with rig() as r:
            plain = await r.client.post(
                "/predict", json={"inputs": "a"}, headers={"origin": "https://app.example"}
            )
            asked = await r.client.options("/predict", headers=preflight(PAGE))
            assert (plain.status_code, asked.status_code) == (200, 405)
            for answer in (plain, asked):
                assert not [name for name in answer.headers if name.startswith("access-control")]
                assert "vary" not in answer.headers

    asyncio.run(main())


def test_every_answer_has_a_request_id_the_clients_own_if_it_sends_one() -> None:
    async def main() -> None:
        async with rig(api_key=KEYS, cors_allow_origin=("*",)) as r:
            own = []
            for path, headers in (
                *(("/info", bearer(KEY)), ("/info", {}), ("/nowhere", bearer(KEY))),
                *(("/predict", bearer(KEY)), ("/health", {})),
            ):
                sent = await r.client.get(path, headers=headers | {"x-request-id": "abc-1"})
                assert sent.headers["x-request-id"] == "abc-1"
                own.append((await r.client.get(path, headers=headers)).headers["x-request-id"])
            for body in ({"inputs": "a"}, {"inputs": []}):
                answer = await r.client.post("/predict", json=body, headers=bearer(KEY))
                own.append(answer.headers["x-request-id"])
            answer = await r.client.options("/predict", headers=preflight(PAGE))
            own.append(answer.headers["x-request-id"])
            assert len(set(own)) == len(own)
            assert all(re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]{8}", one) for one in own)

    asyncio.run(main())


def test_request_ids_are_bounded_and_harmless() -> None:
    ids = RequestIds()
    assert ids.of(b"4bf92f3577b34da6/a:b.c@d") == b"4bf92f3577b34da6/a:b.c@d"
    assert ids.of(b'a\x1b[31m" \xff{}\\b') == b"a31mb"
    assert ids.of(b"x" * 5000) == b"x" * LONGEST
    assert re.fullmatch(rb"[0-9a-f-]{21}", ids.of(b"\xff\xfe"))
    assert ids.new() != RequestIds().new()


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", [("x-forwarded-for", "9.9.9.9, 1.2.3.4")], "1.2.3.4"),
        ("10.0.0.1", [("x-forwarded-for", "1.2.3.4, 10.0.0.7")], "1.2.3.4"),
        ("10.0.0.1", [("x-forwarded-for", "1.2.3.4"), ("x-forwarded-for", "10.2.0.7")], "1.2.3.4"),
        ("10.0.0.1", [("x-forwarded-for", "1.2.3.4, unknown, 10.0.0.7")], "10.0.0.7"),
        ("10.0.0.1", [("x-forwarded-for", "1.2.3.4:5000")], "1.2.3.4"),
        ("10.0.0.1", [("x-forwarded-for", "::ffff:1.2.3.4")], "1.2.3.4"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [("forwarded", 'For="[2001:db8::1]:47";proto=https')], "2001:db8::1"),
        ("10.0.0.1", [("forwarded", "for=9.9.9.9, for=1.2.3.4")], "1.2.3.4"),
        ("10.0.0.1", [("forwarded", "for=9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], "1.2.3.4"),
        ("11.0.0.1", [("x-forwarded-for", "1.2.3.4")], "11.0.0.1"),
        ("11.0.0.1", [("forwarded", "for=1.2.3.4")], "11.0.0.1"),
        (None, [("x-forwarded-for", "1.2.3.4")], "1.2.3.4"),
        (None, [], None),
    ],
)
def test_only_trusted_proxies_are_believed(
    peer: str | None, headers: list[tuple[str, str]], client: str | None
) -> None:
    proxies = TrustedProxies(("10.0.0.0/8", "unix"))
    assert proxies.client(peer, [(n.encode(), v.encode()) for n, v in headers]) == client


def test_a_unix_peer_is_trusted_only_by_name() -> None:
    assert TrustedProxies(("0.0.0.0/0",)).client(None, [(b"x-forwarded-for", b"1.2.3.4")]) is None


def test_the_client_of_a_request_is_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = seen_clients(monkeypatch)
    spoofed = {"x-forwarded-for": "1.2.3.4"}

    async def main() -> None:
        for options in ({}, {"trusted_proxies": ("127.0.0.0/8",)}):
            async with rig(**options) as r:
                await r.client.post("/predict", json={"inputs": "a"}, headers=spoofed)

    asyncio.run(main())
    assert clients == ["addr:127.0.0.1", "addr:1.2.3.4"]


def test_the_access_log_tells_everything_but_texts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with rig(access_log=True, api_key=KEYS) as r:
            await r.client.post("/predict?q=secret", json={"inputs": "secret"}, headers=bearer(KEY))
            await r.client.get("/secret", headers=bearer(KEY) | {"x-request-id": "id-7"})
            await r.client.request("SECRET", "/info", headers=bearer("secret"))
        async with rig() as r:
            await r.client.get("/health")

    asyncio.run(main())
    lines = [record for record in caplog.records if record.name == "packhorse.access"]
    said = [record.getMessage() for record in lines]
    assert [re.sub(r"[\d.]+ ms", "N ms", line) for line in said] == [
        f"POST predict 200 N ms key:{KEYS[0][7:23]}",
        f"GET unmatched 404 N ms key:{KEYS[0][7:23]}",
        "other info 401 N ms addr:127.0.0.1",
    ]
    shown = logs._JsonLines("front end 0").format(lines[1])
    assert "secret" not in "".join(said).lower() + shown
    assert KEY not in "".join(said)
    fields = json.loads(shown)
    assert (fields["status"], fields["route"], fields["request_id"]) == (404, "unmatched", "id-7")
    assert logs._Lines("front end 0").format(lines[1]).endswith(" request_id=id-7")


def test_a_failure_is_logged_with_the_id_of_its_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(Predict, "submit", broken)

    async def main() -> None:
        async with rig() as r:
            headers = {"x-request-id": "id-8"}
            answer = await r.client.post("/predict", json={"inputs": "a"}, headers=headers)
            assert answer.status_code == 500

    asyncio.run(main())
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert record.request_id == "id-8"  # type: ignore[attr-defined]


def test_large_answers_are_compressed_for_those_who_ask_where_it_is_on() -> None:
    async def main() -> None:
        for on in (True, False):
            async with rig(gzip=on) as r:
                for path, accepted in (("/metrics", "gzip"), ("/metrics", ""), ("/ping", "gzip")):
                    headers = {"accept-encoding": accepted}
                    answer = await r.client.get(path, headers=headers)
                    wanted = on and path == "/metrics" and accepted == "gzip"
                    assert answer.headers.get("content-encoding") == ("gzip" if wanted else None)
                    assert path == "/ping" or "packhorse_info" in answer.text

    asyncio.run(main())
