"""The door: exit codes, one-line errors, and signals that leave a resumable sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.sweep import main

ROOT = Path(__file__).parents[2]
TARGET = """# @package targets.sim
defaults:
  - base/target@_here_
  - /draft@drafts.ngram: ngram
  - _self_
source: simulated:?alpha.ngram=.9&sleep_s=.05
dtype: float32
drafts:
  ngram:
    gammas: [2, 4]
"""


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    """A team's own folder with a simulated target, by ``hydra.searchpath``."""
    (tmp_path / "conf" / "target").mkdir(parents=True)
    (tmp_path / "conf" / "target" / "sim.yaml").write_text(TARGET)
    return [
        f"hydra.searchpath=[{tmp_path}/conf]",
        "target=[sim]",
        "workload=[chat]",
        "engine=simulated",
        "concurrency=[1]",
        f"output_dir={tmp_path}/runs",
    ]


def start(overrides: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *overrides],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("concurency=[1]", "concurency"),
        ("target=[nobody]", "nobody"),
        ("workload=[spec_bench]", "spec_bench"),
        ("targets.smollm2.source=/no/such/folder", "/no/such/folder"),
        ("targets.smollm2.drafts.ngram.gammas=[0]", "gammas"),
        ("output_dir=/proc/nowhere", "/proc/nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(wrong, named, capsys, tmp_path):
    code = main([f"output_dir={tmp_path}/runs", "tracking=none", wrong])
    said = capsys.readouterr().err
    assert code == 2
    assert named in said
    assert said.count("\n") == 1


def test_a_job_does_not_write_into_rays_throw_away_copy(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.chdir(tmp_path)
    assert main(["output_dir=runs"]) == 2
    assert "outlives the job" in capsys.readouterr().err


def test_help_names_the_usage(capsys):
    assert main(["--help"]) == 0
    assert "python -m jobs.sweep" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_on_a_teams_own_target_runs_from_the_command_line(overrides, tmp_path):
    process = start(overrides)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "mlflow ui" in out
    (policy,) = (tmp_path / "runs").glob("*/policy.json")
    assert json.loads(policy.read_text())["decisions"][0]["status"] == "on"


def candidates_measured(output: Path) -> bool:
    """Whether more lies there than the baseline and the forecast that a search begins with."""
    kinds = {json.loads(path.read_text())["kind"] for path in output.glob("*/measurements/*.json")}
    return not kinds <= {"baseline", "forecast"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_within_seconds_leaves_a_sweep_that_resumes(overrides, tmp_path, number):
    overrides = [*overrides, "search.strategy=grid"]  # which has more to do after its first measurements
    process = start(overrides)
    measurements = tmp_path / "runs"
    give_up = time.monotonic() + 120
    while not candidates_measured(measurements):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    kept = set(measurements.glob("*/measurements/*.json"))
    again = start(overrides)
    out, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    assert kept <= set(measurements.glob("*/measurements/*.json"))
    assert "0 kept" not in out


@pytest.mark.slow
def test_a_kill_that_nothing_can_catch_loses_nothing_measured_either(overrides, tmp_path):
    process = start(overrides)
    measurements = tmp_path / "runs"
    give_up = time.monotonic() + 120
    while not list(measurements.glob("*/measurements/*.json")):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=60)
    kept = set(measurements.glob("*/measurements/*.json"))
    again = start(overrides)
    _out, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    assert kept <= set(measurements.glob("*/measurements/*.json"))
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{measurements / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert all(run.info.status == "FINISHED" for run in client.search_runs(experiments))
