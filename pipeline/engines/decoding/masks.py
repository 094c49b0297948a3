"""Which columns each token may look at, for models with full attention, sliding windows, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.records.failure import InputError

FULL = "full_attention"
SLIDING = "sliding_attention"


class AttentionConfig(Protocol):
    """The part of a transformers configuration that masks depend on; all but ``model_type`` may be missing."""

    model_type: str


@dataclass(frozen=True)
class MaskPlan:
    """``windows``: the window of each kind of attention layer (None: the whole past)."""

    windows: Mapping[str, int | None]

    @classmethod
    def of(cls, config: AttentionConfig) -> MaskPlan:
        """Raises InputError for a kind of attention layer that is neither full nor sliding."""
        window: int | None = getattr(config, "sliding_window", None)
        kinds: list[str] | None = getattr(config, "layer_types", None)
        if kinds is None:  # without a list of kinds, a window holds for every layer
            kinds = [FULL if window is None else SLIDING]
        unknown = sorted(set(kinds) - {FULL, SLIDING})
        if unknown:
            raise InputError(
                f"model type {config.model_type} has {', '.join(unknown)} layers; "
                f"only {FULL} and {SLIDING} layers can be decoded here"
            )
        return cls({kind: window if kind == SLIDING else None for kind in sorted(set(kinds))})

    def build(self, positions: Tensor, live: int, group: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Additive masks for tokens at ``positions`` [B, W] over columns 0 … ``live`` − 1.

        Each is [B, 1, group·W, live], 0 where allowed and −inf elsewhere: the W rows repeated for each query head that
        shares a K/V head. A model with one kind of layer takes the mask itself, one with two a dict by kind.
        """
        columns = torch.arange(live, device=positions.device)
        rows = (positions.repeat(1, group) if group > 1 and positions.shape[1] > 1 else positions)[:, None, :, None]
        causal = columns <= rows
        # Both on the device: a number from the host would be copied there, which a recorded forward must not do.
        allowed = torch.zeros((), dtype=dtype, device=positions.device)
        forbidden = torch.full((), -torch.inf, dtype=dtype, device=positions.device)
        masks = {
            kind: torch.where(causal if window is None else causal & (columns > rows - window), allowed, forbidden)
            for kind, window in self.windows.items()
        }
        return next(iter(masks.values())) if len(masks) == 1 else masks
