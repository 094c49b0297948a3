"""One cell's study: proposals, resume and views."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from pipeline.records.failure import InputError
from pipeline.records.measurement import Measurement
from pipeline.records.settings import NO_LIMITS, Constraints, DraftChoice, SearchSettings
from pipeline.records.target import Candidate, EarlyExit, Ngram
from pipeline.search.space import CandidateSpace
from pipeline.search.strategies import Tpe
from pipeline.search.study import CellStudy, open_storage

NGRAM = DraftChoice(draft=Ngram(name="ngram"), gammas=(2, 4, 8))
EXIT = DraftChoice(draft=EarlyExit(name="exit", layers=2), gammas=(1, 2))


def study(storage: optuna.storages.BaseStorage, choices=(NGRAM, EXIT), constraints=NO_LIMITS, **search) -> CellStudy:
    return CellStudy("sweep/cell", choices, SearchSettings(**search), storage, constraints=constraints)


@pytest.fixture
def storage(tmp_path: Path) -> optuna.storages.BaseStorage:
    return open_storage(tmp_path / "optuna.db")


def stored(storage: optuna.storages.BaseStorage) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="sweep/cell", storage=storage).get_trials()


def run_out(cell: CellStudy, make_measurement, score) -> list[Candidate]:
    asked: list[Candidate] = []
    while batch := cell.ask():
        for candidate in batch:
            cell.tell(make_measurement(candidate=candidate, speedup=score(candidate)))
        asked.extend(batch)
    return asked


FORECAST = {("ngram", 2): 1.6, ("ngram", 4): 1.58, ("ngram", 8): 1.5, ("other", 2): 1.4, ("other", 4): 1.2}


def forecast_study(storage, make_forecast, method: str = "replay") -> CellStudy:
    """Draft ngram is ahead by so much that it is confirmed without a search, draft other behind it."""
    gammas = {name: tuple(g for n, g in FORECAST if n == name) for name, _ in FORECAST}
    cell = study(storage, [DraftChoice(draft=Ngram(name=name), gammas=each) for name, each in gammas.items()])
    cell.expect([replace(f, method=method) for f in make_forecast(FORECAST).forecasts])
    assert [c.label for c in cell.ask()][:1] == ["ngram γ2"]
    return cell


def labels(candidates) -> set[str]:
    return {candidate.label for candidate in candidates}


def confirmation(make_measurement, candidate: Candidate, speedup: float, half: float = 0.1, **changes) -> Measurement:
    low, high = speedup - half, speedup + half
    return make_measurement(
        candidate=candidate, kind="confirmation", speedup=speedup, speedup_low=low, speedup_high=high, **changes
    )


@pytest.mark.parametrize("confirmed", [1.15, 1.2, 1.3])
def test_one_confirmed_below_its_forecast_is_not_searched_beside_other_lengths_of_its_draft(
    storage, make_measurement, make_forecast, confirmed
):
    cell = forecast_study(storage, make_forecast)
    (first,) = cell.ask()
    cell.tell(confirmation(make_measurement, first, confirmed))
    asked = labels(cell.ask())
    assert asked <= {"other γ2", "other γ4"}
    assert "other γ2" in asked, "its text and its times are others"


@pytest.mark.parametrize("confirmed", [0.95, 1.05])
def test_where_the_one_confirmed_may_not_pay_other_lengths_are_searched(
    storage, make_measurement, make_forecast, confirmed
):
    cell = forecast_study(storage, make_forecast)
    (first,) = cell.ask()
    cell.tell(confirmation(make_measurement, first, confirmed))
    assert "ngram γ4" in labels(cell.ask())


def test_once_searched_it_is_one_of_many_again(storage, make_measurement, make_forecast):
    cell = forecast_study(storage, make_forecast)
    (first,) = cell.ask()
    cell.tell(confirmation(make_measurement, first, 1.2))
    cell.tell(make_measurement(candidate=first, kind="search", speedup=1.2))
    assert "ngram γ4" in labels(cell.ask())
    cell.tell(confirmation(make_measurement, first, 1.2))
    assert "ngram γ4" in labels(cell.ask())


def test_once_it_failed_other_lengths_are_searched(storage, make_measurement, make_forecast):
    cell = forecast_study(storage, make_forecast)
    (first,) = cell.ask()
    cell.tell(confirmation(make_measurement, first, 1.2))
    cell.fail(first, "out of memory")
    assert "ngram γ4" in labels(cell.ask())


def test_a_probed_draft_may_do_better_by_another_length_however_it_was_measured(
    storage, make_measurement, make_forecast
):
    cell = forecast_study(storage, make_forecast, method="probe")
    first = cell.ask()[0]
    cell.tell(confirmation(make_measurement, first, 1.2))
    assert "ngram γ4" in labels(cell.ask())


def test_after_a_confirmation_that_broke_a_limit_other_lengths_are_searched(storage, make_measurement, make_forecast):
    first = Candidate(draft=NGRAM.draft, gamma=2)
    limited = study(storage, [NGRAM], constraints=Constraints(tpot_ms_p99=10.0))
    limited.expect(make_forecast({("ngram", gamma): 1.6 - gamma / 100 for gamma in (2, 4, 8)}).forecasts)
    limited.tell(confirmation(make_measurement, first, 1.2, tpot_ms_p99=11.0))
    assert "ngram γ4" in labels(limited.ask())


@pytest.mark.parametrize("strategy", ["grid", "tpe"])
def test_every_candidate_is_asked_once_and_stored_once(storage, make_measurement, strategy):
    cell = study(storage, strategy=strategy, candidates_per_round=2)
    asked = run_out(cell, make_measurement, lambda c: 1 + c.gamma / 10)
    assert sorted(c.label for c in asked) == ["exit γ1", "exit γ2", "ngram γ2", "ngram γ4", "ngram γ8"]
    assert all(trial.state == TrialState.COMPLETE for trial in stored(storage))
    assert len(stored(storage)) == 5


def test_a_round_never_exceeds_its_size_nor_the_search_its_limit(storage, make_measurement):
    cell = study(storage, candidates_per_round=2, max_candidates=3)
    first = cell.ask()
    assert len(first) == 2
    for candidate in first:
        cell.tell(make_measurement(candidate=candidate, speedup=1.0))
    second = cell.ask()
    assert len(second) == 1
    cell.tell(make_measurement(candidate=second[0], speedup=1.0))
    assert cell.ask() == ()


def test_an_infeasible_candidate_keeps_its_reason_and_is_not_asked_again(storage):
    cell = study(storage, candidates_per_round=5)
    bad = cell.ask()[0]
    cell.fail(bad, "out of memory")
    assert bad not in cell.ask()
    (trial,) = stored(storage)
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs["infeasible"] == "out of memory"


def test_telling_twice_leaves_one_trial_even_across_a_restart(storage, make_measurement):
    candidate = study(storage).ask()[0]
    for _ in range(2):
        cell = study(storage)
        cell.tell(make_measurement(candidate=candidate, speedup=1.2))
        cell.tell(make_measurement(candidate=candidate, speedup=1.2))
        assert candidate not in cell.ask()
    assert len(stored(storage)) == 1


def test_trials_left_running_or_waiting_by_a_crash_are_closed_and_measured_again(storage, make_measurement):
    cell = study(storage)
    raw = optuna.load_study(study_name="sweep/cell", storage=storage)
    raw.enqueue_trial({"draft": "ngram", "gamma": 4})
    raw.ask(cell.space.distributions)
    raw.enqueue_trial({"draft": "ngram", "gamma": 2})
    again = study(storage, candidates_per_round=5)
    assert {trial.state for trial in stored(storage)} == {TrialState.FAIL}
    run_out(again, make_measurement, lambda c: 1.0)
    assert sum(trial.state == TrialState.COMPLETE for trial in stored(storage)) == 5


def test_the_order_of_drafts_changes_nothing_on_resume(storage, make_measurement):
    candidate = study(storage, (NGRAM, EXIT)).ask()[0]
    study(storage, (NGRAM, EXIT)).tell(make_measurement(candidate=candidate, speedup=1.2))
    resumed = study(storage, (EXIT, NGRAM))
    resumed.tell(make_measurement(candidate=candidate, speedup=1.2))
    assert candidate not in resumed.ask()
    assert len(stored(storage)) == 1


def test_a_study_stored_to_minimize_is_refused_by_name(storage):
    optuna.create_study(study_name="sweep/cell", storage=storage, direction="minimize")
    with pytest.raises(InputError, match="sweep/cell"):
        study(storage)


def test_a_file_that_is_no_database_is_one_clear_line(tmp_path):
    path = tmp_path / "optuna.db"
    path.write_text("not a database " * 100)
    with pytest.raises(InputError, match=r"optuna\.db") as error:
        open_storage(path)
    assert "\n" not in str(error.value)


def test_two_drivers_that_start_at_once_make_one_database(tmp_path):
    context = multiprocessing.get_context("spawn")
    drivers = [context.Process(target=open_storage, args=(tmp_path / "optuna.db",)) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(60)
    assert [driver.exitcode for driver in drivers] == [0, 0, 0]


def test_tpe_finds_the_best_of_many_candidates_without_trying_all():
    wide = CandidateSpace(
        [DraftChoice(draft=Ngram(name=name), gammas=tuple(range(1, 17))) for name in ("a", "b", "c", "d")]
    )
    tpe = Tpe(wide, seed=1)

    def truth(candidate: Candidate) -> float:
        return 2.0 - abs(candidate.gamma - 6) / 10 - (0.5 if candidate.draft.name != "c" else 0.0)

    scores: dict[Candidate, float] = {}
    while len(scores) < 32:
        left = [c for c in wide.candidates if c not in scores]
        for candidate in tpe.propose(left, scores, 4):
            scores[candidate] = truth(candidate)
    assert max(scores.values()) >= 1.9


def test_a_trial_carries_how_far_it_lies_beyond_each_limit_that_is_set(storage, make_measurement):
    cell = study(storage, constraints=Constraints(tpot_ms_p99=50.0, gap_ms_p99=80.0, speedup_e2e=1.2))
    figures = {"tpot_ms_p99": 60.0, "gap_ms_p99": 60.0, "ttft_ms_p99": 9e9, "speedup_e2e": 1.5}
    first, second = cell.ask()[:2]
    cell.tell(make_measurement(candidate=first, speedup=1.5, **figures))
    cell.tell(make_measurement(candidate=second, speedup=1.1, tpot_ms_p99=40.0, speedup_e2e=math.nan))
    kept = {trial.value: trial.constraints for trial in stored(storage)}
    assert kept[1.5] == pytest.approx({"tpot_ms_p99": 0.2, "gap_ms_p99": -0.25, "speedup_e2e": -0.25})
    assert kept[1.1] == pytest.approx({"tpot_ms_p99": -0.2}), "what is undefined is held to no limit"
    assert optuna.load_study(study_name="sweep/cell", storage=storage).best_value == 1.1


def test_without_limits_a_trial_carries_none(storage, make_measurement):
    cell = study(storage)
    cell.tell(make_measurement(candidate=cell.ask()[0], tpot_ms_p99=60.0))
    assert [trial.constraints for trial in stored(storage)] == [{}]


def test_a_study_stored_under_other_limits_is_made_anew(storage, make_measurement):
    measurement = make_measurement(candidate=study(storage).ask()[0], speedup=1.2, tpot_ms_p99=60.0)
    for limit, excess in ((None, None), (50.0, 0.2), (50.0, 0.2), (30.0, 1.0), (None, None)):
        study(storage, constraints=Constraints(tpot_ms_p99=limit)).tell(measurement)
        (trial,) = stored(storage)
        assert trial.constraints.get("tpot_ms_p99") == (None if excess is None else pytest.approx(excess))


def test_tpe_turns_away_from_what_breaks_a_limit():
    wide = CandidateSpace([DraftChoice(draft=Ngram(name=name), gammas=tuple(range(1, 17))) for name in ("a", "b", "c")])

    def asked(limited: bool) -> list[Candidate]:
        tpe, scores, excesses = Tpe(wide, seed=1), {}, {}
        while len(scores) < 24:
            left = [c for c in wide.candidates if c not in scores]
            for candidate in tpe.propose(left, scores, 4, excesses):
                fast = candidate.draft.name == "c"
                scores[candidate] = 1.5 - candidate.gamma / 100 + fast
                excesses[candidate] = {"tpot_ms_p99": 0.5 if fast and limited else -0.1}
        return list(scores)

    def fast(candidates: list[Candidate]) -> int:
        return sum(c.draft.name == "c" for c in candidates)

    assert fast(asked(limited=True)) < fast(asked(limited=False)) / 2


@pytest.mark.parametrize("strategy", ["grid", "tpe", "guided"])
def test_whatever_the_strategy_it_learns_what_broke_a_limit(storage, make_measurement, strategy):
    cell = study(storage, constraints=Constraints(tpot_ms_p99=50.0), strategy=strategy, candidates_per_round=1)
    if strategy == "guided":
        cell.expect(())
    told = []
    propose = cell._strategy.propose
    cell._strategy.propose = lambda *given: told.append(given[3]) or propose(*given)
    (first,) = cell.ask()
    cell.tell(make_measurement(candidate=first, tpot_ms_p99=60.0))
    cell.ask()
    assert told[-1] == {first: {"tpot_ms_p99": pytest.approx(0.2)}}


@settings(max_examples=30, deadline=None)
@given(
    gammas=st.lists(st.integers(1, 12), min_size=1, max_size=6, unique=True),
    count=st.integers(1, 7),
    measured=st.integers(0, 6),
    seed=st.integers(0, 1000),
)
def test_proposals_are_open_distinct_and_as_many_as_can_be(gammas, count, measured, seed):
    space = CandidateSpace([DraftChoice(draft=Ngram(name="n"), gammas=tuple(gammas))])
    scores = {c: 1.0 + c.gamma / 100 for c in space.candidates[:measured]}
    left = [c for c in space.candidates if c not in scores]
    proposed = Tpe(space, seed).propose(left, scores, count)
    assert len(proposed) == len(set(proposed)) == min(count, len(left))
    assert set(proposed) <= set(left)
