"""A smaller model of the same vocabulary drafts, one token at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.proposers.chain import draft_chain
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.records.cell import Sampling

SHARED_CATCH_UP = 2
"""Rows at most this many tokens behind catch up in one batch with the first draft step: after a full accept it is 2."""


def fitted(logits: Tensor, vocabulary: int) -> Tensor:
    """A draft's ``logits`` [.., V'] as [.., V] over the target's ``vocabulary`` tokens.

    Embedding tables may be padded to different sizes: what is too much is cut, what is missing −inf.
    """
    logits = logits[..., :vocabulary]
    missing = vocabulary - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits


class DraftModelProposer:
    """Keeps the draft's own K/V beside the target's.

    ``valid`` [C] is how many of a row's tokens the draft has right K/V of. A full accept leaves it one short of the
    rest, plain steps further behind; ``propose`` catches up first. ``vocabulary`` is the target's, which its logits
    are ``fitted`` to.
    """

    needs_hidden: tuple[int, ...] = ()

    def __init__(self, draft: CachedModel, slots: int, columns: int, vocabulary: int, drawn: Sampling | None) -> None:
        draft.reserve(slots, columns)
        self._draft = draft
        self._vocabulary = vocabulary
        self._drawn = drawn
        self.valid = np.zeros(slots, dtype=np.int64)
        self._verified = np.zeros(0, dtype=np.int64)
        self._steps = 0

    @property
    def kv_bytes(self) -> int:
        return self._draft.cache.bytes

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        self._draft.prefill(row, tokens)
        self.valid[row] = len(tokens)

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        n, valid = slots.n[: slots.active], self.valid[: slots.active]
        for row in np.flatnonzero(n - valid > SHARED_CATCH_UP):
            self._draft.prefill(int(row), slots.tokens[row, valid[row] : n[row] - 1], start=int(valid[row]))
            valid[row] = n[row] - 1
        # Rows that are not behind run their last two tokens too when another row must: the same K/V again.
        width = int((n - valid).max())
        self._verified, self._steps = n.copy(), int(dlen.max())
        return draft_chain(self._step, slots, dlen, width, self._drawn, self._draft.device)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        if self._steps:  # the last proposal was never run through the draft
            self.valid[: len(accepted)] = self._verified + np.minimum(accepted, self._steps - 1)
            self._steps = 0

    def move(self, source: int, target: int, length: int) -> None:
        self._draft.cache.move(source, target, length)
        self.valid[target] = self.valid[source]

    def _step(self, tokens: Tensor, first: Ints) -> Tensor:
        return fitted(self._draft.forward(tokens, first, keep=1)[:, -1], self._vocabulary)
