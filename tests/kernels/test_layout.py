from __future__ import annotations

import pytest
import torch

from packhorse.kernels import layout, reference

BATCHES = {
    "one token": [1],
    "one sequence": [300],
    "many of one": [1] * 70,
    "across tiles": [255, 1, 257, 256, 2, 63, 65],
    "none": [],
}


def bounds_of(lengths: list[int], spare: int = 0, junk: int = -7) -> torch.Tensor:
    """cu_seqlens in a buffer with ``spare`` entries that nobody may read meaning into."""
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return torch.cat([bounds, torch.full((spare,), junk, dtype=torch.int32)])


def by_hand(lengths: list[int], num_tokens: int) -> list[tuple[int, int, int]]:
    rows, start = [], 0
    for length in lengths:
        rows += [(i, start, start + length) for i in range(length)]
        start += length
    return rows + [(0, t, t + 1) for t in range(start, num_tokens)]


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("tail", [0, 130])
@pytest.mark.parametrize("junk", [-7, 10**6])
def test_expand_counts_as_one_would_by_hand(lengths, tail, junk, device):
    tokens = sum(lengths) + tail
    count = torch.tensor([len(lengths)], dtype=torch.int32, device=device)
    arguments = bounds_of(lengths, 5, junk).to(device), count, tokens
    expected = torch.tensor(by_hand(lengths, tokens), dtype=torch.int32).view(-1, 3).unbind(1)
    for fused, twin, wanted in zip(
        layout.expand(*arguments), reference.expand(*arguments), expected, strict=True
    ):
        assert torch.equal(fused.cpu(), wanted)
        assert torch.equal(twin.cpu(), wanted)


def test_expand_skips_empty_sequences_and_fills_the_buffers_it_is_given(device):
    bounds = bounds_of([3, 0, 0, 2, 0]).to(device)
    out = tuple(torch.full((8,), -1, dtype=torch.int32, device=device) for _ in range(3))
    count = torch.tensor([5], dtype=torch.int32, device=device)
    for module in (layout, reference):
        for buffer in out:
            buffer.fill_(-1)
        assert module.expand(bounds, count, 8, out=out) is out
        assert torch.stack(out, 1).cpu().tolist() == [
            list(row) for row in by_hand([3, 0, 0, 2, 0], 8)
        ]


def test_token_types_turn_to_one_where_segment_b_starts(device):
    lengths, second = [4, 3, 1, 300], [2, 3, 0, 299]
    bounds, count = bounds_of(lengths, 3).to(device), torch.tensor([4], dtype=torch.int32)
    segments = torch.tensor([*second, 0, 0], dtype=torch.int32, device=device)
    wanted = [
        int(i >= b) for length, b in zip(lengths, second, strict=True) for i in range(length)
    ] + [0] * 9
    for module in (layout, reference):
        *bounds_and_ends, got = module.expand(
            bounds, count.to(device), len(wanted), segment_starts=segments
        )
        assert got.dtype == torch.int32
        assert got.cpu().tolist() == wanted
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                bounds_and_ends, module.expand(bounds, count.to(device), len(wanted)), strict=True
            )
        )
        out = tuple(torch.full_like(got, -1) for _ in range(4))
        assert module.expand(bounds, count.to(device), 317, out, segments) is out
        assert torch.equal(out[3], got)
