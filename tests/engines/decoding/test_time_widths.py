"""A timing pass over widths is real decoding: its iterations propose by turns, and its text is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tiny_models import GREEDY, WARM, accepted, assert_counts_hold, mixed_requests, outputs

from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.measurement.gates import check_trace
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.target import Draft, DraftModel, EarlyExit, Medusa, Ngram

OpenEngine = Callable[..., DecodingEngine]
REQUESTS = mixed_requests(5)
GAMMAS = (4, 0, 2, 7)
PENALIZED = replace(WARM, name="penalized", repetition_penalty=1.3, frequency_penalty=0.3)


@pytest.mark.parametrize(
    ("concurrency", "sampling"),
    [(1, GREEDY), (3, WARM), (3, PENALIZED)],
    ids=["alone-greedy", "three-warm", "three-penalized"],
)
def test_without_a_draft_every_row_with_room_proposes_what_is_due(
    open_engine: OpenEngine, concurrency: int, sampling: Sampling
) -> None:
    engine = open_engine(concurrency=concurrency)
    trace = engine.time_widths(REQUESTS, sampling, None, GAMMAS)
    assert_counts_hold(trace, REQUESTS)
    widest = tuple(replace(it, gamma=max(GAMMAS)) for it in trace.iterations)  # no schedule goes by turns
    check_trace(replace(trace, iterations=widest), REQUESTS, Schedule.constant(max(GAMMAS)))
    assert [it.gamma for it in trace.iterations] == [GAMMAS[i % len(GAMMAS)] for i in range(len(trace.iterations))]
    for row in trace.requests:
        due = [GAMMAS[(row.first_iteration + k) % len(GAMMAS)] for k in range(len(row.room))]
        assert list(row.proposed) == [min(gamma, room) for gamma, room in zip(due, row.room, strict=True)]
    for it in trace.iterations:
        assert it.width <= 1 + it.gamma
        assert (it.tau_draft_ms > 0.0) == (it.proposed > 0)
    assert {1 + gamma for gamma in GAMMAS} <= {it.width for it in trace.iterations}
    assert outputs(trace) == outputs(engine.run(REQUESTS, sampling, None, OFF))


@pytest.mark.parametrize("name", ["ngram", "draft", "exit", "medusa"])
def test_with_a_draft_its_own_proposals_are_verified(
    open_engine: OpenEngine, draft: DraftModel, medusa: Medusa, name: str
) -> None:
    drafts: dict[str, Draft] = {
        "ngram": Ngram(name="ngram"),
        "draft": draft,
        "exit": EarlyExit(name="exit", layers=3),
        "medusa": medusa,
    }
    engine = open_engine(drafts[name], concurrency=3)
    gammas = (2, 0, 1)
    trace = engine.time_widths(REQUESTS, GREEDY, drafts[name], gammas)
    assert_counts_hold(trace, REQUESTS)
    assert [it.gamma for it in trace.iterations] == [gammas[i % 3] for i in range(len(trace.iterations))]
    assert outputs(trace) == outputs(engine.run(REQUESTS, GREEDY, None, OFF))
    assert accepted(trace) > 0


def test_one_width_is_the_run_with_that_gamma(open_engine: OpenEngine, draft: DraftModel) -> None:
    engine = open_engine(draft, concurrency=3)
    timed = engine.time_widths(REQUESTS, WARM, draft, [3])
    trace = engine.run(REQUESTS, WARM, draft, Schedule.constant(3))
    assert [row.accepted for row in timed.requests] == [row.accepted for row in trace.requests]
    assert outputs(timed) == outputs(trace)


def test_widths_that_cannot_be_timed_are_refused(open_engine: OpenEngine, medusa: Medusa) -> None:
    engine = open_engine(medusa, max_gamma=20)
    for gammas in ([], [2, -1]):
        with pytest.raises(ValueError, match="gammas to time"):
            engine.time_widths(REQUESTS, GREEDY, None, gammas)
    with pytest.raises(ValueError, match=r"gamma 21, limits\.max_gamma is 20"):
        engine.time_widths(REQUESTS, GREEDY, None, [1, 21])
    with pytest.raises(InputError, match="gamma 20 is more than its"):
        engine.time_widths(REQUESTS, GREEDY, medusa, [20])
