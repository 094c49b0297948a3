"""What the loop asks of a proposer, whatever its method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pipeline.engines.decoding.slots import Ints, Slots


@dataclass(frozen=True)
class Proposal:
    """Tokens for the A active rows.

    ``tokens`` int64 [A, w] on the device; ``proposed`` [A] ≤ ``dlen``, on the host, says how many of each row are real
    (w ≥ its maximum; the rest may hold any token id). ``q`` fp32 [A, w, V] is the transformed distribution that each
    token was drawn from, None when tokens were not drawn: then q is one-hot.
    """

    tokens: Tensor
    q: Tensor | None
    proposed: Ints


class Proposer(Protocol):
    """Drafts for the rows of one run. Rows are slots; state that a method keeps for a slot follows ``move``.

    ``needs_hidden`` lists the target's hidden states that it drafts from (see ``hidden.HiddenTap``); () for none. All
    hidden states that it is then given are ``[.., .., H · len(needs_hidden)]``, and None otherwise.
    """

    @property
    def needs_hidden(self) -> tuple[int, ...]: ...

    @property
    def kv_bytes(self) -> int:
        """What its own keys and values take."""

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """A request took slot ``row``: its prompt ``tokens`` [P] and the target's hidden states of it [1, P, ·]."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        """Up to ``dlen`` [A] tokens to stand at n, n + 1, … of each active row; some ``dlen`` is at least 1.

        Called in iterations that speculate. Everything a row needs to catch up with plain steps happens here, so that
        it counts as drafting.
        """

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Called after every iteration, plain ones too, once its blocks are committed.

        ``hidden`` [A, W, ·] belongs to the verified tokens (the last committed one, then the proposals); ``accepted``
        [A] proposals of each row stand.
        """

    def move(self, source: int, target: int, length: int) -> None:
        """Slot ``source``, of ``length`` committed tokens, becomes slot ``target``; what was there is gone."""
