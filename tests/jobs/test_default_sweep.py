"""The newcomer's command on the real model: what it prints, what it leaves, and that it measures nothing twice.

On one of its two workloads, for the time that the other would take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
ONE_WORKLOAD = "workload=[code_edit]"


def sweep(*overrides: str) -> subprocess.CompletedProcess[str]:
    """``python -m jobs.sweep`` as a user runs it; what it prints is shown as it comes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *overrides],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return subprocess.CompletedProcess(process.args, process.wait(), "".join(lines))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("default") / "runs"


@pytest.fixture(scope="module")
def first(output: Path) -> subprocess.CompletedProcess[str]:
    return sweep(f"output_dir={output}", ONE_WORKLOAD)


def folder(output: Path) -> Path:
    (found,) = [path for path in output.iterdir() if (path / "measurements").is_dir()]
    return found


def test_every_cell_is_decided_and_said(first, output):
    assert first.returncode == 0
    policy = json.loads((folder(output) / "policy.json").read_text())
    cells = [(d["cell"]["workload"], d["cell"]["concurrency"]) for d in policy["decisions"]]
    assert cells == [("code_edit", 1), ("code_edit", 4)]
    for decision in policy["decisions"]:
        assert decision["status"] in ("on", "off", "undecided")
        assert decision["speculate"] == (decision["status"] == "on")
        assert decision["speedup_low"] <= decision["speedup"] <= decision["speedup_high"]
        assert decision["reason"]
    assert str(folder(output) / "policy.json") in first.stdout
    assert f"mlflow ui --backend-store-uri sqlite:///{output / 'mlflow.db'}" in first.stdout


def test_the_truth_and_its_views_agree(first, output):
    records = [json.loads(path.read_text()) for path in (folder(output) / "measurements").glob("*.json")]
    kinds = Counter(record["kind"] for record in records)
    assert kinds["forecast"] == 2
    policy = json.loads((folder(output) / "policy.json").read_text())
    confirmed = {d["measurement"] for d in policy["decisions"]} - {None}
    assert confirmed == {record["id"] for record in records if record["kind"] == "confirmation"}
    assert all(r["metrics"]["speedup_forecast"] for r in records if r["kind"] == "confirmation")
    candidates = {
        (f["candidate"]["draft"]["name"], f["candidate"]["gamma"])
        for r in records
        if r["kind"] == "forecast"
        for f in r["forecasts"]
    }
    assert candidates == {(draft, gamma) for draft in ("early_exit", "ngram") for gamma in range(1, 9)}
    table = pq.read_table(folder(output) / "measurements.parquet").to_pylist()
    assert {row["measurement"] for row in table} == {
        r["id"] for r in records if r["kind"] not in ("baseline", "forecast")
    }
    for name in ("iterations", "requests"):
        assert pq.read_table(folder(output) / f"{name}.parquet").num_rows > 100
    config = yaml.safe_load((folder(output) / "config.yaml").read_text())
    assert config["output_dir"] == str(output)


def test_mlflow_holds_every_trial_and_leaves_none_running(first, output):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "default"]
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert Counter(run.data.tags["kind"] for run in runs)["cell"] == 2
    assert all(run.info.status == "FINISHED" for run in runs)
    alone = client.search_runs(
        [experiment.experiment_id], "tags.kind = 'trial' and params.workload = 'code_edit' and metrics.concurrency = 1"
    )
    assert alone
    assert all("acceptance_rate" in run.data.metrics for run in alone)


def test_greedy_text_is_the_baselines_in_every_arm(first, output):
    """Counted near-ties aside, which the gate has bounded."""
    records = [json.loads(path.read_text()) for path in (folder(output) / "measurements").glob("*.json")]
    looks = [record for record in records if record["kind"] in ("search", "confirmation_look")]
    assert looks
    assert sum(record["metrics"]["near_ties"] for record in looks) <= len(looks)


def test_the_same_command_again_measures_nothing_and_takes_seconds(first, output):
    files = {path: path.stat().st_mtime_ns for path in (folder(output) / "measurements").glob("*.json")}
    began = time.monotonic()
    again = sweep(f"output_dir={output}", ONE_WORKLOAD)
    assert time.monotonic() - began < 60
    assert again.returncode == 0
    assert "nothing to measure" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (folder(output) / "measurements").glob("*.json")} == files
