"""Failures of other engines in what a schedule switches off, each kind of it impossible here.

Every check passes on the engine as it is, and is shown to fail on one that is broken in just that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from scripted import noticed
from tiny_models import GREEDY, assert_counts_hold, mixed_requests, outputs

from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.loop import DecodingLoop
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.proposers.draft_model import DraftModelProposer
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.records.target import DraftModel

OpenEngine = Callable[..., DecodingEngine]
Patch = pytest.MonkeyPatch
right_run = DecodingEngine.run
right_proposer = DecodingEngine._proposer
right_iterate = DecodingLoop._iterate
right_propose = DraftModelProposer.propose


# The baseline is plain decoding: no proposer is made, kept up with or asked.


def check_that_plain_decoding_has_nothing_on_top(engine: DecodingEngine, monkeypatch: Patch) -> None:
    made: list[str] = []

    def watched(self: DecodingEngine, draft: DraftModel, *rest: object) -> object:
        made.append(draft.name)
        return right_proposer(self, draft, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(DecodingEngine, "_proposer", watched)
        trace = engine.run(mixed_requests(6), GREEDY, None, OFF)
    assert made == [], "a proposer was made"
    assert {(i.gamma, i.width, i.proposed, i.tau_draft_ms, i.pad_fraction) for i in trace.iterations} == {
        (0, 1, 0, 0.0, 0.0)
    }


def test_the_baseline_is_plain_decoding_whatever_drafts_are_open(
    open_engine: OpenEngine, draft: DraftModel, monkeypatch: Patch
) -> None:
    """Case 18."""
    check_that_plain_decoding_has_nothing_on_top(open_engine(draft, concurrency=3), monkeypatch)


def test_a_baseline_that_is_the_speculative_path_is_noticed(
    open_engine: OpenEngine, draft: DraftModel, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(
        DecodingEngine,
        "run",
        lambda self, arrivals, sampling, given, schedule: right_run(self, arrivals, sampling, given or draft, schedule),
    )
    with noticed("a proposer was made"):
        check_that_plain_decoding_has_nothing_on_top(open_engine(draft, concurrency=3), monkeypatch)


# γ follows the load, and what was drafted before and after a pause is as good as if there had been none.


def check_that_a_schedule_survives_changing_load(open_engine: OpenEngine, same_draft: DraftModel) -> None:
    """Five at once, then fewer, then more again: with the target as its draft every proposal must stand."""
    schedule = Schedule(((1, 4), (2, 0), (3, 2), (4, 0), (5, 1)))
    requests = [replace(r, ignore_eos=True) for r in mixed_requests(8)]
    engine = open_engine(same_draft, concurrency=5)
    plain = engine.run(requests, GREEDY, None, OFF)
    trace = engine.run(requests, GREEDY, same_draft, schedule)
    assert outputs(trace) == outputs(plain)
    assert_counts_hold(trace, requests)
    seen = {i.active for i in trace.iterations}
    assert {1, 2, 3} <= seen
    for i in trace.iterations:
        assert i.gamma == schedule.gamma(i.active), "another gamma than the schedule's"
        assert i.gamma > 0 or (i.width, i.proposed, i.tau_draft_ms) == (1, 0, 0.0), "off, and not off"
        assert i.accepted == i.tested == i.proposed, "a draft that fell behind"


def test_a_schedule_is_honoured_while_the_load_changes(open_engine: OpenEngine, same_draft: DraftModel) -> None:
    """Case 21, as far as an engine goes; case 22."""
    check_that_a_schedule_survives_changing_load(open_engine, same_draft)


def never_switched(self: DecodingLoop) -> None:
    self._schedule = Schedule.constant(self._schedule.max_gamma)
    right_iterate(self)


def never_behind(self: DraftModelProposer, slots: Slots, dlen: Ints) -> Proposal:
    """Takes what was written in a pause for what it has read."""
    self.valid[: slots.active] = slots.n[: slots.active] - 1
    return right_propose(self, slots, dlen)


@pytest.mark.parametrize(
    ("part", "name", "wrong", "said"),
    [
        (DecodingLoop, "_iterate", never_switched, "another gamma than the schedule's"),
        (DraftModelProposer, "propose", never_behind, "a draft that fell behind"),
    ],
)
def test_a_switch_never_thrown_and_a_draft_that_missed_the_pause_are_noticed(
    open_engine: OpenEngine,
    same_draft: DraftModel,
    monkeypatch: Patch,
    part: type,
    name: str,
    wrong: Callable[..., object],
    said: str,
) -> None:
    monkeypatch.setattr(part, name, wrong)
    with noticed(said):
        check_that_a_schedule_survives_changing_load(open_engine, same_draft)
