"""Drafting token by token with a model: each proposal conditions on those before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transform import draw, probabilities
from pipeline.engines.decoding.uniform import DRAFT, uniforms
from pipeline.records.cell import Sampling

Step = Callable[[Tensor, Ints], Tensor]
"""Tokens [A, W] that stand at the positions [A] onwards → logits [A, V] after the last of them."""


def draft_chain(
    step: Step, slots: Slots, dlen: Ints, width: int, drawn: Sampling | None, device: torch.device
) -> Proposal:
    """Propose max(``dlen``) tokens a row; the first step runs the last ``width`` committed tokens.

    ``drawn``: draw each from the transformed distribution of that sampling, which is kept as q; None: take the most
    probable token, so that q is one-hot.
    """
    steps = int(dlen.max())
    active = slots.active
    n = slots.n[:active].copy()
    u = None
    if drawn is not None:
        seeds = torch.from_numpy(slots.seeds[:active]).to(device)
        u = uniforms(seeds, torch.from_numpy(n[:, None] + np.arange(steps)).to(device), DRAFT)
    tokens = torch.from_numpy(slots.last_tokens(width)).to(device)
    first = n - width
    drafted, qs = [], []
    for j in range(steps):
        logits = step(tokens, first)
        if drawn is None or u is None:
            token = logits.argmax(dim=-1)
        else:
            q = probabilities(logits, drawn)
            token = draw(q, u[:, j])
            qs.append(q)
        drafted.append(token)
        tokens, first = token[:, None], n + j
    return Proposal(torch.stack(drafted, dim=1), torch.stack(qs, dim=1) if qs else None, dlen)
