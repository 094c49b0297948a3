"""Prompts that the target has read already, so that a round's arms need not each read them again.

Every arm of a round decodes the same prompts, and the target reads a prompt the same way whatever drafts after it. On a
CPU reading takes as long as decoding. So it is done and timed once; each later time its keys and values are copied
into the slot, and the time it took is charged to the run's clock. No iteration's time is touched.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor

LIMIT_BYTES = 2**30
"""Some 60 prompts of 350 tokens of a 135M model: a workload's, which its cells at several concurrencies share."""


@dataclass(frozen=True)
class Prefilled:
    """``rows``: keys and values as ``SlotCache.snapshot`` gave them; ``logits`` [V] after the last token."""

    rows: tuple[Tensor, ...]
    logits: Tensor  # of its own: a view would keep the logits of the whole prompt alive
    wall_s: float

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.rows, self.logits))


class PrefillMemory:
    """The prompts read last, within ``limit_bytes``."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._known: OrderedDict[tuple[int, ...], Prefilled] = OrderedDict()

    def recall(self, tokens: tuple[int, ...]) -> Prefilled | None:
        """What is known of the prompt ``tokens``."""
        found = self._known.get(tokens)
        if found is not None:
            self._known.move_to_end(tokens)
        return found

    def keep(self, tokens: tuple[int, ...], prefilled: Prefilled) -> None:
        """Remember it, in place of what was known of the prompt, and forget what was used longest ago."""
        if prefilled.bytes > self._limit_bytes:
            return
        if (before := self._known.pop(tokens, None)) is not None:
            self._bytes -= before.bytes
        self._known[tokens] = prefilled
        self._bytes += prefilled.bytes
        while self._bytes > self._limit_bytes:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= forgotten.bytes
