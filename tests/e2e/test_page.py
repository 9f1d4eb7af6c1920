"""The live page in a real browser: headless Chromium, where one is installed."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests import tiny_checkpoints
from tests.e2e.service import Service, service
from tests.unit import test_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long

KEY = "a-key-for-the-page"
PICTURES = Path("test-results/page")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra browser")
    if CHROMIUM is None:
        pytest.skip("needs a browser: Debian's chromium")
    with api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[Service]:
    with service(real=True, threads=1) as made:
        yield made


@contextmanager
def opened(
    browser: Browser, url: str, spoils: tuple[str, ...] = (), width: int = 1280, **options: Any
) -> Iterator[Page]:
    """The page; at the end it has logged no error but ``spoils``, and asked nobody else."""
    size: Any = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, **{"locale": "en-US"} | options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert [error for error in errors if not any(each in error for each in spoils)] == []
    assert asked
    own = url.removesuffix("/docs")
    assert all(each.startswith((own, "data:")) for each in asked), asked


def best(page: Page) -> str:
    """The name on the first bar."""
    return page.locator("#result .bars li:first-child .name").inner_text()


def wait_until_ready(page: Page) -> None:
    page.wait_for_selector("#state[data-state=ready]")


@contextmanager
def load(url: str) -> Iterator[None]:
    """A client that asks ten times a second."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=20) as client:
            while not over.wait(0.1):
                client.post(url + "/predict", json={"inputs": [["I love it."], ["Never again."]]})

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def test_a_text_is_typed_and_its_label_seen(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url) as page:
        wait_until_ready(page)
        page.fill("#text", "Terrible service. Never again!")
        page.click("#send")
        page.wait_for_selector("#result .bars")
        assert best(page) == "NEGATIVE"
        assert page.locator("#result .bars li").count() == 2
        page.click("#command-box summary")
        assert "Never again!" in page.inner_text("#command")


def test_the_keyboard_is_enough(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url) as page:
        wait_until_ready(page)
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "text":
                break
        else:
            raise AssertionError("the text was not reached by Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type("I love <b>it</b> & you")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#result .bars")
        assert best(page) == "POSITIVE"


def test_what_was_refused_is_told(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url) as page:
        wait_until_ready(page)
        page.fill("#text", "  ")
        page.click("#send")
        assert page.locator("[role=alert]").inner_text() == "Write something first."


def test_numbers_move_under_load(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url) as page, load(demo.url):
        wait_until_ready(page)
        before = page.inner_text("#texts-total")
        page.wait_for_function(
            "before => document.getElementById('texts-total').textContent !== before"
            " && parseFloat(document.getElementById('texts-rate').textContent) > 0"
            " && parseFloat(document.getElementById('p99').textContent) > 0"
            " && parseFloat(document.getElementById('batch-texts').textContent) >= 1"
            " && document.getElementById('spark-line').getAttribute('d').includes('L')",
            arg=before,
        )
        assert re.fullmatch(r"\d{1,2}%", page.inner_text("#padding"))
        assert page.inner_text("#memory").endswith(("MB", "GB"))


def gpu_stats(second: int, since: int) -> dict[str, Any]:
    """What a GPU server would say after so many seconds of even load since its start."""
    passed = second - since
    grown = {"requests": 10, "sequences": 100, "tokens": 2000, "batches": 5}
    grown |= {"batch_sequences": 100, "batch_tokens": 2000, "padding_tokens": 500}
    model = {"name": "m", "task": "classify", "version": "1", "device": "cuda", "fault": None}
    model |= {"dtype": "float16", "tokenizer": "nanotoken", "max_input_length": 512}
    return {
        "time": float(second),
        "model": model | {"max_batch_tokens": 4000, "max_batch_requests": 512},
        "counters": {name: each * passed for name, each in grown.items()},
        "gauges": {"connections": 3, "inputs_in_flight": 7, "queued_sequences": 5},
        "latency": {"bounds_seconds": [0.001, 0.002, 0.004], "counts": [0, 0, 10 * passed, 0]},
        "memory_bytes": {"used": 35e9, "total": 140e9, "reserved": 1e9, "process": 1e9},
    }


def test_the_numbers_are_those_of_the_server(browser: Browser, demo: Service) -> None:
    asked = 0

    def answer(route: Any) -> None:
        nonlocal asked
        asked += 1
        route.fulfill(json=gpu_stats(asked, since=0 if asked < 6 else 5))  # then it starts anew

    with opened(browser, demo.url) as page:
        page.route("**/stats", answer)
        page.reload()
        page.wait_for_function("() => document.getElementById('texts-total').textContent === '400'")
        shown = {id: page.inner_text(f"#{id}") for id in ("texts-rate", "requests-rate", "p50")}
        assert shown == {"texts-rate": "100", "requests-rate": "10", "p50": "3.00 ms"}
        assert page.inner_text("#p99") == "3.98 ms"
        assert page.inner_text("#batch-texts") == "20.0"
        assert page.inner_text("#fill-text") == "400 tokens each, 10% of the largest batch"
        assert page.inner_text("#padding") == "20%"
        assert page.inner_text("#queued") == "5"
        assert page.inner_text("#memory") == "35.0 GB"
        assert page.inner_text("#memory-text") == "of 140.0 GB on the GPU"
        page.wait_for_function("() => document.getElementById('texts-total').textContent === '100'")
        assert page.inner_text("#texts-rate") == "–"  # nothing to compare with, nothing negative
        page.wait_for_function("() => document.getElementById('texts-rate').textContent === '100'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("locale", "width"), [("en-US", 1280), ("zh-CN", 390)])
def test_axe_finds_no_serious_fault(
    browser: Browser, demo: Service, scheme: str, locale: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    options = {"color_scheme": scheme, "locale": locale, "bypass_csp": True}  # axe adds styles
    with opened(browser, demo.url, width=width, **options) as page, load(demo.url):
        wait_until_ready(page)
        page.click("#send")
        page.wait_for_selector("#result .bars")
        page.wait_for_function("() => document.getElementById('p50').textContent !== '–'")
        page.click("#command-box summary")
        page.click("#key-box summary")
        page.wait_for_timeout(500)  # bars grow for 0.3 s
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{locale}-{width}-{scheme}.png", full_page=True)


def test_it_speaks_the_browsers_language_and_the_other_one(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url, locale="zh-CN") as page:
        wait_until_ready(page)
        assert page.inner_text("#send") == "分类"
        assert page.get_attribute("html", "lang") == "zh-CN"
        page.click("#language")
        assert page.inner_text("#send") == "Classify"
        page.reload()
        assert page.inner_text("#send") == "Classify"
        assert page.get_attribute("html", "lang") == "en"


def test_the_theme_follows_the_system_until_it_is_switched(browser: Browser, demo: Service) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, demo.url, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(ground)
        assert light != dark
        page.click("#theme")
        assert page.evaluate(ground) == dark
        page.reload()
        assert page.evaluate(ground) == dark


def test_the_policy_lets_nothing_else_in(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url, spoils=("Content Security Policy", "TrustedScript")) as page:
        refused = page.evaluate(
            """async () => {
                const found = [];
                addEventListener("securitypolicyviolation",
                    (event) => found.push(event.effectiveDirective));
                const script = document.createElement("script");
                try { script.textContent = "window.wasRun = true"; } catch { found.push("types"); }
                document.body.append(script);
                await fetch("http://127.0.0.2:9/").catch(() => {});
                document.body.setAttribute("style", "color: red");
                await new Promise((done) => setTimeout(done, 200));
                return [found, window.wasRun === true];
            }"""
        )
        found, was_run = refused
        assert {"types", "connect-src", "style-src-attr"} <= set(found)
        assert not was_run


def test_behind_a_key_it_asks_for_one_and_keeps_it_in_memory(browser: Browser) -> None:
    with (
        service(api_key=KEY, guard_metrics="on") as guarded,
        opened(browser, guarded.url, spoils=("401",)) as page,
    ):
        page.wait_for_selector("#state[data-state=fault]")
        assert page.inner_text("#state-text") == "The numbers need an API key"
        page.fill("#key", KEY)
        wait_until_ready(page)
        page.click("#send")
        page.wait_for_selector("#result .bars")
        assert KEY not in page.inner_text("#command")
        kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert KEY not in page.evaluate(kept)
        assert KEY not in page.url
        page.reload()
        assert page.input_value("#key") == ""


@pytest.mark.parametrize("task", ["token_classify", "rerank", "embed"])
def test_every_task_has_its_box(browser: Browser, tmp_path: Path, task: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    head = {"token_classify": "ForTokenClassification", "embed": "Model"}.get(task)
    folder = tmp_path / "model"
    if head is None:
        tiny_checkpoints.make_bert(folder, num_labels=1)
    else:
        tiny_checkpoints.make_bert(folder, head=head, num_labels=None if task == "embed" else 3)
    with (
        service(real=True, model_id=folder, device="cpu", threads=1) as made,
        opened(browser, made.url, bypass_csp=True) as page,  # axe adds styles
    ):
        wait_until_ready(page)
        page.wait_for_selector("#facts li")
        if task == "token_classify":
            text = "𝒜 grey 🐎 in London"
            page.fill("#text", text)  # letters of two UTF-16 units stay whole
            page.click("#send")
            page.wait_for_selector("#result .times")
            shown = page.evaluate(
                """[...document.querySelector("#result .marked").childNodes]
                   .map((n) => n.nodeType === 3 ? n.data : n.firstChild.data).join("")"""
            )
            assert shown == text
            assert page.locator("#result mark").count() >= 1
        else:
            page.click("#send")
            page.wait_for_selector("#result .bars")
            values = page.locator("#result .value").all_inner_texts()
            numbers = [float(value.rstrip("%")) for value in values]
            assert len(numbers) == (3 if task == "rerank" else 2)
            assert numbers == sorted(numbers, reverse=True)
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(500)  # bars grow for 0.3 s
        page.screenshot(path=PICTURES / f"{task}.png", full_page=True)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(page).response["violations"]
            assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []


def test_sparse_weights_have_the_tokens_names(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_checkpoints.make_bert(folder, head="ForMaskedLM", num_labels=None)
    with (
        service(real=True, model_id=folder, device="cpu", threads=1, pooling="splade") as made,
        opened(browser, made.url) as page,
    ):
        wait_until_ready(page)
        page.wait_for_selector("#facts li")
        page.fill("#text", "grey horse\n")
        page.click("#send")
        page.wait_for_selector("#result .bars")
        names = page.locator("#result .name").all_inner_texts()
        weights = [float(value) for value in page.locator("#result .value").all_inner_texts()]
        assert 0 < len(names) <= 12
        assert weights == sorted(weights, reverse=True)
        assert not all(name.isdigit() for name in names), "tokens, not their ids"
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / "embed_sparse.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_reads_well_wide_and_narrow(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    test_report.reported(
        tmp_path,
        test_report.LADDER,
        test_report.EXAMINATION,
        test_report.PROFILE,
        test_report.TUNING,
    )
    url = (tmp_path / "page/report.html").as_uri()
    with opened(browser, url, width=width, color_scheme=scheme, bypass_csp=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("figure svg").count() == 4
        assert page.locator("figure svg").first.bounding_box()["width"] >= 600, "readable"
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"report-{width}-{scheme}.png", full_page=True)


@pytest.mark.skipif(find_spec("flask_swagger_ui") is None, reason="needs the extra swagger")
def test_swagger_ui_shows_every_route_and_asks_nobody_else(browser: Browser, demo: Service) -> None:
    with opened(browser, demo.url + "/docs", spoils=()) as page:
        page.wait_for_selector(".opblock")
        shown = {path.strip() for path in page.locator(".opblock-summary-path").all_inner_texts()}
        assert {path.replace("\u200b", "") for path in shown} >= {"/predict", "/v1/embeddings"}
        page.click("#operations-default-get_health_live, .opblock-get >> nth=0")
        page.wait_for_selector(".opblock-body")
