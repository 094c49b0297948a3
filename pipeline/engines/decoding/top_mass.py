"""Top-p's threshold without a sort and without asking the host: three histograms of the bits of the weights."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 10
_ROUNDS = 3
"""A weight in [0, 1] is a float32 whose bits, read as an integer, order as it does and fit in 30."""
_UNIT = 2.0**43
"""Weights are summed as whole numbers of 2⁻⁴³, exactly and in any order: a vocabulary of 2¹⁹ stays below 2⁶³."""


def least_of_top_mass(weights: Tensor, top_p: float) -> Tensor:
    """The least weight kept [..., 1]: the greatest t for which the weights ≥ t sum to ``top_p`` of all.

    ``weights`` fp32 [..., V] in [0, 1], at least one of them not 0. Each round finds ten more bits of t: of the weights
    that share the bits found so far, it sums those of each next ten, and takes the greatest ten whose sum, with all
    that is greater, reaches the share.
    """
    rows = weights.reshape(-1, weights.shape[-1])
    keys = rows.view(torch.int32).long()
    masses = (rows.double() * _UNIT).long()
    wanted = masses.sum(dim=-1, keepdim=True).double() * top_p
    above = torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device)
    prefix = torch.zeros_like(above)
    for shift in range(_BITS * (_ROUNDS - 1), -1, -_BITS):
        digits = (keys >> shift) & ((1 << _BITS) - 1)
        inside = (keys >> (shift + _BITS)) == prefix
        sums = torch.zeros(len(rows), 1 << _BITS, dtype=torch.int64, device=rows.device)
        sums.scatter_add_(1, digits, torch.where(inside, masses, 0))
        # What lies at a digit or above it; the greatest digit at which that reaches the share has t in it.
        reached = above + sums.flip(-1).cumsum(dim=-1).flip(-1)
        digit = ((reached.double() >= wanted).sum(dim=-1, keepdim=True) - 1).clamp_min_(0)
        above = reached.gather(1, digit) - sums.gather(1, digit)
        prefix = (prefix << _BITS) | digit
    return prefix.int().view(torch.float32).reshape(*weights.shape[:-1], 1)
