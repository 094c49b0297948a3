"""MLflow shows what was measured once, whatever was there before."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient
from mlflow_runs import CELL, NAME, SWEEP, confirmed, counts, history, runs

from pipeline.records.failure import Failure
from pipeline.tracking.mlflow_connection import Connection
from pipeline.tracking.store import Store

pytestmark = pytest.mark.usefixtures("output_dir")


def test_the_same_command_again_adds_nothing(start, output_dir, make_measurement, lines) -> None:
    failure = Failure(cell=CELL.key, candidate=make_measurement().candidate, kind="gate", message="no")
    for _ in range(3):
        view = start()
        view.decision(confirmed(make_measurement))
        view.record(make_measurement("m1"), CELL)
        view.record(make_measurement("m2"), CELL)
        view.failure(failure)
        view.finish("FINISHED", [confirmed(make_measurement)], [])
        assert counts(output_dir) == {"cell": 1, "sweep": 1, "trial": 3}
    (trial, *_) = runs(output_dir, "tags.measurement = 'm1'")
    assert history(output_dir, trial.info.run_id, "speedup") == [(0, 1.4)]
    assert lines == []


def test_a_run_that_says_something_else_is_written_anew(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1", speedup=1.1), CELL)
    view.record(make_measurement("m1", speedup=1.3), CELL)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial'")
    assert trial.data.metrics["speedup"] == 1.3


def test_what_was_deleted_in_the_interface_is_restored_from_the_truth(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.record(make_measurement("m2"), CELL)
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    for condition in ("tags.kind = 'sweep'", "tags.kind = 'cell'", "tags.measurement = 'm2'"):
        client.delete_run(runs(output_dir, condition)[0].info.run_id)
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.record(make_measurement("m2"), CELL)
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    test_runs = {kind: runs(output_dir, f"tags.kind = '{kind}'") for kind in ("sweep", "cell", "trial")}
    assert {kind: len(found) for kind, found in test_runs.items()} == {"sweep": 1, "cell": 1, "trial": 2}
    assert {t.data.tags["mlflow.parentRunId"] for t in test_runs["trial"]} == {test_runs["cell"][0].info.run_id}
    assert test_runs["cell"][0].data.tags["mlflow.parentRunId"] == test_runs["sweep"][0].info.run_id


def test_an_experiment_deleted_in_the_interface_comes_back(start, output_dir, make_measurement, lines) -> None:
    start().finish("FINISHED", [], [])
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    client.delete_experiment(client.get_experiment_by_name(NAME).experiment_id)
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [], [])
    assert counts(output_dir)["trial"] == 1
    assert lines == []


def test_runs_left_running_by_a_crash_are_closed_and_continued(
    start, output_dir, make_measurement, monkeypatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    view = start()
    view.record(make_measurement("m1"), CELL)
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "end", killed)
        with pytest.raises(KeyboardInterrupt):
            view.record(make_measurement("m2"), CELL)
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            view.record(make_measurement("m3"), CELL)
    assert len(runs(output_dir, "attributes.status = 'RUNNING'")) == 4

    view = start()
    status = {run.data.tags.get("measurement", run.data.tags["kind"]): run.info.status for run in runs(output_dir)}
    assert status == {"m1": "FINISHED", "m2": "FINISHED", "m3": "KILLED", "cell": "KILLED", "sweep": "RUNNING"}
    for name in ("m1", "m2", "m3"):
        view.record(make_measurement(name), CELL)
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    assert counts(output_dir) == {"cell": 1, "sweep": 1, "trial": 3}
    assert {run.info.status for run in runs(output_dir)} == {"FINISHED"}
    (m3,) = runs(output_dir, "tags.measurement = 'm3'")
    assert m3.data.metrics["speedup"] == 1.4


def test_a_crashed_sweep_of_the_same_name_is_closed_but_never_one_that_runs(start, output_dir) -> None:
    start(sweep="demo-aaaaaaaaaa")
    start(sweep="demo-bbbbbbbbbb")
    (output_dir / "demo-aaaaaaaaaa").mkdir()
    with Store(output_dir / "demo-bbbbbbbbbb"):
        start().finish("FINISHED", [], [])
    status = {run.data.tags["sweep"]: run.info.status for run in runs(output_dir)}
    assert status == {"demo-aaaaaaaaaa": "KILLED", "demo-bbbbbbbbbb": "RUNNING", SWEEP: "FINISHED"}


def test_an_interrupted_sweep_leaves_nothing_running_and_goes_on(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.finish("KILLED", [], [])
    status = {run.data.tags["kind"]: run.info.status for run in runs(output_dir)}
    assert status == {"sweep": "KILLED", "cell": "KILLED", "trial": "FINISHED"}
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.record(make_measurement("m2"), CELL)
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    assert {run.info.status for run in runs(output_dir)} == {"FINISHED"}


def test_twins_of_a_call_that_was_answered_too_late_are_removed(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [], [])
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    experiment = client.get_experiment_by_name(NAME).experiment_id
    client.create_run(experiment, tags={"sweep": SWEEP, "kind": "trial", "measurement": "m1"})
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial'")
    assert trial.data.metrics["speedup"] == 1.4


def test_a_fresh_start_parts_from_the_old_runs_and_keeps_them(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1", speedup=1.1), CELL)
    view.finish("FINISHED", [], [])
    view = start(fresh=True)
    view.record(make_measurement("m1", speedup=1.2), CELL)
    view.finish("FINISHED", [], [])
    speedups = {
        run.data.tags["sweep"].partition(".")[0:2]: run.data.metrics["speedup"]
        for run in runs(output_dir, "tags.kind = 'trial'")
    }
    assert speedups == {(SWEEP, "."): 1.1, (SWEEP, ""): 1.2}
