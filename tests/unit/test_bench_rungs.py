"""Which rungs there are, what texts they get, and what the command line accepts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packhorse.checkpoint import load_checkpoint
from packhorse.config import OPTIMISATIONS
from packhorse.engine.cpu_runner import CpuRunner
from packhorse.errors import ConfigError
from packhorse.models.cpu_products import can_prepack
from packhorse.request import Int32Array, Sequences
from packhorse.tools.bench import add_arguments
from packhorse.tools.bench import rungs as table
from packhorse.tools.bench.arguments import ON_CPU, subsets
from packhorse.tools.bench.commands import plan_of
from packhorse.tools.bench.programs import Place, switches
from packhorse.tools.bench.programs.switches import CPU_SWITCHES, GPU_SWITCHES, resolved
from packhorse.tools.bench.random_checkpoint import SHAPES, model_folder, write
from packhorse.tools.bench.rungs import CPU_RUNGS, CUDA_RUNGS, chosen_rungs, obstacle, reference
from packhorse.tools.bench.workloads import cut_to, distinct_reviews, workload
from tests import tiny_checkpoints


def words(texts: Sequence[str]) -> Int32Array:
    """Lengths as if every word were a token."""
    return np.array([len(text.split()) for text in texts], np.int32)


@pytest.mark.parametrize(
    ("rungs", "switches"), [(CPU_RUNGS, CPU_SWITCHES), (CUDA_RUNGS, GPU_SWITCHES)]
)
def test_each_rung_of_the_engine_switches_one_thing_on(rungs, switches) -> None:  # type: ignore[no-untyped-def]
    ours = [rung for rung in rungs if rung.program in ("packed", "encoder")]
    assert set(ours[0].off) == set(switches)
    for below, above in pairwise(ours):
        assert len(below.off) == len(above.off) + 1
        assert set(above.off) < set(below.off)
    assert ours[-1].off == ()


def test_no_optimisation_is_without_a_rung_but_those_of_a_server() -> None:
    of_a_server = {"busy-polling", "standby", "dedup"}
    assert {*CPU_SWITCHES, *GPU_SWITCHES} | of_a_server == set(OPTIMISATIONS)


def test_a_cpu_rung_runs_without_what_it_switches_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, bool]] = []

    class Noted(CpuRunner):
        def __init__(self, model: Any, *rest: Any, streams: bool, **more: Any) -> None:
            is_prepacked = model.layers[0].mlp_in.weight.is_mkldnn
            made.append({"streams": streams, "prepacked-weights": is_prepacked})
            super().__init__(model, *rest, streams=streams, **more)

    kept: list[bool] = []
    monkeypatch.setattr(switches, "CpuRunner", Noted)
    monkeypatch.setattr(switches, "keep_freed_memory", lambda: kept.append(True))
    place = Place(str(tiny_checkpoints.shared()), "cpu", "float32", 2)
    checkpoint = load_checkpoint(place.folder)
    switches.load_runner(place, checkpoint, CPU_SWITCHES).close()
    assert not kept
    switches.load_runner(place, checkpoint).close()
    assert kept
    assert made[0] == {"streams": False, "prepacked-weights": False}
    assert made[1] == {"streams": True, "prepacked-weights": can_prepack(torch.float32)}


@pytest.mark.parametrize("rungs", [CPU_RUNGS, CUDA_RUNGS])
def test_every_rung_says_what_it_changes(rungs) -> None:  # type: ignore[no-untyped-def]
    assert len({rung.name for rung in rungs}) == len(rungs)
    for rung in rungs:
        assert rung.change.endswith(".")
        assert len(rung.name) + len(rung.change) < 110  # a line of the picture


def test_rungs_are_chosen_by_name_and_keep_their_order() -> None:
    assert [rung.name for rung in chosen_rungs("cpu", "overlap,naive")] == ["naive", "overlap"]
    with pytest.raises(ConfigError, match="rung 'graphs' is not one of naive"):
        chosen_rungs("cpu", "graphs")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {rung.name: rung for rung in CPU_RUNGS}
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    assert "pip install transformers" in str(obstacle(by_name["sorted"]))
    assert obstacle(by_name["packed"]) is None
    assert reference("cpu").program == "packed"
    assert set(reference("cuda:0").off) == set(GPU_SWITCHES)
    monkeypatch.setattr(table, "find_spec", lambda name: name)
    monkeypatch.setattr(table.shutil, "which", lambda name: None)
    assert "C++ compiler" in str(obstacle(by_name["compile"]))
    assert reference("cpu").program == "sorted"


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match="'graphs' is not one of prepacked-weights"):
        resolved(Place("folder", "cpu", "float32", 1), ("graphs",))
    config = resolved(Place("folder", "cpu", "float32", 1), ("fast-tokenizer",))
    assert config.model.tokenizer == "tokenizers"


def test_the_seed_workload_keeps_equal_texts() -> None:
    made = workload("seed", 7, words)
    assert made.texts == ["This is a great product!", "Terrible service."] * 3 + [made.texts[0]]
    assert made.lengths.tolist() == [5, 2, 5, 2, 5, 2, 5]


def _reviews(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "reviews.tsv"
    rows = "".join(f"tweet\t1.0\t{text}\n" for text in texts)
    path.write_text(f"source\tscore\ttext\n{rows}")
    return path


def test_reviews_are_distinct_and_short_enough(tmp_path: Path) -> None:
    path = _reviews(tmp_path, ["a b", "a b", "c", "d " * 129, "e " * 128])
    assert sorted(text[0] for text in distinct_reviews(words, path)) == ["a", "c", "e"]
    assert workload("reviews", 3, words, path).lengths.max() == 128
    assert workload("reviews", 2, words, path).texts == workload("reviews", 2, words, path).texts


def test_too_few_reviews_no_file_and_no_such_workload(tmp_path: Path) -> None:
    path = _reviews(tmp_path, ["a", "b"])
    with pytest.raises(ConfigError, match="holds 2 texts that fit, not 3"):
        workload("reviews", 3, words, path)
    with pytest.raises(ConfigError, match="missing"):
        workload("reviews", 3, words, tmp_path / "none.tsv")
    with pytest.raises(ConfigError, match="'long' is not one of seed, reviews"):
        workload("long", 3, words)


def test_sequences_cut_to_one_length_from_real_tokens() -> None:
    texts = Sequences(
        np.array([101, 1, 2, 102, 101, 3, 102], np.int32),
        np.array([0, 4, 7], np.int32),
        np.zeros(2, np.bool_),
    )
    made = cut_to(texts, 4, 3)
    assert made.input_ids.tolist() == [101, 1, 2, 102, 101, 3, 1, 102, 101, 2, 3, 102]
    assert made.lengths.tolist() == [4, 4, 4]
    assert made.input_ids.dtype == np.int32


def test_a_random_checkpoint_is_the_same_every_time(tmp_path: Path) -> None:
    note = write(SHAPES["tiny"], tmp_path / "one")
    write(SHAPES["tiny"], tmp_path / "two")
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert "random weights (seed 0" in note
    assert "tokenizer of" in note
    checkpoint = load_checkpoint(tmp_path / "one")
    assert checkpoint.labels == ("NEGATIVE", "POSITIVE")
    assert checkpoint.max_length == 512


def test_a_model_is_a_shape_or_a_folder(tmp_path: Path) -> None:
    write(SHAPES["tiny"], tmp_path / "mine")
    assert model_folder(str(tmp_path / "mine"), tmp_path)[0] == tmp_path / "mine"
    assert model_folder("tiny", tmp_path)[0] == tmp_path / "tiny"
    with pytest.raises(ConfigError, match="neither a folder nor one of bert-base"):
        model_folder(str(tmp_path / "none"), tmp_path)


def test_subsets() -> None:
    assert subsets([], "cpu") == ON_CPU
    assert subsets([], "cuda:0") == {}
    assert subsets(["naive=7", "sorted=9"], "cpu") == ON_CPU | {"naive": 7, "sorted": 9}
    for wrong in ("naive", "naive=", "naive=0", "=3", "naive=x"):
        with pytest.raises(ConfigError, match="write RUNG=TEXTS"):
            subsets([wrong], "cpu")


def test_the_plan_of_a_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = "ladder --device cpu --threads 3 --rungs naive,packed --workloads seed --dtype bfloat16"
    plan = plan_of(parser.parse_args(line.split()))
    assert [rung.name for rung in plan.rungs] == ["naive", "packed"]
    assert (plan.device, plan.dtype, plan.threads) == ("cpu", "bfloat16", 3)
    assert (plan.model, plan.texts, plan.rounds) == ("bert-base", 1000, 5)
    assert plan.workloads == ["seed"]
    with pytest.raises(ConfigError, match="'graphs' is not one of"):
        plan_of(parser.parse_args(["ladder", "--device", "cpu", "--subset", "graphs=3"]))
    with pytest.raises(ConfigError, match="usable NVIDIA GPUs"):
        plan_of(parser.parse_args(["gpu", "--device", "cuda:99"]))
