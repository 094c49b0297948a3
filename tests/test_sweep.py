"""The main job on the simulated machine: decisions, budgets, and what every arm has in common."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import optuna
import pyarrow.parquet as pq
import pytest
from sweeping import GOOD, Recorder, drop, folder, run, settings, statuses

from pipeline.records.cell import Sampling
from pipeline.records.settings import (
    Budget,
    ClusterSettings,
    Constraints,
    Protocol,
    SearchSettings,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_good_draft_is_found_confirmed_and_written_into_the_policy(tmp_path):
    outcome = run(settings(tmp_path))
    assert statuses(outcome) == ["on", "on"]
    assert all(decision.draft == GOOD for decision in outcome.decisions)
    policy = json.loads(outcome.policy.read_text())
    assert [entry["cell"]["concurrency"] for entry in policy["decisions"]] == [1, 4]
    confirmed = json.loads(
        (folder(outcome) / "measurements" / f"{policy['decisions'][0]['measurement']}.json").read_text()
    )
    assert confirmed["kind"] == "confirmation"
    rows = pq.read_table(folder(outcome) / "measurements.parquet").to_pylist()
    assert Counter(row["kind"] for row in rows)["search"] == 6
    assert pq.read_table(folder(outcome) / "requests.parquet").num_rows > 0
    assert pq.read_table(folder(outcome) / "iterations.parquet").num_rows > 0
    page = (folder(outcome) / "why.html").read_text(encoding="utf-8")
    for decision in outcome.decisions:
        assert decision.why.startswith("at α 0.")
        assert decision.why in page
    trials = [
        trial
        for name in optuna.get_all_study_names(f"sqlite:///{tmp_path}/runs/optuna.db")
        for trial in optuna.load_study(study_name=name, storage=f"sqlite:///{tmp_path}/runs/optuna.db").trials
    ]
    assert [trial.state for trial in trials] == [optuna.trial.TrialState.COMPLETE] * 6


def test_a_draft_that_does_not_pay_is_off(tmp_path):
    wanted = settings(tmp_path, concurrency=(1,))
    bad_only = replace(wanted.targets[0], drafts=wanted.targets[0].drafts[:1])
    outcome = run(replace(wanted, targets=(bad_only,)))
    assert statuses(outcome) == ["off"]
    assert not outcome.decisions[0].speculate


def test_the_confirmation_uses_prompts_that_the_search_has_not_seen(tmp_path):
    outcome = run(settings(tmp_path))
    seen: dict[tuple[int, str], set[str]] = {}
    for path in (folder(outcome) / "measurements").glob("*.json"):
        record = json.loads(path.read_text())
        if "unit_sums" in record and record["kind"] != "confirmation":
            key = (record["cell"]["concurrency"], record["kind"])
            seen.setdefault(key, set()).update(unit["prompt_id"] for unit in record["unit_sums"])
    for concurrency in (1, 4):
        assert not seen[concurrency, "search"] & seen[concurrency, "confirmation_look"]


def test_a_cells_budget_ends_it_undecided_and_cleanly(tmp_path):
    outcome = run(settings(tmp_path, "sleep_s=.05", budget=Budget(cell_s=0.5)))
    assert statuses(outcome) == ["undecided", "undecided"]
    assert all("budget" in decision.reason for decision in outcome.decisions)
    more = run(settings(tmp_path, "sleep_s=.05"))
    assert statuses(more) == ["on", "on"]


def test_worker_hours_end_the_sweep_cleanly(tmp_path):
    outcome = run(settings(tmp_path, "sleep_s=.05", budget=Budget(worker_hours=1 / 3600)))
    assert set(statuses(outcome)) <= {"undecided", "on"}
    assert "undecided" in statuses(outcome)


def test_two_workers_share_the_cells(tmp_path):
    outcome = run(settings(tmp_path, cluster=ClusterSettings(workers=2, cpus_per_worker=1)))
    assert statuses(outcome) == ["on", "on"]


def test_a_cell_in_which_all_break_a_limit_is_off_on_evidence_that_is_stored(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,), constraints=Constraints(gap_ms_p95=5.0)))
    drop(first, "confirmation")
    recorder = Recorder()
    held = run(settings(tmp_path, concurrency=(1,), constraints=Constraints(gap_ms_p95=5.0)), recorder)
    assert recorder.measured_labels == []
    assert held.decisions == first.decisions
    (decision,) = held.decisions
    assert (decision.status, decision.draft, decision.gamma) == ("off", GOOD, 4)
    assert " is above 5 (plain decoding: " in decision.reason
    evidence = json.loads((folder(held) / "measurements" / f"{decision.measurement}.json").read_text())
    assert evidence["metrics"]["speedup"] == decision.speedup


def test_tpe_is_a_strategy_too(tmp_path):
    outcome = run(settings(tmp_path, concurrency=(1,), search=SearchSettings(strategy="tpe", candidates_per_round=2)))
    assert statuses(outcome) == ["on"]


def test_a_a_is_measured_when_asked_and_covers_one(tmp_path):
    outcome = run(settings(tmp_path, concurrency=(1,), protocol=Protocol(a_a=True)))
    records = [json.loads(path.read_text()) for path in (folder(outcome) / "measurements").glob("*.json")]
    (a_a,) = [record for record in records if record["kind"] == "aa"]
    assert a_a["metrics"]["speedup_low"] <= 1 <= a_a["metrics"]["speedup_high"]


def test_sampled_cells_use_the_same_seeds_in_every_arm(tmp_path):
    outcome = run(settings(tmp_path, concurrency=(1,), samplings=(Sampling(name="t1", temperature=1.0),)))
    table = pq.read_table(folder(outcome) / "requests.parquet").to_pylist()
    by_request: dict[str, set[int]] = {}
    for row in table:
        by_request.setdefault(row["request_id"], set()).add(row["seed"])
    assert all(len(seeds) == 1 for seeds in by_request.values())
