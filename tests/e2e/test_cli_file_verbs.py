"""Every task over a file, with real models: the rows say what the library says."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from torch import Tensor

from packhorse import Encoder, cli
from packhorse.tools.files import model as models
from tests import tiny_checkpoints
from tests.fake_encoder import Outcome
from tests.models.test_sentence import pooling
from tests.unit.test_rerank import inference_model

pytestmark = pytest.mark.long

TEXTS = [
    "a good film",
    "The story was slow, and the sound was bad!",
    "日本語",
    "the sea",
    "word " * 200,
]
OTHERS = ["a film", "good sound", "the end", "the sea", "a bad story"]
LABELS = ["music", "war, and peace", "films"]

Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> Outcome:
        code = cli.main([*map(str, arguments), "--device", "cpu", "--dtype", "float32"])
        return Outcome(code, capfd.readouterr().err)

    return run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each command."""
    root = tmp_path_factory.mktemp("models")
    embedder = tiny_checkpoints.make_bert(root / "embedder", head="Model", num_labels=None)
    prompts = {"prompts": {"query": "find this: "}, "default_prompt_name": None}
    tiny_checkpoints.add_modules(
        embedder, pooling("mean_tokens"), config_sentence_transformers=prompts
    )
    return {
        "classify": tiny_checkpoints.shared(num_labels=3),
        "token-classify": tiny_checkpoints.shared(head="ForTokenClassification", num_labels=5),
        "embed": embedder,
        "embed-sparse": tiny_checkpoints.shared(head="ForMaskedLM", num_labels=None),
        "similarity": embedder,
        "rerank": tiny_checkpoints.shared(num_labels=1),
        "zero-shot": inference_model(root / "inference"),
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A table with a pair in each row, and one row that cannot be used."""
    lines = [
        json.dumps({"id": n, "text": text, "other": other})
        for n, (text, other) in enumerate(zip(TEXTS, OTHERS, strict=True))
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([*lines[:2], '{"text": 3}', *lines[2:]]) + "\n")
    return path


def encoder(folder: Path) -> Encoder:
    return Encoder(folder, device="cpu", dtype="float32")


def objects_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def checked(run: Run, source: Path, folder: Path, verb: str, *more: str) -> list[dict[str, Any]]:
    """The rows of the output: all of the input but the bad one, in order, with their columns."""
    out = source.with_name("out.jsonl")
    outcome = run(verb, source, "-o", out, "--model-id", folder, *more)
    assert outcome.code == 0, outcome.err
    assert "5 rows, 1 skipped, 1 truncated" in outcome.err, outcome.err
    rows = objects_of(out)
    out.unlink()
    assert [row["id"] for row in rows] == list(range(5))
    assert [row["text"] for row in rows] == TEXTS
    return rows


def close(got: Any, expected: Any) -> bool:
    return bool(np.abs(np.array(got) - np.array(expected)).max() < 1e-5)


def test_embed_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["embed"]
    with encoder(folder) as library:
        plain = library.embed(TEXTS)
        few = library.embed(TEXTS, prompt_name="query", dimensions=8, normalize=True)
        bits = library.embed(TEXTS, output_type="ubinary")
    rows = checked(run, source, folder, "embed")
    assert close([row["embedding"] for row in rows], plain)
    more = ("--prompt-name", "query", "--dimensions", "8", "--normalize")
    rows = checked(run, source, folder, "embed", *more, "--embedding-column", "e")
    assert close([row["e"] for row in rows], few)
    rows = checked(run, source, folder, "embed", "--output-type", "ubinary", "--prefix", "x_")
    assert np.array_equal([row["x_embedding"] for row in rows], bits)


def test_embed_sparse_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["embed-sparse"]
    with Encoder(folder, device="cpu", dtype="float32", task="embed_sparse") as library:
        plain, prompted = library.embed_sparse(TEXTS), library.embed_sparse(TEXTS, prompt="find ")
    for flags, expected in (((), plain), (("--prompt", "find "), prompted)):
        rows = checked(run, source, folder, "embed-sparse", "--pooling", "splade", *flags)
        for row, vector in zip(rows, expected, strict=True):
            assert [each["index"] for each in row["embedding"]] == vector.indices.tolist()
            assert close([each["value"] for each in row["embedding"]], vector.values)
    parquet = source.with_name("sparse.parquet")
    table = source.with_name("in.csv")
    table.write_text("text\na good film\nbad\n")
    outcome = run(
        "embed-sparse", table, "-o", parquet, "--model-id", folder, "--task", "embed_sparse"
    )
    assert outcome.code == 0, outcome.err
    reader = pytest.importorskip("pyarrow.parquet")
    first = reader.read_table(parquet).column("embedding").to_pylist()[0]
    assert [each["index"] for each in first] == plain[0].indices.tolist()
    refused = run("embed-sparse", table, "-o", "-", "--model-id", folders["embed"])
    assert refused.code != 0
    assert "embeds texts; load one that embeds texts sparsely" in refused.err


def test_similarity_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["similarity"]
    with encoder(folder) as library:
        cosines = library.similarity(TEXTS, OTHERS).diagonal()
        to_one = library.similarity(["the sea"], TEXTS)[0]
    rows = checked(run, source, folder, "similarity", "--pair-column", "other")
    assert close([row["score"] for row in rows], cosines)
    rows = checked(run, source, folder, "similarity", "--source-sentence", "the sea")
    assert close([row["score"] for row in rows], to_one)
    assert rows[3]["score"] == pytest.approx(1, abs=1e-5)


def test_rerank_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["rerank"]
    with encoder(folder) as library:
        ranked = library.rerank("the sea", TEXTS)
        pairs = library.rerank(OTHERS[1], [TEXTS[1]], raw_scores=True)
    rows = checked(run, source, folder, "rerank", "--query", "the sea")
    for found in ranked:
        assert rows[found.index]["score"] == pytest.approx(found.score, abs=1e-5)
    rows = checked(run, source, folder, "rerank", "--query-column", "other", "--raw-scores")
    assert rows[1]["score"] == pytest.approx(pairs[0].score, abs=1e-5)


def test_zero_shot_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["zero-shot"]
    with encoder(folder) as library:
        expected = library.zero_shot(TEXTS, LABELS, "It is about {}.")
    flags = ("--labels", "music, films", "--label", LABELS[1])
    flags += ("--hypothesis-template", "It is about {}.")
    rows = checked(run, source, folder, "zero-shot", *flags, "--top-k", "all")
    for row, one in zip(rows, expected, strict=True):
        assert row["labels"] == [each.label for each in one]
        assert close(row["scores"], [each.score for each in one])
    rows = checked(
        run, source, folder, "zero-shot", *flags, "--hypothesis-template", "It is about {}."
    )
    assert [row["label"] for row in rows] == [one[0].label for one in expected]


def test_token_classify_is_the_librarys(run: Run, source: Path, folders: dict[str, Path]) -> None:
    folder = folders["token-classify"]
    for strategy, index in (("none", True), ("simple", False), ("first", False)):
        with encoder(folder) as library:
            expected = library.token_classify(TEXTS, strategy, ignore_labels=("LABEL_1",))
        flags = ("--aggregation-strategy", strategy, "--ignore-labels", "LABEL_1")
        rows = checked(run, source, folder, "token-classify", *flags)
        for row, entities in zip(rows, expected, strict=True):
            assert [one["label"] for one in row["entities"]] == [one.label for one in entities]
            for got, one in zip(row["entities"], entities, strict=True):
                assert (got["start"], got["end"]) == (one.start, one.end)
                assert (got["word"], got.get("index")) == (one.word, one.index)
                assert got["score"] == pytest.approx(one.score, abs=1e-5)
                assert ("index" in got) is index


def test_fill_mask_is_the_librarys(run: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["embed-sparse"]
    texts = ["a [MASK] film", "no mask", "[MASK], and\t[MASK]; or |", "[MASK] " + "word " * 300]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with Encoder(folder, device="cpu", dtype="float32", task="fill_mask") as library:
        expected = library.fill_mask([texts[0], *texts[2:]], 2, ["good", "film", "bad"])
    flags = ("--task", "fill_mask", "--model-id", folder, "--top-k", "2")
    flags += ("--targets", "good,film,bad")
    outcome = run("fill-mask", source, "-o", out, *flags)
    assert outcome.code == 0, outcome.err
    assert "3 rows, 1 skipped, 1 truncated" in outcome.err, outcome.err
    assert "line 2 skipped: has no mask: put [MASK] where" in outcome.err, outcome.err
    for row, fills in zip(objects_of(out), expected, strict=True):
        for mask, other in zip(row["fills"], fills, strict=True):
            for one, fill in zip(mask, other, strict=True):
                assert one.pop("score") == pytest.approx(fill.score, rel=1e-4)
                assert one == {n: getattr(fill, n) for n in ("token", "token_str", "sequence")}
    parquet = pytest.importorskip("pyarrow.parquet")
    rows, table = {}, tmp_path / "in.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    for suffix in ("csv", "parquet"):
        assert run("fill-mask", table, "-o", tmp_path / f"out.{suffix}", *flags).code == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows["csv"] = [json.loads(row["fills"]) for row in csv.DictReader(file, strict=True)]
    rows["parquet"] = parquet.read_table(tmp_path / "out.parquet").column("fills").to_pylist()
    same = [row["fills"] for row in objects_of(out)]
    assert rounded(rows["parquet"]) == rounded(rows["csv"]) == rounded(same)
    refused = run("fill-mask", source, "-o", "-", "--model-id", folder)
    assert refused.code == 2
    assert "embeds texts; load one that fills masks" in refused.err


def test_a_fault_of_the_model_is_told_from_one_of_the_row(
    run: Run, tmp_path: Path, folders: dict[str, Path]
) -> None:
    """A text without a mask asks nothing of a model that fills masks: another question must do."""
    folder = tmp_path / "m"
    shutil.copytree(folders["embed-sparse"], folder)
    word = int(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("bad"))

    def broken(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "bert.embeddings.word_embeddings.weight"
        table = tensors[name].clone()
        table[word] = float("nan")
        return tensors | {name: table, "cls.predictions.decoder.weight": tensors[name].clone()}

    tiny_checkpoints.edit_tensors(folder, broken)
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("a [MASK]\na bad [MASK]\nthe [MASK]\n")
    more = ("--task", "fill_mask", "--model-id", folder)
    outcome = run("fill-mask", source, "-o", out, *more)
    assert outcome.code == 0, outcome.err
    assert "2 rows, 1 skipped" in outcome.err, outcome.err


def test_long_texts_are_read_in_windows(
    run: Run, source: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    folder = folders["token-classify"]
    outcome = run("token-classify", source, "-o", out, "--model-id", folder, "--stride", "0")
    assert "5 rows, 1 skipped, 0 truncated" in outcome.err
    with encoder(folder) as library:
        expected = library.token_classify(TEXTS, "simple", stride=0)[-1]
    got = objects_of(out)[-1]["entities"]
    assert [(e["label"], e["start"], e["end"]) for e in got] == [
        (e.label, e.start, e.end) for e in expected
    ]
    assert max(e["end"] for e in got) > 900


def test_vectors_and_labels_of_long_texts_are_the_librarys(
    run: Run, source: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    for verb in ("embed", "classify"):
        more = ("--model-id", folders[verb], "--stride", "8", "--overwrite")
        outcome = run(verb, source, "-o", out, *more)
        assert "5 rows, 1 skipped, 0 truncated" in outcome.err
        with encoder(folders[verb]) as library:
            if verb == "embed":
                got = [row["embedding"] for row in objects_of(out)]
                assert close(got, library.embed(TEXTS, stride=8))
            else:
                best = library.classify(TEXTS, 1, stride=8)
                assert close([row["score"] for row in objects_of(out)], [b[0].score for b in best])


def flags_of(verb: str) -> tuple[str, ...]:
    return {
        "rerank": ("--query", "the sea"),
        "similarity": ("--source-sentence", "the sea"),
        "zero-shot": ("--labels", "music,films"),
    }.get(verb, ())


VERBS = ("classify", "token-classify", "embed", "rerank", "zero-shot", "similarity")


@pytest.mark.parametrize("verb", VERBS)
def test_every_format_says_the_same(
    run: Run, tmp_path: Path, folders: dict[str, Path], verb: str
) -> None:
    """What is a list or an object stands as JSON in a table."""
    parquet = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *([n, t] for n, t in enumerate(TEXTS))])
    for suffix in ("csv", "jsonl", "parquet"):
        more = ("--model-id", folders[verb], *flags_of(verb))
        assert run(verb, source, "-o", tmp_path / f"out.{suffix}", *more).code == 0
    objects = objects_of(tmp_path / "out.jsonl")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file, strict=True))
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [list(row) for row in objects] == [list(table[0])] * 5 == [list(rows[0])] * 5
    for added in list(table[0])[2:]:
        from_csv = [row[added] for row in table]
        if added != "label":
            from_csv = [json.loads(value) for value in from_csv]
        assert from_csv == [row[added] for row in objects]
        assert rounded([row[added] for row in rows]) == rounded(from_csv)


def rounded(value: Any) -> Any:
    """Numbers as the float32 that they stand for."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupted_run_is_continued(
    run: Run,
    tmp_path: Path,
    folders: dict[str, Path],
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(f"text number {n}\n" for n in range(12)))
    more = ("--model-id", folders[verb], "--batch", "2", *flags_of(verb))
    assert run(verb, source, "-o", tmp_path / "whole.jsonl", *more).code == 0
    load = models.load

    def interrupted(*arguments: Any) -> Any:
        loaded = load(*arguments)
        submit, times = loaded.engine.submit, iter(range(3))

        def few_times(*given: Any, **options: Any) -> Any:
            if next(times, None) is None:
                raise KeyboardInterrupt
            return submit(*given, **options)

        monkeypatch.setattr(loaded.engine, "submit", few_times)
        stopped.append(loaded)
        return loaded

    stopped: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(models, "load", interrupted)
        monkeypatch.setattr("packhorse.cli._interrupted", lambda: 130)
        assert run(verb, source, "-o", tmp_path / "out.jsonl", *more).code == 130
    stopped[0].engine.close()
    outcome = run(verb, source, "-o", tmp_path / "out.jsonl", *more)
    assert outcome.code == 0
    assert "going on after line 6" in outcome.err
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("verb", VERBS)
def test_a_model_for_another_task_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, folders: dict[str, Path], verb: str
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    other = folders["classify" if verb in ("embed", "similarity", "token-classify") else "embed"]
    outcome = run(verb, source, "-o", tmp_path / "out.jsonl", "--model-id", other, *flags_of(verb))
    assert outcome.code == 2
    assert "this model " in outcome.err
    assert outcome.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


@pytest.mark.parametrize(
    ("verb", "flags", "says"),
    [
        ("rerank", (), "either --query or --query-column"),
        ("rerank", ("--query", "a", "--query-column", "b"), "either --query or --query-column"),
        ("rerank", ("--query-column", "text"), "must be two columns"),
        ("rerank", ("--query-column", "b"), "a text file has one text a line; --query-column"),
        ("similarity", (), "either --source-sentence or --pair-column"),
        ("similarity", ("--source-sentence", "a", "--prompt-name", "x"), "no prompt 'x'"),
        ("zero-shot", (), "say with --labels"),
        ("zero-shot", ("--labels", "a,b", "--label", "a"), "names a label twice"),
        ("zero-shot", ("--labels", "a", "--hypothesis-template", "x"), "one place for a label"),
        ("embed", ("--dimensions", "1000"), "this model's vectors have 32 numbers"),
        ("embed", ("--prompt", "a", "--prompt-name", "b"), "were both given"),
        ("token-classify", ("--stride", "4", "--no-truncate"), "does not go with --no-truncate"),
        (
            "token-classify",
            ("--stride", "4", "--aggregation-strategy", "none"),
            "other than none",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(
    run: Run,
    tmp_path: Path,
    folders: dict[str, Path],
    verb: str,
    flags: tuple[str, ...],
    says: str,
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    outcome = run(verb, source, "-o", tmp_path / "out.jsonl", "--model-id", folders[verb], *flags)
    assert (outcome.code, says in outcome.err) == (2, True), outcome.err
    assert outcome.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
