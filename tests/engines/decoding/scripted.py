"""A proposer that is told what to propose, so that a test knows what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tiny_models import GREEDY, VOCABULARY
from torch import Tensor

from pipeline.engines.contract import Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.records.target import Ngram
from pipeline.records.trace import Trace

NGRAM = Ngram(name="ngram")
REQUESTS = tuple(
    Request(
        request_id=f"r{i}",
        prompt_id=f"p{i}",
        tokens=tuple((7 * k + 3 * i) % VOCABULARY for k in range(4 + 3 * i)),
        max_new_tokens=24,
        seed=i,
        ignore_eos=True,
    )
    for i in range(3)
)
Texts = Sequence[tuple[int, ...]]
"""By request."""

Plan = Callable[[int, int, int], Sequence[int]]
"""(index of the request, tokens it has written, most that may be proposed) → what is proposed next."""


class Scripted:
    """``prompts``: their lengths, by request."""

    needs_hidden: tuple[int, ...] = ()
    kv_bytes = 0

    def __init__(self, plan: Plan, prompts: Sequence[int]) -> None:
        self._plan = plan
        self._prompts = prompts

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """Nothing to keep."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        rows = []
        for index, n, most in zip(slots.request.tolist(), slots.n.tolist(), dlen.tolist(), strict=False):
            rows.append(list(self._plan(index, n - self._prompts[index], most)))
        proposed = np.array([len(row) for row in rows], dtype=np.int64)
        tokens = np.zeros((len(rows), proposed.max()), dtype=np.int64)
        for row, told in enumerate(rows):
            tokens[row, : len(told)] = told
        return Proposal(torch.from_numpy(tokens), None, proposed)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Nothing to keep."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to keep."""


def scripted(engine: DecodingEngine, requests: Sequence[Request], plan: Plan, gamma: int) -> Trace:
    """``requests`` decoded greedily by ``engine``, which has ``NGRAM`` open, with ``plan`` in its place."""
    proposer = Scripted(plan, [len(request.tokens) for request in requests])
    with patch.object(engine, "_proposer", lambda *_: proposer):
        return engine.run(requests, GREEDY, NGRAM, Schedule.constant(gamma))


def written(trace: Trace) -> Texts:
    return [request.output for request in trace.requests]


def wrong_at(tokens: Sequence[int], offset: int) -> list[int]:
    """``tokens`` with another one at ``offset``, if it is among them."""
    return [(token + (j == offset)) % VOCABULARY for j, token in enumerate(tokens)]


def noticed(message: str) -> pytest.RaisesExc[AssertionError]:
    """What a check must say of a broken engine."""
    return pytest.raises(AssertionError, match=message)
