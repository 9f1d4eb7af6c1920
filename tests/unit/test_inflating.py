"""Bodies that come compressed, by whoever compresses, and by whoever wants to fill the memory."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from packhorse.errors import MalformedRequestError, PayloadTooLargeError
from packhorse.server import inflating
from tests.unit.test_app import rig
from tests.unit.test_front_end_parts import read

PLAIN = b'{"inputs":"a good film"}'


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZip ": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    " deflate": raw_deflate,  # without the header that it has to have, as some clients send it
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", KINDS)
def test_a_compressed_body_is_read_as_it_was(encoding: str) -> None:
    compress = KINDS[encoding]
    assert read([compress(PLAIN)], content_encoding=encoding) == PLAIN
    whole = compress(PLAIN)
    assert read([whole[:5], whole[5:9], whole[9:]], content_encoding=encoding) == PLAIN
    large = PLAIN + b" " * 300_000  # in the thread
    assert read([compress(large)], 400_000, content_encoding=encoding) == large


@pytest.mark.parametrize("encoding", list(KINDS)[:-1])
@pytest.mark.parametrize("limit", [100, 30_000, 100_000])
def test_the_limit_holds_for_the_inflated_body_to_the_byte(encoding: str, limit: int) -> None:
    fits = KINDS[encoding](b" " * limit)
    assert len(read([fits], limit, content_encoding=encoding)) == limit
    with pytest.raises(PayloadTooLargeError, match=f"{limit} bytes"):
        read([KINDS[encoding](b" " * (limit + 1))], limit, content_encoding=encoding)


def test_no_more_memory_is_taken_than_the_limit_allows() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)  # 50 kB
    tracemalloc.start()
    with pytest.raises(PayloadTooLargeError):
        read([bomb], 1_000_000, content_encoding="gzip")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000  # the body itself and what was not read of it, too


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_what_it_says_is_malformed(encoding: str) -> None:
    good = KINDS[encoding](PLAIN)
    broken = good[:12] + b"\xff\xff\xff" + good[15:]
    for body, fault in (
        (PLAIN, f"not compressed by {encoding}"),
        (broken, encoding),
        (good[:-5], f"ends before its {encoding} data"),
        (b"", f"ends before its {encoding} data"),
        (good + good, f"goes on after its {encoding} data"),
        (good + b"x", f"goes on after its {encoding} data"),
    ):
        with pytest.raises(MalformedRequestError, match=fault):
            read([body], content_encoding=encoding)


def test_large_bodies_are_inflated_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    really = inflating._at_most

    def counted(body: bytes, name: bytes, limit: int) -> bytes | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return really(body, name, limit)
        finally:
            running -= 1

    monkeypatch.setattr(inflating, "_at_most", counted)
    body = gzip.compress(b" " * 2_000_000)

    async def several() -> list[bytes | None]:
        jobs = [inflating.inflated(body, b"gzip", 3_000_000) for _ in range(8)]
        return await asyncio.gather(*jobs)

    monkeypatch.setattr(inflating, "_INLINE_BYTES", 0)
    assert {len(plain or b"") for plain in asyncio.run(several())} == {2_000_000}
    assert most == 1


def test_routes_read_compressed_bodies_the_models_own_too() -> None:
    async def main() -> None:
        async with rig() as r:
            headers = {"content-type": "application/json", "content-encoding": "gzip"}
            for path, body in (
                ("/predict", PLAIN),
                ("/", PLAIN),
                ("/", b'{"inputs":"a good film","parameters":{"top_k":1}}'),
                ("/classify", b'{"input":"a good film"}'),
            ):
                plain = await r.client.post(path, content=body)
                assert plain.status_code == 200
                packed = await r.client.post(path, content=gzip.compress(body), headers=headers)
                assert packed.status_code == 200, packed.text
                assert _kept(packed) == _kept(plain), path
            broken = await r.client.post("/", content=b"x", headers=headers)
            assert broken.status_code == 400
            assert "gzip" in broken.json()["error"]

    def _kept(answer: object) -> object:
        told = answer.json()  # type: ignore[attr-defined]
        return told["data"] if isinstance(told, dict) else told

    asyncio.run(main())
