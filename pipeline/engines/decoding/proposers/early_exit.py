"""The target's own first layers draft, through its final norm and head."""

from __future__ import annotations

from torch import Tensor

from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.proposers.chain import draft_chain
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.records.cell import Sampling


class EarlyExitProposer:
    """Shares the target's K/V of the first ``layers`` layers, which verification writes whatever the iteration.

    So it is never behind, and what drafting wrote for rejected proposals is overwritten with the target's own.
    """

    needs_hidden: tuple[int, ...] = ()
    kv_bytes = 0

    def __init__(self, target: CachedModel, layers: int, drawn: Sampling | None) -> None:
        self._target = target
        self._layers = layers
        self._drawn = drawn

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """Nothing: the target's prefill ran these layers."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        with self._target.first_layers(self._layers):
            return draft_chain(self._step, slots, dlen, 1, self._drawn, self._target.device)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Nothing: verification wrote these layers' K/V."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing: the loop moves the target's rows."""

    def _step(self, tokens: Tensor, first: Ints) -> Tensor:
        return self._target.forward(tokens, first, keep=1)[:, -1]
