"""Heads on the target's final hidden state, each of which guesses one token further ahead."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.engines.decoding.heads.medusa import MedusaHeads
from pipeline.engines.decoding.hidden import FINAL
from pipeline.engines.decoding.proposers.chain import draft_from
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.records.cell import Sampling


class MedusaProposer:
    """Keeps of each row the final hidden state h of the newest token that the target has read.

    Of n committed tokens that is the one at n − 2: the last was chosen from h itself and is not read yet. Head i of h
    predicts the token i + 2 places on, at n + i, so that proposal i is head i's, whatever was proposed before it: the
    heads are independent distributions. A verification reads up to n − 2 of the new n in any case, plain steps too, so
    that nothing ever falls behind.
    """

    needs_hidden = (FINAL,)
    kv_bytes = 0

    def __init__(
        self, heads: MedusaHeads, slots: int, dtype: torch.dtype, device: torch.device, drawn: Sampling | None
    ) -> None:
        self._heads = heads
        self._drawn = drawn
        self._state = torch.zeros(slots, heads.hidden_size, dtype=dtype, device=device)

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        assert hidden is not None
        self._state[row] = hidden[0, -1]

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        state = self._state[: slots.active]
        heads = self._heads
        return draft_from(heads.logits(state, 0), lambda _, j: heads.logits(state, j), slots, dlen, self._drawn)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        assert hidden is not None
        rows = torch.arange(len(accepted), device=hidden.device)
        self._state[: len(accepted)] = hidden[rows, to_device(accepted, hidden.device)]

    def move(self, source: int, target: int, length: int) -> None:
        self._state[target] = self._state[source]
