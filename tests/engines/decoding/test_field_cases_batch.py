"""Failures of other engines between the rows of a batch, each kind of it impossible here.

Every check passes on the engine as it is, and is shown to fail on one that is broken in just that way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scripted import NGRAM, REQUESTS, Texts, noticed, scripted, written, wrong_at
from tiny_models import GREEDY, WARM, mixed_requests, outputs
from torch import Tensor

from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding import sampler
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.loop import DecodingLoop
from pipeline.engines.decoding.proposers import chain
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Committed, Ints, Slots
from pipeline.engines.decoding.uniform import uniforms
from pipeline.measurement.acceptance import acceptance
from pipeline.records.cell import Sampling
from pipeline.records.target import Draft, DraftModel, Eagle3, Medusa, Ngram

OpenEngine = Callable[..., DecodingEngine]
Patch = pytest.MonkeyPatch
right_commit = Slots.commit
right_draft = DecodingLoop._draft


# A request's output is its own.


def check_that_output_is_the_requests_own(open_engine: OpenEngine, draft: Draft | None, sampling: Sampling) -> None:
    """Whatever its slot, its neighbours and the refills before it; and the same once more."""
    drafts = () if draft is None else (draft,)
    schedule = OFF if draft is None else Schedule.constant(3)
    requests = mixed_requests(10)
    alone: dict[str, tuple[int, ...]] = {}
    for request in requests:
        alone |= outputs(open_engine(*drafts, concurrency=1).run([request], sampling, draft, schedule))
    again = open_engine(*drafts, concurrency=1).run(requests, sampling, draft, schedule)
    assert outputs(again) == alone, "the same seed gave another text"
    for concurrency, order in ((10, requests), (3, requests), (4, requests[::-1])):
        together = open_engine(*drafts, concurrency=concurrency).run(order, sampling, draft, schedule)
        assert outputs(together) == alone, "a text depends on who shares its batch"


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["off", "ngram", "draft", "medusa", "eagle3"])
def test_output_does_not_depend_on_slot_neighbours_or_refill(
    open_engine: OpenEngine, draft: DraftModel, medusa: Medusa, eagle3: Eagle3, method: str, sampling: Sampling
) -> None:
    """Case 10."""
    drafts = {"off": None, "ngram": NGRAM, "draft": draft, "medusa": medusa, "eagle3": eagle3}
    check_that_output_is_the_requests_own(open_engine, drafts[method], sampling)


def by_slot(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    return uniforms(seeds + torch.arange(len(seeds)), positions, stream)


def from_the_process(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    return torch.rand(positions.shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("wrong", "said"), [(by_slot, "who shares its batch"), (from_the_process, "same seed gave another")]
)
@pytest.mark.parametrize("speculate", [False, True], ids=["plain", "draft"])
def test_random_numbers_of_a_slot_or_of_the_process_are_noticed(
    open_engine: OpenEngine,
    draft: DraftModel,
    speculate: bool,
    wrong: Callable[..., Tensor],
    said: str,
    monkeypatch: Patch,
) -> None:
    """Case 10, broken."""
    for module in (sampler, chain):
        monkeypatch.setattr(module, "uniforms", wrong)
    with noticed(said):
        check_that_output_is_the_requests_own(open_engine, draft if speculate else None, WARM)


# Nobody holds up the others, and each row advances by what it accepted itself.


def check_that_the_others_speculate(engine: DecodingEngine, texts: Texts) -> None:
    """Row 0 never proposes anything."""
    trace = scripted(engine, REQUESTS, lambda i, done, most: texts[i][done : done + most] if i else (), gamma=3)
    for request in trace.requests[1:]:
        expected = tuple(min(3, room) for room in request.room)
        assert request.proposed == request.accepted == expected, "one row made the batch plain"
    assert set(trace.requests[0].proposed) == {0}
    assert written(trace) == texts


def check_that_sampled_rows_speculate(open_engine: OpenEngine, draft: DraftModel) -> None:
    trace = open_engine(draft, concurrency=3).run(REQUESTS, WARM, draft, Schedule.constant(3))
    for request in trace.requests:
        assert request.proposed == tuple(min(3, room) for room in request.room), "sampling made the batch plain"


def test_no_row_drops_the_batch_to_plain_decoding(
    engine: DecodingEngine, texts: Texts, open_engine: OpenEngine, draft: DraftModel, monkeypatch: Patch
) -> None:
    """Case 11. A run has one sampling, so the row that could do it is one that proposes nothing; and sampled rows
    speculate as greedy ones do. Broken: all rows or none; greedy runs only."""
    check_that_the_others_speculate(engine, texts)
    check_that_sampled_rows_speculate(open_engine, draft)

    def all_or_none(self: DecodingLoop, gamma: int) -> Proposal | None:
        proposal = right_draft(self, gamma)
        return proposal if proposal is not None and proposal.proposed.all() else None

    monkeypatch.setattr(DecodingLoop, "_draft", all_or_none)
    with noticed("one row made the batch plain"):
        check_that_the_others_speculate(open_engine(NGRAM, concurrency=3), texts)

    def greedy_only(self: DecodingLoop, gamma: int) -> Proposal | None:
        return right_draft(self, gamma) if self._sampling.greedy else None

    monkeypatch.setattr(DecodingLoop, "_draft", greedy_only)
    with noticed("sampling made the batch plain"):
        check_that_sampled_rows_speculate(open_engine, draft)


def check_that_rows_advance_by_their_own(engine: DecodingEngine, texts: Texts) -> None:
    """Row i has its proposal i refused."""
    trace = scripted(engine, REQUESTS, lambda i, done, most: wrong_at(texts[i][done : done + most], i), gamma=3)
    assert written(trace) == texts, "rows were advanced alike"
    assert [set(request.emitted[:3]) for request in trace.requests] == [{1}, {2}, {3}]


def test_rows_that_accept_different_lengths_keep_their_own(
    engine: DecodingEngine, texts: Texts, monkeypatch: Patch
) -> None:
    """Case 12. Broken: every row is advanced by the longest block, or by the shortest."""
    check_that_rows_advance_by_their_own(engine, texts)
    for alike in (np.max, np.min):

        def together(self: Slots, *block: Ints, alike: Callable[[Ints], np.int64] = alike) -> Committed:
            start = self.n[: self.active].copy()
            done = right_commit(self, *block)
            self.n[: self.active] = start + alike(done.emitted)
            return done

        monkeypatch.setattr(Slots, "commit", together)
        with noticed("advanced alike"):
            check_that_rows_advance_by_their_own(engine, texts)


# A proposer that finds nothing.


def check_that_an_empty_draft_is_a_plain_step(open_engine: OpenEngine, texts: Texts) -> None:
    never = Ngram(name="never", min_n=50, max_n=50)
    trace = open_engine(never, concurrency=3).run(REQUESTS, GREEDY, never, Schedule.constant(4))
    for it in trace.iterations:
        assert (it.width, it.pad_fraction) == (1, 0.0), "padding was verified"
        assert (it.gamma, it.proposed, it.emitted) == (4, 0, it.active)
    assert all(it.tau_draft_ms > 0 for it in trace.iterations[:-1]), "looking in vain is drafting time"
    assert trace.iterations[-1].tau_draft_ms == 0.0, "without room nothing is looked for"
    assert written(trace) == texts
    assert acceptance(trace.requests, gamma=4).acceptance_rate is None


def test_a_proposer_that_finds_nothing_makes_a_plain_step(
    open_engine: OpenEngine, texts: Texts, monkeypatch: Patch
) -> None:
    """Case 13. Broken: what is missing is filled with padding, and that is verified."""
    check_that_an_empty_draft_is_a_plain_step(open_engine, texts)

    def padded(self: DecodingLoop, gamma: int) -> Proposal:
        rows = self._slots.active
        nothing = Proposal(torch.zeros(rows, gamma, dtype=torch.int64), None, np.zeros(rows, dtype=np.int64))
        return right_draft(self, gamma) or nothing

    monkeypatch.setattr(DecodingLoop, "_draft", padded)
    with noticed("padding was verified"):
        check_that_an_empty_draft_is_a_plain_step(open_engine, texts)
