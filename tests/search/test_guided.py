"""A guided search measures the best forecasts, and stops when nothing can be expected to beat what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.records.forecast import Forecast
from pipeline.records.settings import DraftChoice
from pipeline.records.target import Candidate, DraftModel, EarlyExit, Ngram
from pipeline.search.guided import Guided
from pipeline.search.space import CandidateSpace

NGRAM, EXIT, MODEL = Ngram(name="ngram"), EarlyExit(name="exit", layers=2), DraftModel(name="model", source="there")


def space_of(gammas: int = 6) -> CandidateSpace:
    return CandidateSpace([DraftChoice(draft=d, gammas=tuple(range(1, gammas + 1))) for d in (NGRAM, EXIT, MODEL)])


def forecast(
    candidate: Candidate, speedup: float, error: float = 0.02, method: Literal["replay", "probe"] = "replay"
) -> Forecast:
    return Forecast(
        candidate=candidate,
        method=method,
        speedup=speedup,
        error=error,
        spread=0.05,
        emitted_per_verification=2.0,
        acceptance_rate=0.5,
        proposed_per_iteration=1.0,
        marginal=(0.5,),
        tau_draft_ms=0.0,
        tau_verify_ms=1.0,
        tau_overhead_ms=0.0,
        tau_spec_ms=1.0,
    )


def guided(space: CandidateSpace, speedups: Mapping[tuple[str, int], float], rest: float = 0.5) -> Guided:
    return Guided(
        space,
        0,
        [forecast(c, speedups.get((c.draft.name, c.gamma), rest)) for c in space.candidates if c.draft is not None],
    )


def names(candidates: tuple[Candidate, ...]) -> set[tuple[str, int]]:
    return {(c.draft.name, c.gamma) for c in candidates if c.draft is not None}


def test_a_draft_s_best_forecast_stands_for_its_other_gammas() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("ngram", 4): 1.29, ("ngram", 5): 1.20, ("model", 2): 1.10})
    assert names(search.propose(space.candidates, {}, 4)) == {("ngram", 3)}


def test_a_rival_draft_is_measured_beside_the_best_if_it_is_near() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("model", 2): 1.25, ("exit", 1): 1.0})
    assert names(search.propose(space.candidates, {}, 4)) == {("ngram", 3), ("model", 2)}


def test_of_equal_forecasts_the_cheapest_goes_first() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("ngram", 2): 1.30, ("model", 1): 1.30})
    first = search.propose(space.candidates, {}, 1)
    assert names(first) == {("ngram", 2)}


def test_the_search_ends_when_no_forecast_can_beat_the_best_measured() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("ngram", 4): 1.26})
    (chosen,) = search.propose(space.candidates, {}, 1)
    left = [c for c in space.candidates if c != chosen]
    assert search.propose(left, {chosen: 1.31}, 4) == ()


def test_a_disappointing_best_sends_the_search_on_to_the_next() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("model", 2): 1.22})
    (chosen,) = search.propose(space.candidates, {}, 1)
    left = [c for c in space.candidates if c != chosen]
    assert names(search.propose(left, {chosen: 0.95}, 4)) >= {("model", 2)}


def test_a_probed_draft_is_measured_at_two_gammas_and_corrected_by_both() -> None:
    space = space_of()
    told = {c: forecast(c, 0.5) for c in space.candidates}
    told |= {c: forecast(c, 1.2 + 0.1 * c.gamma, 0.08, "probe") for c in space.candidates if c.draft == MODEL}
    search = Guided(space, 0, list(told.values()))
    first = search.propose(space.candidates, {}, 4)
    assert names(first) == {("model", 6), ("model", 3)}
    # long blocks were promised too much, short ones not: what lies between is expected in proportion
    measured = {c: 1.3 if c.gamma == 6 else 1.5 for c in first}
    left = [c for c in space.candidates if c not in measured]
    assert search.propose(left, measured, 4) == ()
    measured = {c: 1.3 if c.gamma == 6 else 1.2 for c in first}
    assert search.propose(left, measured, 4) == (), "what lies between is expected at 1.27 at most"


def test_what_was_measured_corrects_the_forecasts_of_its_draft() -> None:
    """All of a draft's forecasts were too high: its other γ are no longer expected to win, another draft's are."""
    space = space_of()
    told = {("ngram", gamma): 1.30 + 0.001 * gamma for gamma in range(1, 7)}
    measured = {c: 1.05 for c in space.candidates if c.draft == NGRAM and c.gamma > 3}
    left = [c for c in space.candidates if c not in measured]
    assert guided(space, told).propose(left, measured, 4) == ()
    rival = guided(space, told | {("model", 2): 1.20})
    assert names(rival.propose(left, measured, 4)) == {("model", 2)}


BROKE, KEPT = {"tpot_ms_p99": 0.3}, {"tpot_ms_p99": -0.3}


def test_what_broke_a_limit_is_not_the_best_that_others_must_beat() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("model", 2): 1.20, ("exit", 2): 1.05})
    ngram = next(c for c in space.candidates if (c.draft, c.gamma) == (NGRAM, 3))
    left = [c for c in space.candidates if c != ngram]
    assert search.propose(left, {ngram: 1.30}, 4, {ngram: KEPT}) == ()
    assert names(search.propose(left, {ngram: 1.30}, 4, {ngram: BROKE})) == {("model", 2), ("exit", 2)}
    assert names(search.propose(left, {ngram: 1.30}, 1, {ngram: BROKE})) == {("model", 2)}, "the most promising first"


def test_once_one_keeps_to_the_limits_it_is_what_others_must_beat() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("model", 2): 1.20, ("exit", 2): 1.05, ("exit", 3): 1.25})
    ngram, model = (c for c in space.candidates if (c.draft, c.gamma) in ((NGRAM, 3), (MODEL, 2)))
    ngram, model = sorted((ngram, model), key=lambda c: c.gamma, reverse=True)
    left = [c for c in space.candidates if c not in (ngram, model)]
    excesses = {ngram: BROKE, model: KEPT}
    assert names(search.propose(left, {ngram: 1.30, model: 1.20}, 4, excesses)) == {("exit", 3)}
    assert search.propose(left, {ngram: 1.30, model: 1.30}, 4, excesses) == ()


def test_what_broke_a_limit_corrects_the_forecasts_of_its_draft_all_the_same() -> None:
    """Two of a draft came out far below what was forecast: its others are not expected to gain, another draft's are."""
    space = space_of()
    told = {("ngram", gamma): 1.30 + 0.001 * gamma for gamma in range(1, 7)} | {("model", 2): 1.10}
    measured = {c: 0.9 for c in space.candidates if c.draft == NGRAM and c.gamma > 4}
    left = [c for c in space.candidates if c not in measured]
    assert names(guided(space, told).propose(left, measured, 4, dict.fromkeys(measured, BROKE))) == {("model", 2)}
    right = dict.fromkeys(measured, 1.3)
    assert ("ngram", 1) in names(guided(space, told).propose(left, right, 9, dict.fromkeys(right, BROKE)))


def test_where_all_break_a_limit_the_search_goes_on_to_all_that_should_gain_and_ends() -> None:
    space = space_of()
    search = guided(space, {("ngram", 3): 1.30, ("ngram", 4): 1.20, ("model", 2): 1.05, ("exit", 1): 0.98})
    scores: dict[Candidate, float] = {}
    while chosen := search.propose(
        [c for c in space.candidates if c not in scores], scores, 1, dict.fromkeys(scores, BROKE)
    ):
        scores |= {c: {3: 1.30, 4: 1.20}.get(c.gamma, 1.05) for c in chosen}
    assert names(tuple(scores)) == {("ngram", 3), ("ngram", 4), ("model", 2)}


def test_candidates_without_a_forecast_are_all_tried_while_all_break_a_limit() -> None:
    space = space_of()
    search = Guided(space, 0, ())
    scores: dict[Candidate, float] = {}
    while chosen := search.propose(
        [c for c in space.candidates if c not in scores], scores, 4, dict.fromkeys(scores, BROKE)
    ):
        scores |= dict.fromkeys(chosen, 1.0)
    assert len(scores) == len(space.candidates)


def test_a_best_that_turns_out_to_break_a_limit_does_not_end_a_search_without_forecasts() -> None:
    """Its rivals then look like no gain upon it, which they need not be."""
    space = space_of()
    search = Guided(space, 0, ())
    scores: dict[Candidate, float] = {}
    for _ in range(2):
        chosen = search.propose([c for c in space.candidates if c not in scores], scores, 4)
        scores |= {c: 1.0 + 0.2 * len(scores) + 0.05 * i for i, c in enumerate(chosen)}
    fastest = max(scores, key=lambda c: scores[c])
    left = [c for c in space.candidates if c not in scores]
    third = search.propose(left, scores, 4)
    assert third
    scores |= dict.fromkeys(third, 1.0)
    left = [c for c in left if c not in third]
    assert search.propose(left, scores, 4, {fastest: BROKE})


def test_in_a_large_space_tpe_does_not_measure_itself_by_what_broke_a_limit() -> None:
    space = space_of(gammas=12)
    search = guided(space, {("ngram", 3): 1.30}, rest=0.97)
    ngram = next(c for c in space.candidates if (c.draft, c.gamma) == (NGRAM, 3))
    left = [c for c in space.candidates if c != ngram]
    again = guided(space, {("ngram", 3): 1.30}, rest=0.99)
    assert search.propose(left, {ngram: 1.30}, 4, {ngram: BROKE}) == (), "all are expected to lose more than the error"
    assert again.propose(left, {ngram: 1.30}, 4, {ngram: BROKE}) != (), "some may yet gain"


def test_candidates_without_a_forecast_are_left_to_tpe_until_a_round_gains_nothing() -> None:
    space = space_of()
    search = Guided(space, 0, ())
    scores: dict[Candidate, float] = {}
    rounds = 0
    while chosen := search.propose([c for c in space.candidates if c not in scores], scores, 4):
        rounds += 1
        scores |= dict.fromkeys(chosen, 1.0)
    assert 2 <= rounds <= 3 < len(space.candidates) / 4


def test_in_a_large_space_tpe_proposes_once_and_never_what_is_far_behind() -> None:
    space = space_of(gammas=12)
    search = guided(space, {("ngram", 3): 1.30, ("ngram", 5): 1.285}, rest=0.7)
    scores: dict[Candidate, float] = {}
    while chosen := search.propose([c for c in space.candidates if c not in scores], scores, 4):
        scores |= {c: 1.30 if c.gamma == 3 else 1.28 for c in chosen}
    assert {("ngram", 3)} <= names(tuple(scores)) <= {("ngram", 3), ("ngram", 5)}
