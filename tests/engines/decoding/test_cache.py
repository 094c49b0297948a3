"""Keys and values stand where their tokens do."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.cache import COLUMN_STEP, SlotCache, rounded_columns

CPU = torch.device("cpu")


def write(cache: SlotCache, row: int, first: list[int], width: int, live: int, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Write distinct values, ``width`` a row; returns (what was written, the keys that came back)."""
    keys = torch.arange(len(first) * 2 * width * 3, dtype=torch.float32).view(len(first), 2, width, 3) + 1
    starts = np.array(first)
    cache.place(row, starts, torch.from_numpy(starts[:, None] + np.arange(width)), live)
    seen, values = cache.update(keys, -keys, layer)
    assert torch.equal(values, -seen)
    return keys, seen


def test_each_row_is_written_at_its_own_columns() -> None:
    cache = SlotCache(3, 12, CPU)
    keys, seen = write(cache, 0, [0, 5, 2], width=2, live=8)
    assert seen.shape == (3, 2, 8, 3)
    for b, start in enumerate((0, 5, 2)):
        assert torch.equal(seen[b, :, start : start + 2], keys[b])
    assert int((seen != 0).sum()) == keys.numel(), "columns never written are zeros"


def test_one_row_is_written_in_its_own_slot() -> None:
    cache = SlotCache(3, 12, CPU)
    write(cache, 0, [0, 0, 0], width=1, live=4)
    keys, seen = write(cache, 2, [3], width=4, live=7)
    assert seen.shape == (1, 2, 7, 3)
    assert torch.equal(seen[0, :, 3:], keys[0])
    _, all_rows = write(cache, 0, [8, 8, 8], width=1, live=9)
    assert torch.equal(all_rows[2, :, 3:7], keys[0])
    assert not all_rows[:2, :, 1:8].any()


def test_rejected_columns_are_overwritten() -> None:
    cache = SlotCache(2, 12, CPU)
    write(cache, 0, [4, 4], width=4, live=8)
    keys, seen = write(cache, 0, [5, 6], width=2, live=8)
    assert torch.equal(seen[0, :, 5:7], keys[0])
    assert torch.equal(seen[1, :, 6:8], keys[1])


def test_moving_a_row_copies_all_layers() -> None:
    cache = SlotCache(3, 12, CPU)
    for layer in (0, 1):
        write(cache, 0, [0, 0, 0], width=6, live=6, layer=layer)
    cache.move(2, 0, 6)
    for layer in (0, 1):
        cache.place(0, np.array([8, 8, 8]), torch.full((3, 1), 8), 9)
        seen, values = cache.update(torch.zeros(3, 2, 1, 3), torch.zeros(3, 2, 1, 3), layer)
        assert torch.equal(seen[0], seen[2])
        assert torch.equal(values[0], values[2])
        assert not torch.equal(seen[0], seen[1])


def test_bytes_are_those_of_all_keys_and_values() -> None:
    cache = SlotCache(3, 12, CPU)
    write(cache, 0, [0, 0, 0], width=1, live=1)
    assert cache.bytes == 2 * 3 * 2 * 12 * 3 * 4


def test_columns_come_in_whole_steps() -> None:
    assert [rounded_columns(n) for n in (1, COLUMN_STEP, COLUMN_STEP + 1)] == [
        COLUMN_STEP,
        COLUMN_STEP,
        2 * COLUMN_STEP,
    ]
