"""What the loop is given to time verifications of several widths: γ by turns, and proposals that cost no drafting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device

_MULTIPLIER = 0x9E3779B1
"""2³² over the golden ratio (Knuth): places a few tokens apart land far from each other."""


class InTurn:
    """γ of iteration i is ``gammas[i mod len(gammas)]``, whatever the load, for its first ``proposing[...]`` rows."""

    def __init__(self, gammas: Sequence[int], proposing: Sequence[int] | None = None) -> None:
        everyone = [np.iinfo(np.int64).max] * len(gammas)
        self._turns = cycle(zip(gammas, everyone if proposing is None else proposing, strict=True))
        self.rows = 0

    def gamma(self, active: int) -> int:
        gamma, self.rows = next(self._turns)
        return gamma


class FillerProposer:
    """Proposes a run of a row's own earlier tokens from an arbitrary place, in every row with room.

    Tokens of text, so that experts are chosen as text chooses them; they are verified like any one-hot proposal, so
    that the output stays plain decoding's, and most are rejected. ``turns`` says in how many rows.
    """

    needs_hidden: tuple[int, ...] = ()
    kv_bytes = 0

    def __init__(self, device: torch.device, turns: InTurn) -> None:
        self._device = device
        self._turns = turns

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """Nothing to keep."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        dlen = np.where(np.arange(slots.active) < self._turns.rows, dlen, 0)
        n = slots.n[: slots.active, None]
        columns = ((n * _MULTIPLIER >> 12) + np.arange(int(dlen.max()))) % n
        tokens = slots.tokens[np.arange(slots.active)[:, None], columns]
        return Proposal(to_device(tokens, self._device), None, dlen)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Nothing to keep."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to keep."""
