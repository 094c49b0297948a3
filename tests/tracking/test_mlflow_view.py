"""MLflow shows what was measured: runs, parameters, metrics, decisions and a note."""

from __future__ import annotations

import math
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow_runs import CELL, NAME, SWEEP, closed_port, confirmed, history, runs

from pipeline.policy.decide import decide
from pipeline.records.cell import Sampling
from pipeline.records.failure import Failure
from pipeline.records.settings import TrackingSettings
from pipeline.records.target import Candidate, DraftModel
from pipeline.tracking.mlflow_view import MlflowView

pytestmark = pytest.mark.usefixtures("output_dir")


def test_runs_are_a_tree_by_parent_tags(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.record(make_measurement("m2"), replace(CELL))
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    (sweep,) = runs(output_dir, "tags.kind = 'sweep'")
    (cell,) = runs(output_dir, "tags.kind = 'cell'")
    trials = runs(output_dir, "tags.kind = 'trial'")
    assert cell.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert {trial.data.tags["mlflow.parentRunId"] for trial in trials} == {cell.info.run_id}
    assert {run.info.status for run in (sweep, cell, *trials)} == {"FINISHED"}
    assert sweep.info.run_name == SWEEP
    assert cell.info.run_name == "smollm2 · chat · greedy · C1"
    assert {trial.info.run_name for trial in trials} == {"ngram γ4 · smollm2 · chat · greedy · C1"}


def test_cell_and_trial_repeat_every_parameter(start, output_dir, make_measurement) -> None:
    view = start(strategy="grid")
    view.record(make_measurement("m1", candidate=Candidate(draft=DraftModel(name="s", source="o/s"), gamma=2)), CELL)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial' and params.workload = 'chat' and params.target = 'smollm2'")
    (cell,) = runs(output_dir, "tags.kind = 'cell' and params.strategy = 'grid' and params.sampling = 'greedy'")
    assert cell.data.params.items() <= trial.data.params.items()
    wanted = {"strategy": "grid", "target_revision": "abc", "workload_output_tokens": "128", "concurrency": "1"}
    assert wanted.items() <= cell.data.params.items()
    draft = {"draft": "s", "method": "draft_model", "draft_source": "o/s", "draft_revision": "none", "gamma": "2"}
    assert draft.items() <= trial.data.params.items()


def test_stops_and_penalties_are_parameters_too(start, output_dir, make_measurement) -> None:
    view = start()
    sampling = Sampling(name="rep", repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=-0.25)
    workload = replace(CELL.workload, stop=("\n\n", "é"), stop_token_ids=(7,))
    view.record(make_measurement("m1"), replace(CELL, sampling=sampling, workload=workload))
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial'")
    penalties = {"repetition_penalty": "1.1", "presence_penalty": "0.5", "frequency_penalty": "-0.25"}
    stops = {"workload_stop": '["\\n\\n", "é"]', "workload_stop_token_ids": "[7]"}
    assert (penalties | stops).items() <= trial.data.params.items()


def test_numbers_to_sort_by_and_acceptance_by_position_are_metrics(start, output_dir, make_measurement) -> None:
    view = start()
    view.record(make_measurement("m1", conditional=(0.6, None, 0.5, 0.4), acceptance_first=0.6), CELL)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial' and metrics.gamma > 3 and metrics.temperature = 0")
    assert trial.data.metrics["speedup"] == 1.4
    assert trial.data.metrics["acceptance_first"] == 0.6
    assert history(output_dir, trial.info.run_id, "acceptance_by_position") == [(1, 0.6), (2, 0.35), (3, 0.2), (4, 0.1)]
    assert history(output_dir, trial.info.run_id, "acceptance_conditional") == [(1, 0.6), (3, 0.5), (4, 0.4)]
    assert history(output_dir, trial.info.run_id, "acceptance_by_output_position") == [(0, 0.6), (8, 0.5)]
    assert history(output_dir, trial.info.run_id, "acceptance_by_context") == [(128, 0.55)]


def test_numbers_that_are_not_finite_become_tags(start, output_dir, make_measurement, lines) -> None:
    view = start()
    view.record(make_measurement("m1", c=math.nan, v=math.inf, h=-math.inf, marginal=(0.5, math.nan)), CELL)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial'")
    assert not {"c", "v", "h"} & trial.data.metrics.keys()
    assert [trial.data.tags[f"metric.{name}"] for name in ("c", "v", "h")] == ["nan", "inf", "-inf"]
    assert trial.data.tags["metric.acceptance_by_position.2"] == "nan"
    assert all(map(math.isfinite, trial.data.metrics.values()))
    assert lines == []


def test_a_long_parameter_is_cut_visibly_and_kept_whole_in_an_artifact(
    start, output_dir, make_measurement, lines
) -> None:
    template = "x" * 10_000
    view = start(long="y" * 10_000)
    view.record(make_measurement("m1"), replace(CELL, target=replace(CELL.target, chat_template=template)))
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "tags.kind = 'trial'")
    value = trial.data.params["target_chat_template"]
    assert len(value) == 6000
    assert "cut: 10000 characters, sha256" in value
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    path = client.download_artifacts(trial.info.run_id, "long/target_chat_template.txt", str(output_dir))
    assert Path(path).read_text() == template
    assert lines == []


def test_a_failures_long_details_are_no_obstacle(start, output_dir, lines) -> None:
    view = start()
    failure = Failure(
        cell=CELL.key, candidate=Candidate(draft=None, gamma=0), kind="error", message="no", details="z" * 20_000
    )
    view.failure(failure)
    view.finish("FINISHED", [], [])
    (trial,) = runs(output_dir, "attributes.status = 'FAILED'")
    assert trial.data.tags["failure"] == "error"
    assert len(trial.data.tags["failure.details"]) == 8000
    assert lines == []


def test_a_decision_completes_its_cell(start, output_dir, make_measurement) -> None:
    decision = replace(confirmed(make_measurement), why="at α 0.80 and c 0.05 the ideal is 2.80×; measured 1.40×")
    view = start()
    view.decision(decision)
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [decision], [])
    (cell,) = runs(output_dir, "tags.kind = 'cell' and tags.status = 'on' and metrics.speedup_low > 1.3")
    assert cell.data.tags["draft"] == "ngram"
    assert cell.data.tags["reason"].startswith("measured 1.40×")
    assert cell.data.tags["why"] == "at α 0.80 and c 0.05 the ideal is 2.80×; measured 1.40×"
    assert cell.data.params["target_source"] == "org/smollm2"
    (sweep,) = runs(output_dir, "tags.kind = 'sweep'")
    assert sweep.data.metrics["cells_on"] == 1
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    path = client.download_artifacts(sweep.info.run_id, "decisions.md", str(output_dir))
    assert f"C1: {decision.why}\n" in Path(path).read_text()


def test_a_changed_decision_replaces_the_old_one(start, output_dir, make_measurement) -> None:
    for low, high in ((0.9, 1.2), (1.31, 1.53)):
        view = start()
        view.finish("FINISHED", [confirmed(make_measurement, low, high)], [])
    (cell,) = runs(output_dir, "tags.kind = 'cell'")
    assert cell.data.tags["status"] == "on"
    assert cell.data.metrics["speedup_low"] == 1.31


def test_a_failed_cell_ends_failed_and_says_why(start, output_dir) -> None:
    failure = Failure(cell=CELL.key, candidate=None, kind="refused", message="prompts do not fit")
    view = start()
    view.failure(failure)
    view.finish("FINISHED", [decide(CELL.key, [], None, [failure], 0.03)], [])
    (cell,) = runs(output_dir, "tags.kind = 'cell'")
    assert cell.info.status == "FAILED"
    assert cell.data.tags["failure.message"] == "prompts do not fit"
    assert "speedup" not in cell.data.metrics


def test_the_sweep_carries_its_artifacts_and_a_note_with_filters_that_work(start, output_dir, make_measurement) -> None:
    (output_dir / "config.yaml").write_text("name: demo\n")
    view = start()
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [confirmed(make_measurement)], [output_dir / "config.yaml", output_dir / "missing"])
    (sweep,) = runs(output_dir, "tags.kind = 'sweep'")
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    assert {a.path for a in client.list_artifacts(sweep.info.run_id)} == {"config.yaml", "decisions.md"}
    assert sweep.info.artifact_uri.startswith((output_dir / "mlartifacts").as_uri())
    text = sweep.data.tags["mlflow.note.content"]
    assert "| smollm2 · chat · greedy · C1 | on | ngram | 4 |" in text
    filters = [line.split("`")[-2] for line in text.splitlines() if line.startswith("- [")]
    assert "tags.kind = 'trial' and params.workload = 'chat'" in filters
    found = {condition: len(runs(output_dir, condition)) for condition in filters}
    assert found["tags.kind = 'trial' and params.workload = 'chat'"] == 1
    assert found["tags.kind = 'cell' and tags.status = 'on'"] == 1


def test_a_note_too_long_for_mlflow_is_cut_at_a_row_and_whole_beside_it(start, output_dir, make_measurement) -> None:
    one = confirmed(make_measurement)
    many = [replace(one, cell=replace(one.cell, concurrency=i + 1)) for i in range(150)]
    view = start()
    view._do("note", lambda connection: view._end(connection, "FINISHED", many))
    (sweep,) = runs(output_dir, "tags.kind = 'sweep'")
    note = sweep.data.tags["mlflow.note.content"]
    assert len(note) <= 8000
    assert "more rows in the artifact `decisions.md`" in note
    assert "**Filters**" in note
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    path = client.download_artifacts(sweep.info.run_id, "decisions.md", str(output_dir))
    assert Path(path).read_text().count("\n") == 152


def test_nothing_is_written_into_the_working_directory_nor_said_on_the_terminal(
    tmp_path, start, make_measurement, monkeypatch, capfd
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    for uri in (None, f"http://127.0.0.1:{closed_port()}", "sqlite:///beside.db"):
        view = start(uri=uri)
        view.record(make_measurement("m1"), CELL)
        view.finish("FINISHED", [confirmed(make_measurement)], [])
    assert list(away.iterdir()) == []
    assert (tmp_path / "beside.db").exists()
    assert capfd.readouterr() == ("", "")


def test_with_tracking_switched_off_nothing_is_written(tmp_path, make_measurement) -> None:
    folder = tmp_path / "off"
    view = MlflowView.open(TrackingSettings(enabled=False), folder, SWEEP, NAME, {}, pytest.fail)
    view.record(make_measurement("m1"), CELL)
    view.failure(Failure(cell=CELL.key, candidate=None, kind="error", message="no"))
    view.decision(confirmed(make_measurement))
    view.finish("FINISHED", [], [])
    assert view.ui_command == ""
    assert not folder.exists()


def test_the_command_that_shows_the_runs_is_one_to_paste(start, output_dir) -> None:
    words = shlex.split(start().ui_command)
    assert words == [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", f"sqlite:///{output_dir}/mlflow.db"]
    assert os.access(words[0], os.X_OK)
