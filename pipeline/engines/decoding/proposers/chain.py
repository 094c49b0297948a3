"""Drafting token by token: from logits after the committed text, and after each proposal, to a proposal with its q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.penalties import drafting
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.engines.decoding.transform import draw, probabilities
from pipeline.engines.decoding.uniform import DRAFT, uniforms
from pipeline.records.cell import Sampling

Step = Callable[[Tensor, Ints], Tensor]
"""Tokens [A, W] that stand at the positions [A] onwards → logits [A, V] after the last of them."""

Follow = Callable[[Tensor, int], Tensor]
"""Proposal j − 1 [A] and j → the logits [A, V] that proposal j is taken from."""


@dataclass(frozen=True)
class DraftVocabulary:
    """A draft's own tokens: its i is the target's ``ids[i]``, of ``size``. ``ids``: int64 [V'], all different."""

    ids: Tensor
    size: int

    def spread(self, values: Tensor, unknown: float = 0.0) -> Tensor:
        """``values`` [A, V'] over the target's vocabulary, [A, size]: ``unknown`` for tokens that the draft lacks."""
        return values.new_full((len(values), self.size), unknown).index_copy_(1, self.ids, values)


def draft_chain(
    step: Step, slots: Slots, dlen: Ints, width: int, drawn: Sampling | None, device: torch.device
) -> Proposal:
    """Propose max(``dlen``) tokens a row; the first step runs the last ``width`` committed tokens.

    For models that see all before them; ``drawn`` as in ``draft_from``.
    """
    n = slots.n[: slots.active].copy()
    tokens = to_device(slots.last_tokens(width), device)
    return draft_from(step(tokens, n - width), lambda token, j: step(token[:, None], n + j - 1), slots, dlen, drawn)


def draft_from(
    logits: Tensor,
    follow: Follow,
    slots: Slots,
    dlen: Ints,
    drawn: Sampling | None,
    vocabulary: DraftVocabulary | None = None,
) -> Proposal:
    """Propose max(``dlen``) tokens a row, the first from ``logits`` [A, V], each later one from what ``follow`` gives.

    ``drawn``: draw each from the transformed distribution of that sampling, which is kept as q; None: take the most
    probable token, so that q is one-hot. ``vocabulary``: what logits are over, None for the target's tokens. Where the
    run penalizes tokens, logits are penalized first, as the target's are in verification.
    """
    steps = int(dlen.max())
    active = slots.active
    penalize = drafting(slots, logits.device, vocabulary.size if vocabulary else logits.shape[-1])
    known, vocabulary = (vocabulary, None) if penalize else (None, vocabulary)  # penalties are the target's tokens'
    u = None
    if drawn is not None:
        seeds = to_device(slots.seeds[:active], logits.device)
        positions = to_device(slots.n[:active, None] + np.arange(steps), logits.device)
        u = uniforms(seeds, positions, DRAFT)
    drafted: list[Tensor] = []
    qs: list[Tensor] = []
    for j in range(steps):
        if j:
            logits = follow(drafted[-1], j)
        if penalize:
            logits = penalize(logits if known is None else known.spread(logits, -torch.inf), drafted)
        if drawn is None or u is None:
            token = logits.argmax(dim=-1)
        else:
            q = probabilities(logits, drawn)
            token = draw(q, u[:, j])
            qs.append(q if vocabulary is None else vocabulary.spread(q))
        drafted.append(token if vocabulary is None else vocabulary.ids[token])
    return Proposal(torch.stack(drafted, dim=1), torch.stack(qs, dim=1) if qs else None, dlen)
