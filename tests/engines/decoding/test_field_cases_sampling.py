"""Failures of other engines in what is drawn, each kind of it impossible here.

Every check passes on the engine as it is, and is shown to fail on one that is broken in just that way. Residuals and
tokens of probability 0 are in ``test_accept``, whole texts in ``test_losslessness``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scripted import NGRAM, noticed
from tiny_models import GREEDY, mixed_requests
from torch import Tensor

from pipeline.benchmarks.exact import p_value
from pipeline.benchmarks.mutants import broken
from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding import sampler
from pipeline.engines.decoding.accept import Accepted, accept_greedy
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.proposers import chain
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.slots import Slots
from pipeline.engines.decoding.transform import probabilities
from pipeline.measurement.gates import GateError, check_text
from pipeline.records.cell import Sampling
from pipeline.records.settings import Protocol
from pipeline.records.trace import Trace

OpenEngine = Callable[..., DecodingEngine]
Patch = pytest.MonkeyPatch
Probabilities = Callable[[Tensor, Sampling], Tensor]

V = 8
ROWS = 20_000
TARGET, DRAFT = torch.randn(2, V, V, generator=torch.Generator().manual_seed(44)) * 1.5
"""Logits by the last token."""
SHARP = Sampling(name="sharp", temperature=0.5, top_k=4)
FILTERS = {
    "temperature": (Sampling(name="t05", temperature=0.5), 1.0),
    "top_k": (Sampling(name="k3", temperature=1.0, top_k=3), 0),
    "top_p": (Sampling(name="p70", temperature=1.0, top_p=0.7), 1.0),
    "min_p": (Sampling(name="minp20", temperature=1.0, min_p=0.2), 0.0),
}
"""A sampling with only that filter, and the value at which it does nothing."""


def proposed(drawn: Sampling | None) -> tuple[Slots, Proposal]:
    """``ROWS`` requests whose last token is 0, with seeds of their own, and a proposal of one token for each."""
    slots = Slots(ROWS, 8, V, ())
    slots.active = ROWS
    slots.n[:], slots.end[:], slots.seeds[:] = 3, 8, np.arange(ROWS)
    first = DRAFT[0].expand(ROWS, V)
    return slots, chain.draft_from(first, lambda token, _: DRAFT[token], slots, np.ones(ROWS, dtype=np.int64), drawn)


def check_that_the_target_decides(sampling: Sampling, drawn: Sampling | None) -> None:
    """What stands after token 0, a proposal or what replaced it, has the target's distribution."""
    slots, proposal = proposed(drawn)
    read = torch.cat((torch.zeros(ROWS, 1, dtype=torch.int64), proposal.tokens), dim=1)
    result = sampler.accept(TARGET[read], proposal, slots.seeds, slots.n, sampling)
    assert 0.02 * ROWS < int(result.count.sum()) < 0.98 * ROWS, "a draft that never differs tests nothing"
    emitted = torch.where(result.count == 1, proposal.tokens[:, 0], result.next_token)
    counts = torch.bincount(emitted, minlength=V).double().numpy()
    exact = probabilities(TARGET[0], sampling).double().numpy()
    assert p_value(counts, exact, (0,)) > 1e-4, "not the target's distribution"


def softmax_beside_argmax() -> AbstractContextManager[object]:
    """Tokens taken by argmax, and q the softmax of the raw logits."""
    right = chain.draft_from

    def wrong(logits: Tensor, *others: object) -> Proposal:
        return replace(right(logits, *others), q=torch.softmax(logits, dim=-1)[:, None])  # type: ignore[arg-type]

    return patch.object(chain, "draft_from", wrong)


@pytest.mark.parametrize(
    ("drawn", "wrong"),
    [(None, softmax_beside_argmax), (SHARP, lambda: broken("untransformed q", SHARP))],
    ids=["greedy", "sampled"],
)
def test_q_is_what_the_token_was_drawn_from(
    drawn: Sampling | None, wrong: Callable[[], AbstractContextManager[object]]
) -> None:
    """Case 7. Broken: q is the softmax of raw logits, beside tokens taken by argmax or drawn with filters."""
    check_that_the_target_decides(SHARP, drawn)
    with wrong(), noticed("not the target's distribution"):
        check_that_the_target_decides(SHARP, drawn)


def check_that_drafts_obey(sampling: Sampling) -> None:
    _, proposal = proposed(sampling)
    assert proposal.q is not None
    exact = probabilities(DRAFT[0], sampling)
    assert torch.equal(proposal.q[:, 0], exact.expand(ROWS, V)), "the draft has a filter of its own"
    counts = torch.bincount(proposal.tokens[:, 0], minlength=V).double().numpy()
    assert p_value(counts, exact.double().numpy(), (0,)) > 1e-4


def without(name: str) -> Probabilities:
    neutral = FILTERS[name][1]
    return lambda logits, sampling: probabilities(logits, replace(sampling, **{name: neutral}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_holds_for_drafts_and_for_verified_tokens(name: str, monkeypatch: Patch) -> None:
    """Case 8. Broken: drafting leaves one filter out, or verification does, sampled drafts and one-hot ones."""
    sampling = FILTERS[name][0]
    check_that_drafts_obey(sampling)
    for drawn in (sampling, None):
        check_that_the_target_decides(sampling, drawn)
    with monkeypatch.context() as drafting:
        drafting.setattr(chain, "probabilities", without(name))
        with noticed("a filter of its own"):
            check_that_drafts_obey(sampling)
    monkeypatch.setattr(sampler, "probabilities", without(name))
    for drawn in (sampling, None):
        with noticed("not the target's distribution"):
            check_that_the_target_decides(sampling, drawn)


# Greedy text differs at near-ties alone, and those are counted.

TIES = mixed_requests(4)


def differing(trace: Trace, index: int, at: int) -> Trace:
    """``trace`` with another token at one place of one request's text."""
    row = trace.requests[index]
    output = (*row.output[:at], row.output[at] + 1, *row.output[at + 1 :])
    requests = (*trace.requests[:index], replace(row, output=output), *trace.requests[index + 1 :])
    return replace(trace, requests=requests)


def check_that_lookup_writes_the_plain_text(engine: DecodingEngine) -> None:
    plain = engine.run(TIES, GREEDY, None, OFF)
    trace = engine.run(TIES, GREEDY, NGRAM, Schedule.constant(4))
    assert check_text(engine, TIES, trace, plain, GREEDY, Protocol()) == 0


def accept_the_second_best_too(logits: Tensor, drafted: Tensor, dlen: Tensor, ragged: Ragged | None = None) -> Accepted:
    logits = logits if ragged is None else ragged.spread(logits)
    best = logits.topk(2, dim=-1).indices
    wanted = best[..., 0].clone()
    wanted[:, :-1] = torch.where(drafted == best[:, :-1, 1], drafted, wanted[:, :-1])
    return accept_greedy(torch.nn.functional.one_hot(wanted, logits.shape[-1]), drafted, dlen)


def test_lookup_that_is_content_with_the_second_best_fails_the_gate(
    open_engine: OpenEngine, monkeypatch: Patch
) -> None:
    """Case 14."""
    engine = open_engine(NGRAM, concurrency=3)
    check_that_lookup_writes_the_plain_text(engine)
    monkeypatch.setattr(sampler, "accept_greedy", accept_the_second_best_too)
    with pytest.raises(GateError, match="and no tie"):
        check_that_lookup_writes_the_plain_text(engine)


def check_that_only_near_ties_pass(engine: DecodingEngine, tie: tuple[int, int, float]) -> None:
    """``tie``: request, place and margin of one choice."""
    index, at, margin = tie
    plain = engine.run(TIES, GREEDY, None, OFF)
    other = differing(plain, index, at)
    just = Protocol(tie_margin=margin * 1.01)
    assert check_text(engine, TIES, other, plain, GREEDY, just) == 1, "a near-tie is not counted"
    try:
        check_text(engine, TIES, other, plain, GREEDY, replace(just, tie_margin=margin * 0.99))
    except GateError:
        return
    raise AssertionError("a difference passes that is no tie")


def nearest(engine: DecodingEngine) -> tuple[int, int, float]:
    """The choice with the least margin."""
    plain = engine.run(TIES, GREEDY, None, OFF)
    margins = [
        (engine.tie_margin(TIES[index], row.output[:at], GREEDY), index, at)
        for index, row in enumerate(plain.requests)
        for at in range(len(row.output))
    ]
    margin, index, at = min(margins)
    assert margin > 0.0
    return index, at, margin


def test_only_near_ties_may_differ_and_they_are_counted(open_engine: OpenEngine, monkeypatch: Patch) -> None:
    """Case 14. Broken: any difference is taken for a tie."""
    engine = open_engine(NGRAM, concurrency=3)
    tie = nearest(engine)
    check_that_only_near_ties_pass(engine, tie)
    monkeypatch.setattr(engine, "tie_margin", lambda *_: 0.0)
    with noticed("passes that is no tie"):
        check_that_only_near_ties_pass(engine, tie)
