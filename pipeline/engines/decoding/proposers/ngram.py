"""Prompt lookup as a proposer."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.engines.prompt_lookup import lookup
from pipeline.records.target import Ngram


class NgramProposer:
    """Needs no model and keeps nothing; runs on the host, where the tokens are."""

    needs_hidden: tuple[int, ...] = ()
    kv_bytes = 0

    def __init__(self, draft: Ngram, device: torch.device) -> None:
        self._draft = draft
        self._device = device

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """Nothing to keep."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        active = slots.active
        tokens, proposed = lookup(slots.tokens[:active], slots.n[:active], dlen, self._draft)
        width = int(proposed.max())
        return Proposal(to_device(tokens[:, :width], self._device), None, proposed)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Nothing to keep."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to keep."""
