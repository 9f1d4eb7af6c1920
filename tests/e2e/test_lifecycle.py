"""Start, death, replacement and end, of real processes that are really killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import Service, service, until


def status_of(server: Service, path: str = "/health") -> int:
    """0 when nobody listens."""
    try:
        return httpx.get(server.url + path, timeout=5).status_code
    except httpx.TransportError:
        return 0


def ended(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    """One whose children are killed by several tests."""
    with service(front_ends=2) as made:
        yield made


@pytest.fixture
def well(server: Service) -> Service:
    """The same, when it has got over what the test before did to it."""
    server.control()
    until(lambda: all(status_of(server) == 200 for _ in range(4)))
    return server


@pytest.mark.case(93)
def test_a_taken_port_is_found_out_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with closing(Service(port=port, model_id="/nowhere/at/all")) as made:
            made.start()
            assert made.wait() != 0
            assert f"port {port} on 127.0.0.1 is taken" in made.log
            assert "/nowhere" not in made.log


def test_an_engine_that_cannot_load_ends_the_server_with_its_reason() -> None:
    with closing(Service()) as made:
        made.control(load_error="weight 'pooler' is missing")
        made.start()
        assert made.wait() == 2
        assert "packhorse: error: weight 'pooler' is missing" in made.log


def test_it_lives_before_it_is_ready_and_at_sigterm_finishes_what_it_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Service(port=port)
    made.url = f"http://127.0.0.1:{port}"
    made.control(load_seconds=50.0)
    made.start(wait=False)
    try:
        until(lambda: status_of(made) == 503)
        assert status_of(made, "/health/live") == 200
        assert made.predict("a").status_code == 503
        made.control(seconds=3.5)
        until(lambda: status_of(made) == 200)
        children = made.children()
        assert len(children) == 2
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(made.predict, "a") for _ in range(4)]
            until(lambda: made.metric("packhorse_inputs_in_flight") == 4)
            made.signal(signal.SIGTERM)
            time.sleep(0.3)
            made.control()
            assert [one.result().status_code for one in asked] == [200] * 4
        assert made.wait() == 0
        assert all(map(ended, children))
        assert status_of(made) == 0
    finally:
        made.close()


@pytest.mark.long
def test_a_second_signal_ends_at_once() -> None:
    with service() as server:
        server.control(hang=True)
        children = server.children()
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(server.predict, "a")
            until(lambda: server.metric("packhorse_inputs_in_flight") == 1)
            server.signal(signal.SIGINT)
            until(lambda: status_of(server) == 503)
            server.signal(signal.SIGINT)
            assert server.wait() == 128 + signal.SIGINT
            # The engine may have been dead long enough for the front end to say so.
            assert asked.exception() is not None or asked.result().status_code == 503
        assert all(map(ended, children))


@pytest.mark.long
def test_sigterm_while_children_start_leaves_nothing() -> None:
    for _ in range(3):
        made = Service(front_ends=4)
        made.start(wait=False)
        try:
            while not made.children():  # at once: the others are being started
                pass
            made.signal(signal.SIGTERM)
            assert made.wait() == 0
            assert not made.children()
            assert "Traceback" not in made.log
        finally:
            made.close()


@pytest.mark.long
@pytest.mark.case(89)
def test_kills_under_load_do_not_end_the_server() -> None:
    with service(front_ends=2) as server, ThreadPoolExecutor(2) as clients:
        server.control(seconds=0.01)
        ready = 'packhorse_ready_processes{{child="{}"}}'
        ending = threading.Event()

        def client() -> None:
            while not ending.is_set():
                with contextlib.suppress(httpx.TransportError):
                    server.predict("a")

        for _ in range(2):
            clients.submit(client)
        try:
            for _ in range(6):  # more than make a crash loop
                for process in (server.child("engine 0"), server.child("front end 0")):
                    os.kill(process, signal.SIGKILL)
                    until(lambda killed=process: ended(killed))
                until(lambda: len(server.children("packhorse: ")) == 3)
                until(lambda: server.metric(ready.format("engine")) == 1)
                until(lambda: server.metric(ready.format("front_end")) == 2)
        finally:
            ending.set()
        assert server.predict("a").status_code == 200
        assert server.metric('packhorse_restarts_total{child="engine"}') == 6


@pytest.mark.long
def test_settings_of_logs_and_tokenizer_reach_the_children() -> None:
    with service(json_output="true", without="fast-tokenizer") as server:
        info = server.get("/info").json()
        assert info["tokenizer"] == "tokenizers"
        assert info["tokenizer_reason"] == "it was asked for"
        lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"supervisor", "front end 0"} <= {line["process"] for line in lines}


def test_titles_say_what_a_process_is(well: Service) -> None:
    assert well.process is not None
    title = Path(f"/proc/{well.process.pid}/cmdline").read_text()
    assert title.startswith("packhorse: supervisor of http://127.0.0.1:")
    assert well.children() == sorted(
        map(well.child, ("packhorse: engine 0 (cpu)", "front end 0", "front end 1"))
    )


@pytest.mark.case(89)
def test_a_killed_engine_fails_what_it_had_and_is_replaced_twice(well: Service) -> None:
    for death in range(1, 3):
        well.control(hang=True)
        engine = well.child("engine 0")
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(well.predict, "a") for _ in range(4)]
            until(lambda: well.metric("packhorse_inputs_in_flight") == 4)
            os.kill(engine, signal.SIGKILL)
            assert [one.result().status_code for one in asked] == [503] * 4
        well.control()
        until(lambda: all(well.predict("a").status_code == 200 for _ in range(4)))
        assert well.metric('packhorse_restarts_total{child="engine"}') == death
        assert well.child("engine 0") != engine


def test_a_killed_front_end_is_replaced_and_what_it_counted_is_kept(well: Service) -> None:
    name = 'packhorse_requests_total{route="predict",status="200"}'
    for _ in range(10):
        assert well.predict("a").status_code == 200
    before = well.metric(name)
    killed = well.children("front end")
    for process in killed:
        os.kill(process, signal.SIGKILL)
    until(lambda: status_of(well) == 200)  # connections wait for the new ones
    assert well.metric(name) == before
    until(lambda: len(well.children("front end")) == 2)
    assert not set(killed) & set(well.children("front end"))
    assert well.metric('packhorse_restarts_total{child="front_end"}') == 2


@pytest.mark.case(87)
def test_a_stopped_engine_is_not_ready(well: Service) -> None:
    engine = well.child("engine 0")
    os.kill(engine, signal.SIGSTOP)
    until(lambda: [status_of(well) for _ in range(6)] == [503] * 6)  # both front ends have looked
    assert [well.predict("a").status_code for _ in range(6)] == [503] * 6
    assert "has not responded" in well.get("/health").json()["error"]
    os.kill(engine, signal.SIGCONT)
    until(lambda: status_of(well) == 200)
    assert well.child("engine 0") == engine


@pytest.mark.long
@pytest.mark.case(87)
def test_an_engine_that_stays_stopped_is_replaced(well: Service) -> None:
    engine = well.child("engine 0")
    os.kill(engine, signal.SIGSTOP)
    until(lambda: ended(engine), 60)
    until(lambda: status_of(well) == 200)
    assert well.predict("a").status_code == 200


@pytest.mark.case(87)
def test_a_broken_device_is_given_a_new_engine(well: Service) -> None:
    well.control(broken=True)
    for _ in range(4):
        well.predict("a")
    until(lambda: "engine 0 ended with status 3; it is replaced" in well.log)
    well.control()
    until(lambda: status_of(well) == 200)
    assert well.predict("a").status_code == 200


@pytest.mark.long
@pytest.mark.case(89)
def test_a_crash_loop_ends_the_server() -> None:
    with service() as server:
        server.control(load_error="the disk is gone")
        os.kill(server.child("engine 0"), signal.SIGKILL)
        assert server.wait(60) == 2
        assert "given up" in server.log


def test_children_end_with_a_killed_supervisor() -> None:
    with service(front_ends=2) as made:
        children = made.children()
        assert len(children) == 3
        made.signal(signal.SIGKILL)
        made.wait()
        until(lambda: all(map(ended, children)))


@pytest.mark.case(103)
def test_it_writes_nowhere_and_needs_no_home() -> None:
    """As in a container with a read-only root: only an empty /tmp can be written to."""
    read_only = (
        *("unshare", "--mount", "sh", "-c"),
        "mount --make-rprivate / && mount -o remount,ro,bind / && mount -t tmpfs none /mnt "
        '&& exec "$@"',
        "sh",
    )
    if subprocess.run([*read_only, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    with service(prefix=read_only, environment={"HOME": "/nonexistent"}) as server:
        assert server.predict("a").status_code == 200
        assert "Read-only" not in server.log
