"""The feed-forward layer in pieces that stay in cache: the same rows, whatever the pieces."""

from __future__ import annotations

import pytest
import torch

from packhorse.kernels import reference, select, tiles
from packhorse.models.backend import Dense, Norm
from packhorse.models.kernel_backend import KernelBackend


@pytest.mark.parametrize(
    ("rows", "row_bytes", "cache", "expected"),
    [
        (1, 6144, 50 << 20, 128),
        (5632, 6144, 50 << 20, 5632),
        (11264, 6144, 50 << 20, 5632),
        (16384, 6144, 50 << 20, 8192),
        (8192, 6144, 50 << 20, 8192),  # half of it would be too few rows
        (11264, 6144, 0, 11264),  # no GPU: all at once
        (300, 1 << 20, 1 << 20, 128),  # one row overflows the cache: a tile at a time
        (0, 6144, 0, 1),
    ],
)
def test_pieces_are_equal_and_of_whole_tiles(
    rows: int, row_bytes: int, cache: int, expected: int
) -> None:
    assert tiles.feed_forward_rows(rows, row_bytes, cache) == expected


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300])
def test_rows_in_pieces_equal_all_rows_at_once(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(device)

    x, inner = drawn(rows, 32), drawn(128 * 48)
    mlp_in, mlp_out = Dense(drawn(48, 32), drawn(48)), Dense(drawn(32, 48), drawn(32))
    norm = Norm(drawn(32), drawn(32), 1e-5)
    backend = KernelBackend(select(device))
    whole = backend.feed_forward(x, mlp_in, "gelu", mlp_out, norm)
    monkeypatch.setattr(tiles, "feed_forward_rows", lambda *_: 128)
    pieces = backend.feed_forward(x, mlp_in, "gelu", mlp_out, norm, inner=inner)
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-5)
    wide = reference.linear_activation(x, mlp_in.weight, mlp_in.bias, "gelu")
    expected = reference.linear_residual_norm(
        wide, mlp_out.weight, mlp_out.bias, x, norm.gamma, norm.beta, norm.eps
    )
    torch.testing.assert_close(pieces, expected, rtol=1e-4, atol=1e-4)
