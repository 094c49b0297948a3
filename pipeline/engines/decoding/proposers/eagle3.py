"""A one-layer head drafts a chain from the target's hidden states (EAGLE-3, arXiv 2503.01840)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.forward import PREFILL_CHUNK
from pipeline.engines.decoding.heads.eagle3 import Eagle3Head
from pipeline.engines.decoding.proposers.chain import draft_from
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.records.cell import Sampling


class Eagle3Proposer:
    """Keeps the head's K/V beside the target's, and the hidden states that the head has not read yet.

    Of a row with n committed tokens the target has read all but the last, so that the head can make its entries 0 …
    n − 2 from true states (``heads.eagle3`` says what an entry is): the last of them predicts the token at n. ``valid``
    [C] of them stand in the cache; the states of the ``waiting`` [C] others, n − 1 in all, are kept as verifications
    gave them. ``propose`` first reads those, over whatever entries an earlier proposal had made from the head's own
    outputs: after verification every entry of a committed token is rewritten from its true state.

    ``widest``: the most tokens of a row that one verification reads.
    """

    def __init__(self, head: Eagle3Head, slots: int, columns: int, widest: int, drawn: Sampling | None) -> None:
        head.reserve(slots, columns)
        self._head = head
        self._drawn = drawn
        self.needs_hidden = head.states
        self.valid = np.zeros(slots, dtype=np.int64)
        self.waiting = np.zeros(slots, dtype=np.int64)
        self._states = torch.zeros(slots, widest, head.state_size, dtype=head.dtype, device=head.device)

    @property
    def kv_bytes(self) -> int:
        return self._head.cache.bytes

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """The token after the prompt is not known here, so that the entry of the prompt's last waits."""
        assert hidden is not None
        self._read(row, tokens[1:], hidden[0], start=0)
        self.valid[row] = len(tokens) - 1
        self._states[row, 0] = hidden[0, -1]
        self.waiting[row] = 1

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        active = slots.active
        n, valid, waiting = slots.n[:active].copy(), self.valid[:active], self.waiting[:active]
        if active > 1:
            # Rows read together are padded to the longest, up to where this proposal will write anyway.
            for row in np.flatnonzero(waiting > int(dlen.max()) + 1):
                self._catch_up(int(row), slots)
        width = int(waiting.max())
        columns = valid[:, None] + np.arange(width)
        tokens = to_device(slots.tokens[np.arange(active)[:, None], columns + 1], self._head.device)
        out = self._head.run(tokens, self._head.fuse(self._states[:active, :width]), valid)
        last = to_device(waiting - 1, out.device)
        logits, state = self._head.predict(out[torch.arange(active, device=out.device), last])
        valid[:] = n - 1
        waiting[:] = 0

        def follow(token: Tensor, j: int) -> Tensor:
            nonlocal state
            out = self._head.run(token[:, None], state[:, None], n - 2 + j)
            logits, state = self._head.predict(out[:, 0])
            return logits

        return draft_from(logits, follow, slots, dlen, self._drawn, self._head.vocabulary)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """The states of the verified tokens wait; those of rejected ones are beyond ``waiting``, and overwritten."""
        assert hidden is not None
        active, width = hidden.shape[:2]
        waiting = self.waiting[:active]
        self._make_room(int(waiting.max()) + width)
        rows = torch.arange(active, device=hidden.device)[:, None]
        places = to_device(waiting[:, None] + np.arange(width), hidden.device)
        self._states[rows, places] = hidden
        waiting += accepted + 1

    def move(self, source: int, target: int, length: int) -> None:
        self._head.cache.move(source, target, length)
        self._states[target] = self._states[source]
        self.valid[target] = self.valid[source]
        self.waiting[target] = self.waiting[source]

    def _catch_up(self, row: int, slots: Slots) -> None:
        """Read all that waits in ``row`` but the last, which the next step reads."""
        valid, behind = int(self.valid[row]), int(self.waiting[row]) - 1
        self._read(row, slots.tokens[row, valid + 1 : valid + 1 + behind], self._states[row], start=valid)
        self._states[row, 0] = self._states[row, behind]
        self.valid[row] += behind
        self.waiting[row] = 1

    def _read(self, row: int, tokens: Ints, states: Tensor, start: int) -> None:
        """Make entries ``start`` onwards of one row: ``tokens`` [P] and the true states before each, [≥ P, ·]."""
        for begin in range(0, len(tokens), PREFILL_CHUNK):
            chunk = to_device(tokens[None, begin : begin + PREFILL_CHUNK], self._head.device)
            fused = self._head.fuse(states[None, begin : begin + chunk.shape[1]])
            self._head.run(chunk, fused, np.array([start + begin]), row)

    def _make_room(self, places: int) -> None:
        """Plain steps that a schedule makes between proposals wait too, however many they are."""
        if places > self._states.shape[1]:
            more = torch.zeros_like(self._states[:, :1]).expand(-1, max(places, 2 * self._states.shape[1]), -1).clone()
            more[:, : self._states.shape[1]] = self._states
            self._states = more
