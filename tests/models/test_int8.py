"""Dense layers in 8 bits: their arithmetic beside that in float, and what it costs in answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.engine.load import resolve_dtype
from packhorse.errors import DeviceError
from packhorse.hardware import detect
from packhorse.kernels.reference import ACTIVATIONS
from packhorse.models import calibration, int8
from packhorse.models.backend import Dense
from packhorse.models.calibration import made_up_texts
from packhorse.models.int8 import (
    Extent,
    Int8Dense,
    can_quantise,
    extent_of,
    product,
    product_added,
    product_of_levels,
    quantised,
)
from tests.tiny_checkpoints import shared

needs_products = pytest.mark.skipif(
    not can_quantise(), reason="this build of PyTorch has no products of bytes"
)

MOST = int8.MOST_WEIGHT if detect().native_int8 else int8.MOST_WEIGHT_OF_16_BITS
ROWS, INPUTS, OUTPUTS = 37, 96, 160


def wide_layer(seed: int = 0, outputs: int = OUTPUTS, inputs: int = INPUTS) -> Dense:
    torch.manual_seed(seed)
    return Dense(torch.randn(outputs, inputs) * 0.1, torch.randn(outputs))


def rows(seed: int = 1, columns: int = INPUTS) -> Tensor:
    """With columns of very different size, as LayerNorm's are, and none around zero."""
    torch.manual_seed(seed)
    return torch.randn(ROWS, columns) * torch.linspace(0.1, 6.0, columns) + 0.5


def wide_again(layer: Int8Dense, levels: Tensor, whole: Tensor) -> Tensor:
    """The product of these levels and whole weights (out, in), in float64."""
    own = layer.levels
    x = (levels.double() - own.zero_point) * own.scale
    y = x @ (whole.double() * layer.weight_scales[:, None].double()).T
    return y + (0.0 if layer.bias is None else layer.bias.double())


def whole_weights(layer: Dense, made: Int8Dense) -> Tensor:
    factors = torch.ones(layer.weight.shape[1])
    if made.levels.columns is not None:
        factors = 1 / (made.levels.columns * made.levels.scale)
    return (layer.weight * factors / made.weight_scales[:, None]).round()


@needs_products
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("activation", [None, "gelu", "relu", "gelu_new"])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_that_of_its_whole_numbers(
    even: bool, activation: str | None, biased: bool
) -> None:
    layer, x = wide_layer(), rows()
    layer = layer if biased else replace(layer, bias=None)
    made = quantised(layer, extent_of(x), MOST, even=even)
    expected = wide_again(made, made.levels.quantised(x), whole_weights(layer, made)).float()
    if activation is not None:
        expected = ACTIVATIONS[activation](expected)
    torch.testing.assert_close(product(x, made, activation), expected, atol=2e-5, rtol=1e-5)


@needs_products
def test_the_largest_whole_numbers_do_not_overflow() -> None:
    """Without VNNI pairs of products are summed in 16 bits, and clipped there without a word."""
    layer = Dense(torch.ones(16, 512), None)
    x = torch.full((4, 512), 3.0)
    x[:, ::2] *= 0.999
    made = quantised(layer, extent_of(x), MOST, even=False)
    torch.testing.assert_close(product(x, made), x @ layer.weight.T, atol=0.0, rtol=0.01)


@needs_products
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_is_added_exactly(dtype: torch.dtype) -> None:
    layer, x = wide_layer(outputs=INPUTS), rows()
    made, other = quantised(layer, extent_of(x), MOST, even=True), rows(2).to(dtype)
    levels = made.levels.quantised(x)
    expected = wide_again(made, levels, whole_weights(layer, made)) + other.double()
    summed = product_added(levels, made, other)
    assert summed.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(summed.double(), expected, atol=2e-5, rtol=tolerance)


@needs_products
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_levels_written_by_a_product_are_those_of_its_result(activation: str) -> None:
    first, second, x = wide_layer(), wide_layer(3, INPUTS, OUTPUTS), rows()
    made = quantised(first, extent_of(x), MOST, even=True)
    wide = product(x, made, activation)
    following = quantised(second, extent_of(wide), MOST, even=False)
    levels = product_of_levels(x, made, activation, following)
    expected = following.levels.quantised(wide)
    assert levels.dtype == torch.uint8
    assert (levels.int() - expected.int()).abs().max() <= 1  # a half may go either way
    assert (levels == expected).float().mean() > 0.99


def test_zero_has_a_level_and_what_is_beyond_the_extent_gets_the_last() -> None:
    layer, x = wide_layer(), rows().abs() + 1.0  # never zero
    made = quantised(layer, extent_of(x), MOST, even=False)
    own = made.levels
    shown = torch.tensor([[0.0, 1e6, -1e6, float(x.max())]]).expand(1, 4)
    assert own.quantised(shown).tolist() == [[own.zero_point, 255, 0, 255]]


def test_factors_make_large_columns_small_and_change_no_product() -> None:
    """Without them all but the few large columns, which models have, would have few levels."""
    layer, x = wide_layer(), rows()
    x[:, ::40] *= 20.0
    exact = x @ layer.weight.T + layer.bias

    def error(even: bool) -> float:
        made = quantised(layer, extent_of(x), MOST, even=even)
        whole = whole_weights(layer, made)
        return float((wide_again(made, made.levels.quantised(x), whole) - exact).std())

    assert error(even=True) < 0.5 * error(even=False)
    assert error(even=True) < 0.02 * float(exact.std())


def test_made_up_texts_are_the_same_every_time_and_fit_the_model() -> None:
    architecture = load_checkpoint(str(shared())).architecture
    texts, again = (made_up_texts(architecture, 500) for _ in range(2))
    assert np.array_equal(texts.input_ids, again.input_ids)
    assert texts.lengths.max() <= architecture.max_positions
    assert (np.diff(texts.lengths) >= 0).all()
    assert texts.input_ids.min() >= 0
    assert texts.input_ids.max() < 500
    assert not (texts.input_ids == architecture.pad_token_id).any()


def error_in_8_bits(family: str) -> float:
    """Root mean square of what is off in logits, as a share of how they differ between texts."""
    texts = [f"number {i} of some texts, {'good ' * (i % 7)}or not" for i in range(64)]
    logits = {}
    for dtype in ("float32", "int8"):
        with Encoder(shared(family), device="cpu", dtype=dtype) as encoder:
            answers = encoder.classify(texts, raw_scores=True)
            assert encoder.info["dtype"] == dtype
        logits[dtype] = np.array(
            [[one.score for one in sorted(a, key=lambda one: one.label)] for a in answers]
        )
    error = logits["int8"] - logits["float32"]
    return float(np.sqrt((error**2).mean()) / logits["float32"].std())


MOST_ERROR = 0.2
"""Of tiny models with random weights, in 7 bits where there is no VNNI; trained ones err less."""


@needs_products
@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "albert", "mpnet", "modernbert", "deberta-v2"]
)
def test_logits_of_every_kind_of_family_are_near_those_in_float32(family: str) -> None:
    assert 0 < error_in_8_bits(family) < MOST_ERROR


@needs_products
def test_extents_that_are_too_small_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def third(x: Tensor) -> Extent:
        extent = extent_of(x)
        return Extent(extent.least / 3, extent.largest / 3)

    monkeypatch.setattr(calibration, "extent_of", third)
    assert error_in_8_bits("bert") > MOST_ERROR


@needs_products
def test_the_demo_model_says_the_same_of_nearly_all_texts() -> None:
    texts = [
        f"{start} {thing}, {end}."
        for start in ("I love this", "I hate this", "It broke:", "Best", "Worst")
        for thing in ("phone", "film", "soup", "book", "waiter")
        for end in ("really", "and I would come again", "not worth the money")
    ]
    answers = {}
    for dtype in ("float32", "int8"):
        with Encoder(device="cpu", dtype=dtype) as encoder:
            answers[dtype] = encoder.predict_proba(texts)
    same = (answers["int8"].argmax(1) == answers["float32"].argmax(1)).mean()
    assert same >= 0.97
    assert np.abs(answers["int8"] - answers["float32"]).mean() < 0.03


def test_what_int8_cannot_be() -> None:
    checkpoint = load_checkpoint(str(shared()))
    with pytest.raises(DeviceError, match="--dtype int8 is for CPUs"):
        resolve_dtype("int8", torch.device("cuda:0"), checkpoint, detect())
