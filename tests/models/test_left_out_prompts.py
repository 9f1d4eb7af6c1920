"""Prompts whose tokens a folder's pooling leaves out (include_prompt false).

The reference is sentence-transformers' rule in plain PyTorch: the tokens of the prompt alone, but
for a special token at its end, are masked before the hidden states are pooled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from packhorse.errors import ValidationError
from packhorse.kernels import select
from packhorse.models.backend import Layout
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.kernel_backend import KernelBackend
from tests import tiny_checkpoints
from tests.e2e.service import Service
from tests.models.test_sentence import MODES, NAMES, assert_close, encoder_of, pooling

PROMPT = "Find this: "
INPUTS = ["a good film", "", "The story was slow, and the sound was bad!", "日本語", "word " * 200]
PROMPTS = {"prompts": {"query": PROMPT, "none": ""}}
COMBINATIONS = [(mode,) for mode in MODES if mode != "cls_token"]
COMBINATIONS += [("max_tokens", "weightedmean_tokens", "lasttoken")]


def make(folder: Path, family: str = "bert", *modes: str) -> Path:
    tiny_checkpoints.make(folder, family, head="Model", num_labels=None)
    module = pooling(*modes) | {"include_prompt": False}
    return tiny_checkpoints.add_modules(folder, module, config_sentence_transformers=PROMPTS)


def pooled(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    """As sentence-transformers' Pooling: states (1, n, D) and mask (1, n) to (1, D)."""
    wide = mask[..., None].float()
    if mode == "max":
        return states.masked_fill(wide == 0, float("-inf")).amax(dim=1)
    if mode == "last":
        return states[:, -1]
    if mode == "weighted_mean":
        wide = wide * torch.arange(1, states.shape[1] + 1)[None, :, None]
    divisor = wide.sum(dim=1)
    return (states * wide).sum(dim=1) / (divisor.sqrt() if mode == "mean_sqrt_len" else divisor)


def expected(folder: Path, modes: tuple[str, ...], inputs: list[str], prompt: str) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    alone = tokenizer(prompt)["input_ids"]
    left_out = len(alone) - (alone[-1] in tokenizer.all_special_ids)
    rows = []
    with torch.no_grad():
        for text in inputs:
            encoded = tokenizer(prompt + text, truncation=True, max_length=128, return_tensors="pt")
            states = model(**encoded).last_hidden_state
            mask = encoded["attention_mask"].clone()
            mask[:, :left_out] = 0
            rows.append(torch.cat([pooled(states, mask, NAMES[mode])[0] for mode in modes]))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("modes", COMBINATIONS, ids="+".join)
def test_the_prompt_is_read_and_not_pooled(modes: tuple[str, ...], tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert", *modes)
    with encoder_of(folder) as encoder:
        got = encoder.embed(INPUTS, prompt_name="query")
        assert np.array_equal(got, encoder.embed(INPUTS, prompt=PROMPT))
        plain = encoder.embed(INPUTS)
        assert np.array_equal(plain, encoder.embed(INPUTS, prompt_name="none"))
        states = encoder.embed_tokens(INPUTS[:1], prompt_name="query")[0]
    assert_close(got, expected(folder, modes, INPUTS, PROMPT))
    assert np.abs(got - plain).max() > 0.01
    assert len(states) == 8  # [CLS] find this : a good film [SEP]: all have a state


@pytest.mark.parametrize("family", ["roberta", "modernbert", "deberta-v2"])
def test_other_tokenizers_count_the_prompt_as_transformers_does(
    family: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "m", family, "mean_tokens")
    with encoder_of(folder) as encoder:
        got = encoder.embed(INPUTS[:3], prompt=PROMPT.strip())
    assert_close(got, expected(folder, ("mean_tokens",), INPUTS[:3], PROMPT.strip()))


def test_similarities_leave_it_out_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert", "mean_tokens")
    with encoder_of(folder) as encoder:
        units = encoder.embed(INPUTS, prompt_name="query", normalize=True)
        assert_close(
            encoder.similarity(INPUTS[:2], INPUTS, prompt_name="query"), units[:2] @ units.T
        )


def test_of_windows_the_first_has_the_prompt_and_no_weight_for_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert", "mean_tokens")
    long, short = "word " * 200, "a good film"
    with encoder_of(folder) as encoder:
        got = encoder.embed([long, short], prompt_name="query", stride=10)
        states = encoder.embed_tokens([PROMPT + long])[0][4:]
        ids = encoder.encode([PROMPT + "word " * 400], truncate=True).input_ids
        assert_close(got[1:], encoder.embed([short], prompt_name="query"))
        rest = encoder._loaded.tokenizer.library.encode(PROMPT + long, add_special_tokens=False).ids
        second = encoder._loaded.tokenizer.from_ids([[ids[0], *rest[116:], ids[-1]]])
        tail = encoder.logits(second)
    weights = [len(states), second.num_tokens]
    assert_close(got[:1], np.average([states.mean(axis=0), tail[0]], axis=0, weights=weights)[None])


def test_what_leaves_nothing_to_pool_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "cls", "bert", "cls_token", "mean_tokens")
    with encoder_of(folder) as encoder:
        encoder.embed(["a"], prompt_name="none")
        for options in ({"prompt_name": "query"}, {"prompt": "find "}):
            with pytest.raises(ValidationError, match="include_prompt is false"):
                encoder.embed(["a"], **options)  # type: ignore[arg-type]
    folder = make(tmp_path / "mean", "bert", "mean_tokens")
    with encoder_of(folder) as encoder:
        encoder.embed(["a"], prompt=PROMPT, truncation_direction="left")
        with pytest.raises(ValidationError, match=r"inputs\[1\] is too long, and its left end"):
            encoder.embed(["a", "b " * 200], prompt=PROMPT, truncation_direction="left")


@pytest.mark.long
def test_the_server_gives_what_the_library_gives(tmp_path: Path) -> None:
    import httpx

    folder = make(tmp_path / "m", "bert", "mean_tokens")
    inputs = [*INPUTS, f"{PROMPT}a good film"]  # the last has the ids of a text with the prompt
    with encoder_of(folder) as encoder:
        wanted = encoder.embed(inputs, prompt_name="query", normalize=True)
        plain = encoder.embed(inputs, normalize=True)
        assert np.abs(plain[-1] - wanted[0]).max() > 0.01
    service = Service(real=True, model_id=folder, device="cpu", dtype="float32", front_ends=1)
    try:
        url = service.start().url

        def asked(**body: Any) -> np.ndarray:
            answer = httpx.post(f"{url}/embed", json={"inputs": inputs} | body)
            assert answer.status_code == 200, answer.text
            return np.array(answer.json(), np.float32)

        for _ in range(2):  # what is kept or shared must not be mistaken for the other
            assert_close(asked(prompt_name="query"), wanted)
            assert_close(asked(), plain)
    finally:
        service.close()


@pytest.mark.parametrize(
    "mode", ["marked", "last", "max", "mean", "mean_sqrt_len", "weighted_mean"]
)
def test_both_backends_pool_from_the_mark_on(mode: str) -> None:
    lengths, marks = torch.tensor([3, 1, 7, 4]), torch.tensor([1, 0, 6, 2], dtype=torch.int32)
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    states = torch.randn(15, 8, generator=torch.Generator().manual_seed(1))
    starts, ends = (each.repeat_interleave(lengths) for each in (bounds[:-1], bounds[1:]))
    layout = Layout(torch.zeros(15), None, bounds, starts, ends, marks=marks)
    rows = []
    for start, stop, mark in zip(bounds, bounds[1:], marks, strict=False):
        if mode == "marked":
            rows.append(states[start + mark])
            continue
        mask = torch.ones(1, int(stop - start))
        mask[:, :mark] = 0
        rows.append(pooled(states[None, start:stop], mask, mode)[0])
    for backend in (CpuBackend(), KernelBackend(select("cpu"))):
        got = backend.pool(states, layout, mode)
        assert (got - torch.stack(rows)).abs().max() < 1e-6
