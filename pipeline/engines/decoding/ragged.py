"""The tokens of a ragged batch laid end to end: a product over padding is work that no server would do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.engines.decoding.slots import Ints


@dataclass(frozen=True)
class Ragged:
    """The first so many tokens of each row of a padded batch [A, W], T in all, row after row.

    ``rows`` and ``offsets`` int64 [T] say where each stands.
    """

    rows: Tensor
    offsets: Tensor
    batch: int
    width: int

    @classmethod
    def of(cls, lengths: Ints, width: int, device: torch.device) -> Ragged:
        """Row b has ``lengths[b]`` tokens, 1 to ``width``."""
        real = torch.arange(width) < torch.from_numpy(lengths)[:, None]
        rows, offsets = real.nonzero(as_tuple=True)
        return cls(rows.to(device), offsets.to(device), len(lengths), width)

    def pack(self, padded: Tensor) -> Tensor:
        """[A, W, …] → [T, …]."""
        return padded[self.rows, self.offsets]

    def spread(self, packed: Tensor) -> Tensor:
        """[T, …] → [A, W, …], zero where nothing stands."""
        padded = packed.new_zeros(self.batch, self.width, *packed.shape[1:])
        padded[self.rows, self.offsets] = packed
        return padded
