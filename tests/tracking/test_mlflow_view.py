"""MLflow shows what was measured, once, whatever happened in between."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from mlflow.tracking import MlflowClient

from pipeline.policy.decide import decide
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.failure import Failure, InputError
from pipeline.records.settings import TrackingSettings
from pipeline.records.target import Candidate, DraftModel, Target
from pipeline.tracking import mlflow_view
from pipeline.tracking.mlflow_connection import Connection, tracking_uri
from pipeline.tracking.mlflow_view import MlflowView
from pipeline.tracking.store import Store

SWEEP, NAME = "demo-0000000000", "demo"
CELL = Cell(
    target=Target(name="smollm2", source="org/smollm2", revision="abc", dtype="float32"),
    workload=Workload(name="chat"),
    sampling=Sampling(name="greedy"),
    concurrency=1,
    accelerator="cpu",
)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """A database with MLflow's tables, made once: that takes a second."""
    folder = tmp_path_factory.mktemp("mlflow")
    Connection(tracking_uri(None, folder), folder, "unused")
    return folder / "mlflow.db"


@pytest.fixture(autouse=True)
def output_dir(tmp_path, empty_database, monkeypatch) -> Path:
    monkeypatch.setattr(mlflow_view, "BACKOFF_S", (0.0, 0.0))
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def start(output_dir, lines) -> Callable[..., MlflowView]:
    def make(*, uri: str | None = None, sweep: str = SWEEP, fresh: bool = False, **parameters: str) -> MlflowView:
        settings = TrackingSettings(uri=uri)
        return MlflowView.open(settings, output_dir, sweep, NAME, parameters, lines.append, fresh=fresh)

    return make


def runs(output_dir: Path, condition: str = "") -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    experiment = client.get_experiment_by_name(NAME)
    return list(client.search_runs([experiment.experiment_id], filter_string=condition))


def counts(output_dir: Path) -> dict[str, int]:
    kinds = [run.data.tags["kind"] for run in runs(output_dir)]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def history(output_dir: Path, run_id: str, metric: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    return [(point.step, point.value) for point in client.get_metric_history(run_id, metric)]


def confirmed(make_measurement, low: float = 1.31, high: float = 1.53):
    return decide(CELL.key, [], make_measurement("c1", speedup_low=low, speedup_high=high), [], 0.03)


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


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_away_costs_one_line_at_the_start_and_one_at_the_end(start, make_measurement, lines) -> None:
    view = start(uri=f"http://user:secret@127.0.0.1:{closed_port()}")
    for i in range(5):
        view.record(make_measurement(f"m{i}"), CELL)
    view.decision(confirmed(make_measurement))
    assert len(lines) == 1
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    assert len(lines) == 2
    assert all("\n" not in line and "secret" not in line for line in lines)
    assert "secret" not in view.ui_command


def test_a_store_that_is_no_database_costs_one_line(start, output_dir, make_measurement, lines) -> None:
    (output_dir / "broken.db").write_bytes(b"not a database" * 100)
    view = start(uri=f"sqlite:///{output_dir}/broken.db")
    view.record(make_measurement("m1"), CELL)
    assert len(lines) == 1
    assert "not a database" in lines[0]


def test_a_store_lost_half_way_is_rebuilt_when_it_is_back_at_the_end(
    start, output_dir, make_measurement, lines, monkeypatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ConnectionError("no route to postgresql://user:secret@host/db")

    view = start()
    view.record(make_measurement("m1"), CELL)
    with monkeypatch.context() as patch:
        for name in ("create_run", "log_batch", "get_experiment", "set_tag", "update_run", "set_terminated"):
            patch.setattr(MlflowClient, name, away)
        for name in ("m2", "m3"):
            view.record(make_measurement(name), CELL)
        view.decision(confirmed(make_measurement))
    assert len(lines) == 1
    assert "no route" in lines[0]
    assert "secret" not in lines[0]
    assert counts(output_dir)["trial"] == 1
    view.finish("FINISHED", [confirmed(make_measurement)], [])
    assert counts(output_dir) == {"cell": 1, "sweep": 1, "trial": 3}
    assert {run.info.status for run in runs(output_dir)} == {"FINISHED"}
    assert len(lines) == 1


def test_a_short_outage_is_not_even_noticed(start, output_dir, make_measurement, lines, monkeypatch) -> None:
    log_batch, outages = MlflowClient.log_batch, iter([True, True, False])

    def flaky(self: MlflowClient, *arguments: object, **named: object) -> None:
        if next(outages, False):
            raise ConnectionError("away")
        log_batch(self, *arguments, **named)

    view = start()
    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [], [])
    assert counts(output_dir)["trial"] == 1
    assert lines == []


def test_one_run_that_mlflow_refuses_does_not_silence_the_others(
    start, output_dir, make_measurement, lines, monkeypatch
) -> None:
    log_batch = MlflowClient.log_batch

    def picky(self: MlflowClient, run_id: str, metrics=(), params=(), tags=(), **named: object) -> None:
        if any(tag.key == "digest" for tag in tags) and any(m.value == 6.66 for m in metrics):
            raise ValueError("I do not like it")
        log_batch(self, run_id, metrics, params, tags, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", picky)
    view = start()
    view.record(make_measurement("bad", speedup=6.66), CELL)
    view.record(make_measurement("good"), CELL)
    view.finish("FINISHED", [], [])
    good = runs(output_dir, "tags.measurement = 'good'")
    assert [run.info.status for run in good] == ["FINISHED"]
    assert "did not take ngram γ4 (I do not like it)" in lines[0]
    assert "lacks what it did not take" in lines[-1]


def test_a_locked_database_is_waited_for(start, output_dir, make_measurement, lines) -> None:
    """Somebody else writes for a moment: SQLite waits, nothing is lost."""
    view = start()
    other = sqlite3.connect(output_dir / "mlflow.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    Timer(0.5, lambda: other.execute("ROLLBACK")).start()
    view.record(make_measurement("m1"), CELL)
    view.finish("FINISHED", [], [])
    assert counts(output_dir)["trial"] == 1
    assert lines == []


@pytest.mark.slow
def test_two_sweeps_that_start_at_once_make_one_schema(tmp_path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pipeline.records.settings import TrackingSettings\n"
        "from pipeline.tracking.mlflow_view import MlflowView\n"
        "view = MlflowView.open(TrackingSettings(), Path(sys.argv[1]), sys.argv[2], 'demo', {}, print)\n"
        "view.finish('FINISHED', [], [])\n"
    )
    (tmp_path / "new").mkdir()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "new"), f"demo-{i}"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    assert [process.communicate()[0] for process in both] == ["", ""]
    assert len(runs(tmp_path / "new", "tags.kind = 'sweep'")) == 2


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


@pytest.mark.parametrize("uri", ["ftp://host", "runs/mlruns", "htp:/x", ""])
def test_a_uri_that_mlflow_cannot_have_is_a_user_error(start, uri) -> None:
    with pytest.raises(InputError, match=r"tracking\.uri: .* must begin with one of sqlite, postgresql"):
        start(uri=uri)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
        ("sqlite:///x.db", "sqlite:////out/x.db"),
        ("postgresql+psycopg2://u:p@h/db", "postgresql+psycopg2://u:p@h/db"),
        ("https://host/mlflow", "https://host/mlflow"),
        ("databricks", "databricks"),
    ],
)
def test_a_uri_is_absolute(uri, expected) -> None:
    assert tracking_uri(uri, Path("/out")) == expected
