"""γ that changes with load: drafts that fell behind catch up, and a miss is a plain step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tiny_models import GREEDY, WARM, assert_counts_hold, mixed_requests, outputs

from pipeline.engines.contract import OFF, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.cell import Sampling
from pipeline.records.target import DraftModel, Eagle3, EarlyExit, Medusa, Ngram

OpenEngine = Callable[..., DecodingEngine]
SCHEDULES = (
    Schedule.constant(1),
    Schedule.constant(4),
    Schedule(((1, 4), (2, 0), (3, 2))),  # 0 above three active and between
    Schedule(((2, 3), (3, 0), (5, 1))),
)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_draft_equal_to_the_target_is_always_accepted(
    open_engine: OpenEngine, same_draft: DraftModel, schedule: Schedule, sampling: Sampling
) -> None:
    """So its K/V is right however long it did not draft."""
    requests = [_request(i) for i in range(7)]
    trace = open_engine(same_draft, concurrency=5).run(requests, sampling, same_draft, schedule)
    assert_counts_hold(trace, requests)
    gammas = {it.gamma for it in trace.iterations}
    assert gammas == {schedule.gamma(active) for active in {it.active for it in trace.iterations}}
    assert sum(it.proposed for it in trace.iterations) > 0
    for it in trace.iterations:
        assert it.accepted == it.tested == it.proposed


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_greedy_text_does_not_depend_on_the_schedule(
    open_engine: OpenEngine, draft: DraftModel, medusa: Medusa, eagle3: Eagle3, schedule: Schedule
) -> None:
    for proposer in (draft, Ngram(name="ngram"), EarlyExit(name="exit", layers=3), medusa, eagle3):
        engine = open_engine(proposer, concurrency=5)
        plain = engine.run(mixed_requests(), GREEDY, None, OFF)
        trace = engine.run(mixed_requests(), GREEDY, proposer, schedule)
        assert outputs(trace) == outputs(plain)
        assert_counts_hold(trace, mixed_requests())


def test_plain_steps_of_a_schedule_draft_nothing(open_engine: OpenEngine, draft: DraftModel) -> None:
    trace = open_engine(draft, concurrency=4).run(mixed_requests(), GREEDY, draft, Schedule(((1, 3),)))
    for it in trace.iterations:
        assert (it.gamma == 0) == (it.active > 1)
        if it.gamma == 0:
            assert (it.width, it.proposed, it.tau_draft_ms, it.pad_fraction) == (1, 0, 0.0, 0.0)


@pytest.mark.parametrize(("end_to_end", "padding"), [(True, 0.0), (False, 4 / 10)])
def test_rows_that_miss_beside_rows_that_match_are_padding_or_laid_end_to_end(
    end_to_end: bool, padding: float, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Ngram(name="ngram")
    requests = [_request(0), _request(1, prompt=tuple(range(3, 61)) * 2)]  # the second one finds any token
    engine = open_engine(draft, concurrency=2)
    monkeypatch.setattr(engine._opened().model, "lays_end_to_end", end_to_end)
    trace = engine.run(requests, GREEDY, draft, Schedule.constant(4))
    first = trace.iterations[0]
    assert (first.active, first.proposed, first.width) == (2, 4, 5)
    assert first.pad_fraction == pytest.approx(padding)


def test_proposals_never_reach_beyond_the_output_limit(open_engine: OpenEngine, same_draft: DraftModel) -> None:
    requests = [_request(0, new_tokens=6)]
    trace = open_engine(same_draft, concurrency=1).run(requests, GREEDY, same_draft, Schedule.constant(8))
    (row,) = trace.requests
    assert (row.room, row.proposed, row.emitted, row.finish) == ((4,), (4,), (5,), "length")


def _request(i: int, prompt: tuple[int, ...] | None = None, new_tokens: int | None = None) -> Request:
    draws = np.random.default_rng(i)
    return Request(
        request_id=f"r{i}",
        prompt_id=f"p{i}",
        tokens=prompt or tuple(draws.integers(3, 60, 5 + 3 * i).tolist()),
        max_new_tokens=new_tokens or 12 + 5 * i,
        seed=i,
        ignore_eos=True,
    )
