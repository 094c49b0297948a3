"""A store that is away, locked, lost or wrong costs a line and never a sweep."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from mlflow.tracking import MlflowClient
from mlflow_runs import CELL, closed_port, confirmed, counts, runs

from pipeline.records.failure import InputError
from pipeline.tracking.mlflow_connection import tracking_uri

pytestmark = pytest.mark.usefixtures("output_dir")


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
