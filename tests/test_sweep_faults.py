"""The main job under faults: each costs what it touches and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sweeping import GOOD, Recorder, folder, run, settings, statuses

import pipeline.confirming
import pipeline.sweep
from pipeline.records.failure import InputError
from pipeline.records.settings import (
    ClusterSettings,
    EngineSettings,
    TrackingSettings,
)
from pipeline.records.target import Target

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_candidate_that_does_not_fit_in_memory_is_infeasible_with_the_reason_and_not_tried_again(tmp_path):
    recorder = Recorder()
    outcome = run(settings(tmp_path, "fail.bad=out_of_memory", concurrency=(1,)), recorder)
    assert statuses(outcome) == ["on"]
    assert [w for w in recorder.warnings if "bad γ2" in w and "out of memory" in w]
    again = Recorder()
    assert run(settings(tmp_path, "fail.bad=out_of_memory", concurrency=(1,)), again).measured == 0
    assert again.warnings == []


@pytest.mark.parametrize("fault", ["crash", "error", pytest.param("hang", marks=pytest.mark.slow), "wrong_text"])
def test_a_draft_that_breaks_its_worker_spoils_no_other(tmp_path, fault):
    cluster = ClusterSettings(cpus_per_worker=1, retries=1, call_timeout_s=4.0 if fault == "hang" else 60.0)
    outcome = run(settings(tmp_path, f"fail.bad={fault}", concurrency=(1,), cluster=cluster))
    assert statuses(outcome) == ["on"]
    assert outcome.decisions[0].draft == GOOD


def test_a_cell_whose_target_fails_is_failed_and_the_others_are_decided(tmp_path):
    wanted = settings(tmp_path, concurrency=(1,))
    broken = replace(
        wanted.targets[0],
        target=Target(name="broken", source="simulated:?fail.target=error"),
        drafts=wanted.targets[0].drafts,
    )
    outcome = run(replace(wanted, targets=(broken, wanted.targets[0])))
    assert statuses(outcome) == ["failed", "on"]
    assert "broken" in outcome.decisions[0].reason


def test_with_reuse_a_target_out_of_memory_fails_its_cell_and_condemns_no_candidate(tmp_path):
    outcome = run(settings(tmp_path, "fail.target=out_of_memory", concurrency=(1,), reuse=True))
    assert statuses(outcome) == ["failed"]
    assert not list((folder(outcome) / "failures").glob("*.json"))


def test_an_error_of_our_own_in_one_cell_ends_that_cell_alone(tmp_path, monkeypatch):
    plain = pipeline.confirming.pool

    def broken(looks, baselines, level):
        if looks[0].cell.concurrency == 1:
            raise RuntimeError("a bug of ours")
        return plain(looks, baselines, level)

    monkeypatch.setattr(pipeline.confirming, "pool", broken)
    outcome = run(settings(tmp_path))
    assert statuses(outcome) == ["failed", "on"]
    assert "a bug of ours" in outcome.decisions[0].reason


def test_an_error_on_the_way_leaves_no_mlflow_run_open_and_what_was_measured_in_the_views(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    def full(self, result):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline.sweep._Run, "_save", full)
    with pytest.raises(OSError, match="No space"):
        run(settings(tmp_path, concurrency=(1,), tracking=TrackingSettings()))
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert {run.info.status for run in client.search_runs(experiments)} <= {"FAILED", "FINISHED", "KILLED"}
    (policy,) = (tmp_path / "runs").glob("*/policy.json")
    assert json.loads(policy.read_text())["decisions"] == []


def test_two_drivers_cannot_write_one_sweep(tmp_path):
    wanted, recorder = settings(tmp_path, concurrency=(1,)), Recorder()
    errors: list[str] = []

    def second_driver():
        if not errors:
            with pytest.raises(InputError) as error:
                run(wanted)
            errors.append(str(error.value))

    recorder.on_measured = second_driver
    run(wanted, recorder)
    assert errors


def test_a_missing_model_is_refused_before_anything_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline.sweep, "Fleet", None)
    wanted = settings(tmp_path, engine=EngineSettings(name="decoding"))
    missing = replace(wanted.targets[0], target=Target(name="t", source=str(tmp_path / "nowhere")))
    with pytest.raises(InputError, match="nowhere"):
        run(replace(wanted, targets=(missing,)))
