"""Keys and values of C slots, written at each row's own positions: ragged rows in one batch, rollback for free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Cache

from pipeline.engines.decoding.ragged import Ragged

COLUMN_STEP = 64
"""Columns are allocated and read in multiples of this, so that shapes repeat."""


def rounded_columns(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


class SlotCache(Cache):  # type: ignore[misc]
    """K and V ``[slots, H_kv, columns, D]`` a layer; row b's entry for the token at index i stands in column i.

    ``place`` says where the next forward's tokens stand; ``update`` then writes them and returns the live columns of
    the rows in question. Rejected tokens need no rollback: their columns are masked, then overwritten. Layers are
    allocated when first written (their head counts may differ), as zeros: a column that was never written must not be
    NaN, for masked attention still multiplies by it.
    """

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.columns = columns
        self._device = device
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        # What attention reads of each layer; the same views until a batch or a length outgrows them.
        self._views: dict[int, tuple[Tensor, Tensor]] = {}
        self._region = (0, 0, 0)
        self._start: int | None = None
        self._ragged: Ragged | None = None
        self._row_index = self._column_index = torch.empty(0, dtype=torch.int64)

    def place(
        self, row: int, first: npt.NDArray[np.int64], positions: Tensor, live: int, ragged: Ragged | None = None
    ) -> None:
        """The next forward's rows are ``row`` … ``row`` + B − 1, whose tokens begin at columns ``first`` [B].

        ``positions`` [B, W] holds the columns of all tokens, on the cache's device; ``live``, beyond all of them, is
        how many columns attention reads. ``ragged``: the forward's tokens are those of it, laid end to end.
        """
        batch = len(first)
        if self._region != (row, batch, live):
            self._region = (row, batch, live)
            self._views.clear()
            self._row_index = torch.arange(batch, device=self._device)[:, None]
        self._start = int(first[0]) if batch == 1 and ragged is None else None
        self._ragged = ragged
        self._column_index = positions if ragged is None else ragged.pack(positions)

    def place_anew(self, positions: Tensor, live: int) -> None:
        """As ``place`` for rows 0 … B − 1, known by ``positions`` [B, W] alone and leaning on nothing made before.

        For a forward that is recorded: it must neither lean on what a later ``place`` throws away, nor leave behind
        what only its replay fills. ``forget_place`` after it.
        """
        self.forget_place()
        self._region = (0, len(positions), live)
        self._row_index = torch.arange(len(positions), device=self._device)[:, None]
        self._start = self._ragged = None
        self._column_index = positions

    def forget_place(self) -> None:
        """The next ``place`` makes everything anew."""
        self._region = (0, 0, 0)
        self._views.clear()
        self._row_index = self._column_index = torch.empty(0, dtype=torch.int64)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write K, V ``[B, H_kv, W, D]`` of one layer and return its live columns, ``[B, H_kv, live, D]``.

        Rows laid end to end come as ``[1, H_kv, T, D]``.
        """
        if layer_idx not in self._views:
            self._views[layer_idx] = self._view(layer_idx, key_states, value_states)
        keys, values = self._views[layer_idx]
        if self._start is not None:  # one row's columns are a run known on the host, which needs no index
            width = key_states.shape[2]
            keys.narrow(2, self._start, width).copy_(key_states)
            values.narrow(2, self._start, width).copy_(value_states)
        elif self._ragged is not None:
            keys[self._ragged.rows, :, self._column_index] = key_states[0].transpose(0, 1)
            values[self._ragged.rows, :, self._column_index] = value_states[0].transpose(0, 1)
        else:  # an index on both sides of the heads' slice puts [B, W] first
            keys[self._row_index, :, self._column_index] = key_states.transpose(1, 2)
            values[self._row_index, :, self._column_index] = value_states.transpose(1, 2)
        return keys, values

    def move(self, source: int, target: int, columns: int) -> None:
        """Copy the first ``columns`` columns of row ``source`` over row ``target``."""
        for tensor in (*self._keys.values(), *self._values.values()):
            tensor[target, :, :columns] = tensor[source, :, :columns]

    def snapshot(self, row: int, columns: int) -> tuple[Tensor, ...]:
        """Copies of the first ``columns`` columns of ``row``: K of every layer, then V."""
        return tuple(t[row, :, :columns].clone() for t in (*self._keys.values(), *self._values.values()))

    def restore(self, row: int, snapshot: tuple[Tensor, ...]) -> None:
        """Write a ``snapshot`` of this model's cache into ``row``. Layers must have been written before."""
        tensors = (*self._keys.values(), *self._values.values())
        for tensor, kept in zip(tensors, snapshot, strict=True):
            tensor[row, :, : kept.shape[1]] = kept

    @property
    def written(self) -> bool:
        """Whether layers are allocated, which the first forward does."""
        return bool(self._keys)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self._keys.values(), *self._values.values()))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: rows differ, so positions and masks are always given and never derived from this."""
        return 0

    def _view(self, layer_idx: int, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        if layer_idx not in self._keys:
            self._keys[layer_idx] = self._allocate(key_states)
            self._values[layer_idx] = self._allocate(value_states)
        row, batch, live = self._region
        rows = slice(row, row + batch)
        return self._keys[layer_idx][rows, :, :live], self._values[layer_idx][rows, :, :live]

    def _allocate(self, like: Tensor) -> Tensor:
        shape = (self.slots, like.shape[1], self.columns, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=self._device)
