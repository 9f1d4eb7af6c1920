"""Servers of checkpoints that have something wrong: refused at the start, or for one text only."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
import torch

from tests import tiny_checkpoints
from tests.e2e.service import Service, service

Tensors = dict[str, torch.Tensor]

ADDED = ["zebra", "lemur", "okapi"]


def without_a_number(folder: Path, word: str) -> Path:
    """Make the embedding of a word NaN."""
    number = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(word)

    def edit(tensors: Tensors) -> Tensors:
        tensors["bert.embeddings.word_embeddings.weight"][number, 0] = float("nan")
        return tensors

    return tiny_checkpoints.edit_tensors(folder, edit)


def with_added_tokens(folder: Path) -> Path:
    """Add tokens to the tokenizer for which the model has no embeddings."""
    path = str(folder / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(path)
    assert library.add_tokens(ADDED) == len(ADDED)
    library.save(path)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Of a model without a number for "war", and whose tokenizer knows three words too many.

    Its device is auto, on a machine that shows no GPU.
    """
    folder = tiny_checkpoints.make_bert(tmp_path_factory.mktemp("checkpoint") / "model")
    with service(
        real=True,
        environment={"CUDA_VISIBLE_DEVICES": "9"},
        model_id=without_a_number(with_added_tokens(folder), "war"),
    ) as made:
        yield made


@pytest.mark.case(23)
def test_a_token_without_an_embedding_fails_its_own_request(server: Service) -> None:
    assert "the tokenizer has ids up to" in server.log
    for word in ADDED:
        statuses = [server.predict(t).status_code for t in ("good", f"a {word} film", "good")]
        assert statuses == [200, 422, 200]
    refused = server.predict([["good"], [ADDED[0]], ["film"]])
    assert refused.status_code == 422
    assert "inputs[1] has a token with id" in refused.json()["error"]
    assert ADDED[0] not in refused.text + server.log


@pytest.mark.case(73, 81)
def test_a_text_without_a_number_is_an_explained_500_and_is_counted(server: Service) -> None:
    counted = server.metric("packhorse_non_finite_sequences_total")
    expected = server.predict("good film").json()
    inputs = ["good film"] * 31 + ["a war", "a zebra"]
    with ThreadPoolExecutor(len(inputs)) as clients:
        answers = list(clients.map(server.predict, inputs))
    assert [one.status_code for one in answers] == [200] * 31 + [500, 422]
    for one in answers[:31]:
        scores = {row["label"]: row["score"] for row in one.json()}
        assert scores == pytest.approx({r["label"]: r["score"] for r in expected}, abs=1e-5)
    bad = answers[31]
    assert bad.headers["content-type"] == "application/json"
    assert "non_finite_output" in bad.json()["error"]
    assert "null" not in bad.text
    assert server.metric("packhorse_non_finite_sequences_total") == counted + 1
    listed = server.predict([["good"], ["war"], ["film"]])
    assert listed.status_code == 500
    assert "inputs[1]" in listed.json()["error"]
    raw = server.predict("war", raw_scores=True)
    assert (raw.status_code, "null" in raw.text) == (500, False)
    assert server.metric("packhorse_non_finite_sequences_total") == counted + 3


@pytest.mark.case(101)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the driver of this machine is asked anew")
def test_auto_says_that_it_took_the_cpu(server: Service) -> None:
    info = server.get("/info").json()
    assert info["device"] == "cpu"
    assert info["config"]["model"]["device"] == "cpu"
    assert any(
        line.startswith("packhorse_info{") and 'device="cpu"' in line
        for line in server.get("/metrics").text.splitlines()
    )
    warnings = [line for line in server.log.splitlines() if "WARN" in line.upper()]
    assert any("--device auto takes the CPU" in line for line in warnings), warnings


# Weights that are not those of the config: no answer at all, rather than a random one.


def prefixed(folder: Path) -> Path:
    tiny_checkpoints.make_bert(folder)
    return tiny_checkpoints.edit_tensors(folder, lambda t: {f"module.{n}": t[n] for n in t})


def headless(folder: Path) -> Path:
    tiny_checkpoints.make_bert(folder)
    return tiny_checkpoints.edit_tensors(
        folder, lambda t: {name: t[name] for name in t if "classifier" not in name}
    )


def language_model(folder: Path) -> Path:
    return tiny_checkpoints.make_bert(folder, head="ForMaskedLM")


def without_a_shard(folder: Path) -> Path:
    tiny_checkpoints.make_bert(folder, max_shard_size="20KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    return folder


REFUSED = {
    prefixed: ("embeddings.word_embeddings.weight", "module.bert", "DataParallel"),
    headless: ("classifier.weight", "classifier.bias", "no trained classification head"),
    language_model: ("classifier.weight", "classifier.bias"),
    without_a_shard: ("model-00002-of-",),
}


@pytest.mark.long
@pytest.mark.case(29, 31)
def test_weights_that_do_not_fit_end_the_server_before_it_answers(tmp_path: Path) -> None:
    made = {
        make: Service(real=True, device="cpu", task="classify", model_id=make(tmp_path / name))
        for make, name in ((make, make.__name__) for make in REFUSED)
    }
    for one in made.values():
        one.start(wait=False)
    try:
        for make, one in made.items():
            assert one.wait(90) == 2, make.__name__
            assert one.process is not None
            assert one.process.stdout is not None
            assert one.process.stdout.read() == ""  # it never said that it serves
            for word in REFUSED[make]:
                assert word in one.log, make.__name__
            assert "Traceback" not in one.log
    finally:
        for one in made.values():
            one.close()
