"""Guided search in the main job, on the simulated machine: what is measured, what is not, and how it resumes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from sweeping import BAD, GOOD, Recorder, folder, run, settings, statuses

from pipeline.records.settings import DraftChoice, Protocol, SearchSettings, SweepSettings
from pipeline.records.target import Ngram

pytestmark = pytest.mark.usefixtures("ray_cluster")

GUIDED = SearchSettings(strategy="guided")


def guided(tmp_path: Path, machine: str = "", **changes: object) -> SweepSettings:
    return settings(tmp_path, machine, search=GUIDED, **changes)


def records(outcome, kind):
    found = [json.loads(path.read_text()) for path in (folder(outcome) / "measurements").glob("*.json")]
    return [record for record in found if record["kind"] == kind]


def test_a_clear_winner_of_the_forecast_is_confirmed_without_a_search(tmp_path):
    recorder = Recorder()
    outcome = run(guided(tmp_path), recorder)
    assert statuses(outcome) == ["on", "on"]
    assert {(d.draft, d.gamma) for d in outcome.decisions} == {(GOOD, 4)}
    assert not any(label.startswith("search") for label in recorder.measured_labels)
    assert len(records(outcome, "forecast")) == 2
    for confirmed in records(outcome, "confirmation"):
        assert confirmed["metrics"]["speedup_forecast"] == pytest.approx(confirmed["metrics"]["speedup"], rel=0.15)


def test_near_forecasts_are_ranked_by_a_search(tmp_path):
    recorder = Recorder()
    twin = Ngram(name="twin", max_n=2)
    base = guided(tmp_path, "alpha.twin=.9", concurrency=(1,))
    choice = replace(base.targets[0], drafts=(*base.targets[0].drafts, DraftChoice(draft=twin, gammas=(2, 4))))
    outcome = run(replace(base, targets=(choice,)), recorder)
    assert statuses(outcome) == ["on"]
    searched = {label for label in recorder.measured_labels if label.startswith("search")}
    assert searched == {"search good γ4", "search twin γ4"}


def test_a_cell_in_which_nothing_could_pay_is_off_without_a_measurement(tmp_path):
    recorder = Recorder()
    outcome = run(guided(tmp_path, "token_ms=10&alpha.good=.3"), recorder)
    assert statuses(outcome) == ["off", "off"]
    assert recorder.measured_labels == []
    for decision in outcome.decisions:
        assert decision.measurement is None
        assert decision.speedup_high < 1
        assert "forecast" in decision.reason


def test_the_noise_floor_is_measured_even_where_nothing_could_pay(tmp_path):
    recorder = Recorder()
    wanted = guided(tmp_path, "token_ms=10&alpha.good=.3", protocol=Protocol(a_a=True), concurrency=(1,))
    assert statuses(run(wanted, recorder)) == ["off"]
    assert recorder.measured_labels == ["aa off"]


def test_the_same_sweep_again_measures_and_forecasts_nothing(tmp_path):
    first = run(guided(tmp_path))
    again = run(guided(tmp_path))
    assert (again.measured, statuses(again)) == (0, statuses(first))
    assert again.decisions == first.decisions


def test_an_interrupted_confirmation_goes_on_without_a_search(tmp_path):
    whole = run(guided(tmp_path, concurrency=(1,)))
    for path in (folder(whole) / "measurements").glob("*.json"):
        record = json.loads(path.read_text())
        if record["kind"] == "confirmation" or (record["kind"] == "confirmation_look" and record["replicate"]):
            path.unlink()
    recorder = Recorder()
    again = run(guided(tmp_path, concurrency=(1,)), recorder)
    assert again.decisions[0].status == whole.decisions[0].status
    assert not any(label.startswith("search") for label in recorder.measured_labels)


@pytest.mark.parametrize("fault", ["out_of_memory", "error"])
def test_a_draft_that_cannot_run_leaves_the_others_their_search(tmp_path, fault):
    outcome = run(guided(tmp_path, f"fail.good={fault}&alpha.bad=.95&draft_ms.bad=.1", concurrency=(1,)))
    assert statuses(outcome) == ["on"]
    assert outcome.decisions[0].draft == BAD


def test_a_target_that_cannot_decode_fails_its_cell_and_ends(tmp_path):
    outcome = run(guided(tmp_path, "fail.off=error", concurrency=(1,)))
    assert statuses(outcome) == ["failed"]


def test_optuna_holds_what_was_measured_beside_its_forecast(tmp_path):
    run(guided(tmp_path, concurrency=(1,)))
    storage = f"sqlite:///{tmp_path}/runs/optuna.db"
    trials = [
        trial
        for name in optuna.get_all_study_names(storage)
        for trial in optuna.load_study(study_name=name, storage=storage).trials
    ]
    assert Counter(trial.state for trial in trials) == {optuna.trial.TrialState.COMPLETE: 1}
    assert trials[0].params == {"draft": "good", "gamma": 4}
    assert trials[0].user_attrs["speedup_forecast"] == pytest.approx(trials[0].value, rel=0.2)
