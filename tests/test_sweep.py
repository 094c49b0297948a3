"""The main job on the simulated machine: decisions, resume, faults, budgets, reuse."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest

import pipeline.confirming
import pipeline.sweep
from pipeline.interrupt import Interrupt
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.settings import (
    Budget,
    ClusterSettings,
    Constraints,
    DraftChoice,
    EngineSettings,
    PolicySettings,
    Protocol,
    SearchSettings,
    SweepSettings,
    TargetChoice,
    TrackingSettings,
)
from pipeline.records.target import DraftModel, Ngram, Target
from pipeline.sweep import SweepOutcome, run_sweep

pytestmark = pytest.mark.usefixtures("ray_cluster")

GOOD, BAD = Ngram(name="good"), DraftModel(name="bad", source="simulated:")


class Recorder:
    """A Progress that remembers; ``on_measured`` lets a test act in the middle."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.measured_labels: list[str] = []
        self.on_measured = lambda: None

    def expect(self, cells): ...
    def cell_started(self, cell, worker): ...
    def note(self, worker, text): ...
    def decided(self, decision): ...
    def close(self): ...

    def measured(self, measurement):
        self.measured_labels.append(f"{measurement.kind} {measurement.candidate.label}")
        self.on_measured()

    def warn(self, text):
        self.warnings.append(text)


def settings(tmp_path: Path, machine: str = "", **changes) -> SweepSettings:
    base = SweepSettings(
        name="test",
        output_dir=str(tmp_path / "runs"),
        targets=(
            TargetChoice(
                target=Target(name="sim", source=f"simulated:?alpha.good=.9&alpha.bad=.05&draft_ms.bad=5&{machine}"),
                drafts=(DraftChoice(draft=BAD, gammas=(2,)), DraftChoice(draft=GOOD, gammas=(2, 4))),
            ),
        ),
        workloads=(Workload(name="chat", output_tokens=16),),
        samplings=(Sampling(name="greedy"),),
        concurrency=(1, 4),
        search=SearchSettings(strategy="grid"),
        engine=EngineSettings(name="simulated"),
        cluster=ClusterSettings(cpus_per_worker=1, retries=1),
        tracking=TrackingSettings(enabled=False),
    )
    return replace(base, **changes)


def run(wanted: SweepSettings, recorder: Recorder | None = None, interrupt: Interrupt | None = None) -> SweepOutcome:
    return run_sweep(wanted, recorder or Recorder(), interrupt or Interrupt())


def statuses(outcome: SweepOutcome) -> list[str]:
    return [decision.status for decision in outcome.decisions]


def folder(outcome: SweepOutcome) -> Path:
    return outcome.policy.parent


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


def test_the_same_sweep_again_measures_nothing_and_starts_no_worker(tmp_path, monkeypatch):
    first = run(settings(tmp_path))
    monkeypatch.setattr(pipeline.sweep, "Fleet", None)
    again = run(settings(tmp_path))
    assert (again.measured, again.kept) == (0, first.measured + len(first.decisions))
    assert again.decisions == first.decisions


def test_fresh_starts_anew_and_keeps_what_was_measured_aside(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    again = run(settings(tmp_path, concurrency=(1,), fresh=True))
    assert again.measured == first.measured
    assert len(list((tmp_path / "runs").glob(f"{first.sweep}*"))) == 2


@pytest.mark.parametrize("after", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 6))])
def test_an_interrupted_sweep_goes_on_where_it_stopped_and_decides_the_same(tmp_path, after):
    whole = run(settings(tmp_path / "whole"))
    interrupt, recorder = Interrupt(), Recorder()

    def stop():
        if len(recorder.measured_labels) == after:
            interrupt.signal = 15

    recorder.on_measured = stop
    stopped = run(settings(tmp_path), recorder, interrupt)
    assert stopped.interrupted
    assert len(stopped.decisions) < 2
    resumed_recorder = Recorder()
    resumed = run(settings(tmp_path), resumed_recorder)
    assert [(d.status, d.draft, d.gamma) for d in resumed.decisions] == [
        (d.status, d.draft, d.gamma) for d in whole.decisions
    ]
    assert stopped.measured + resumed.measured == whole.measured


def test_losing_any_measurement_file_costs_only_that_measurement(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    lost = next(
        path
        for path in sorted((folder(first) / "measurements").glob("*.json"))
        if json.loads(path.read_text())["kind"] == "search"
    )
    lost.write_text("{")  # a disk's fault: our own writes are atomic
    again = run(settings(tmp_path, concurrency=(1,)))
    assert again.measured == 1
    assert statuses(again) == statuses(first)


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


def test_with_reuse_adding_a_draft_measures_only_that_draft(tmp_path):
    wanted = settings(tmp_path, concurrency=(1,))
    target = wanted.targets[0]
    run(replace(wanted, targets=(replace(target, drafts=target.drafts[1:]),)))
    recorder = Recorder()
    outcome = run(replace(wanted, reuse=True), recorder)
    assert statuses(outcome) == ["on"]
    assert outcome.measured == 1
    assert "search bad γ2" in recorder.measured_labels


def test_an_edited_prompt_file_is_another_sweep(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(f"Tell me about number {n}." for n in range(30)))
    wanted = settings(tmp_path, workloads=(Workload(name="mine", format="text", path=str(path), output_tokens=16),))
    first = run(replace(wanted, concurrency=(1,)))
    path.write_text("\n\n".join(f"Describe the colour {n} to me." for n in range(30)))
    again = run(replace(wanted, concurrency=(1,)))
    assert again.sweep != first.sweep
    assert again.measured == first.measured


def test_another_margin_judges_what_was_measured_anew(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    recorder = Recorder()
    stricter = run(settings(tmp_path, concurrency=(1,), policy=PolicySettings(margin=5.0)), recorder)
    assert (statuses(first), statuses(stricter)) == (["on"], ["off"])
    assert {label.split()[0] for label in recorder.measured_labels} <= {"confirmation_look"}
    assert stricter.measured <= 2, "only the looks that the first verdict did without"


def test_limits_judge_what_was_measured_anew(tmp_path):
    """Iterations of γ4 take 12.1 ms, of γ2 11.1."""
    first = run(settings(tmp_path, concurrency=(1,)))
    recorder = Recorder()
    held = run(settings(tmp_path, concurrency=(1,), constraints=Constraints(gap_ms_p95=11.6)), recorder)
    assert held.sweep == first.sweep
    assert [(d.status, d.draft, d.gamma) for d in held.decisions] == [("on", GOOD, 2)]
    assert {label.rsplit(" ", 2)[0] for label in recorder.measured_labels} == {"confirmation_look"}
    storage = f"sqlite:///{tmp_path}/runs/optuna.db"
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    assert [trial.params["gamma"] for trial in study.trials if trial.constraints["gap_ms_p95"] <= 0] == [2]
    assert study.best_params == {"draft": "good", "gamma": 2}


def test_a_cell_in_which_all_break_a_limit_is_off_on_evidence_that_is_stored(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    drop(first, "confirmation")
    recorder = Recorder()
    held = run(settings(tmp_path, concurrency=(1,), constraints=Constraints(gap_ms_p95=5.0)), recorder)
    assert recorder.measured_labels == []
    (decision,) = held.decisions
    assert (decision.status, decision.draft, decision.gamma) == ("off", GOOD, 4)
    assert decision.reason.endswith("is above 5")
    evidence = json.loads((folder(held) / "measurements" / f"{decision.measurement}.json").read_text())
    assert evidence["metrics"]["speedup"] == decision.speedup


def drop(outcome: SweepOutcome, *kinds: str, most: int = 1000) -> int:
    """Remove stored records of those kinds, as a kill between two writes would have left them; how many."""
    paths = sorted((folder(outcome) / "measurements").glob("*.json"))
    gone = [path for path in paths if json.loads(path.read_text())["kind"] in kinds][:most]
    for path in gone:
        path.unlink()
    return len(gone)


def test_a_kill_between_the_last_look_and_the_confirmation_leaves_no_decision_without_its_evidence(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    assert drop(first, "confirmation") == 1
    again = run(settings(tmp_path, concurrency=(1,)))
    assert again.measured == 0
    (decision,) = again.decisions
    confirmed = json.loads((folder(again) / "measurements" / f"{decision.measurement}.json").read_text())
    assert confirmed["metrics"]["speedup"] == decision.speedup


def test_a_lost_baseline_costs_its_confirmation_and_never_the_sweep(tmp_path):
    first = run(settings(tmp_path, concurrency=(1,)))
    records = [json.loads(path.read_text()) for path in (folder(first) / "measurements").glob("*.json")]
    look = next(record for record in records if record["kind"] == "confirmation_look")
    (folder(first) / "measurements" / f"{look['baseline_ids'][0]}.json").unlink()
    again = run(settings(tmp_path, concurrency=(1,)))
    assert statuses(again) == ["on"]
    assert again.measured >= 1
    baselines = [json.loads(path.read_text()) for path in (folder(first) / "measurements").glob("*.json")]
    named = {name for record in baselines for name in record.get("baseline_ids", ()) if record["kind"] == "search"}
    assert named <= {record["id"] for record in baselines}


def test_a_confirmation_never_pools_looks_made_under_other_conditions(tmp_path):
    wanted, interrupt, recorder = settings(tmp_path, concurrency=(1,)), Interrupt(), Recorder()
    wanted = replace(wanted, policy=PolicySettings(margin=2.2))  # undecided at first, so that all looks are taken

    def stop():
        if recorder.measured_labels[-1].startswith("confirmation_look"):
            interrupt.signal = 15

    recorder.on_measured = stop
    stopped = run(wanted, recorder, interrupt)
    for path in (folder(stopped) / "measurements").glob("*.json"):
        record = json.loads(path.read_text())
        if record["kind"] == "confirmation_look":
            record["provenance"]["torch"] = "1.0"
            path.write_text(json.dumps(record))
    run(wanted)
    records = [json.loads(path.read_text()) for path in (folder(stopped) / "measurements").glob("*.json")]
    (pooled,) = [record for record in records if record["kind"] == "confirmation"]
    parts = [record for record in records if record["id"] in pooled["parts"]]
    assert {record["provenance"]["torch"] for record in parts} == {""}


def test_reused_baselines_and_new_ones_never_overwrite_each_other_across_a_resume(tmp_path):
    wanted = settings(tmp_path, concurrency=(1,))
    target = wanted.targets[0]
    run(replace(wanted, targets=(replace(target, drafts=target.drafts[1:]),)))
    for after in (3, 4, 5):
        interrupt, recorder = Interrupt(), Recorder()

        def stop(recorder=recorder, interrupt=interrupt, after=after):
            if len(recorder.measured_labels) >= after:
                interrupt.signal = 15

        recorder.on_measured = stop
        run(replace(wanted, reuse=True), recorder, interrupt)
    outcome = run(replace(wanted, reuse=True))
    records = [json.loads(path.read_text()) for path in (folder(outcome) / "measurements").glob("*.json")]
    looks = [record for record in records if record["kind"] == "confirmation_look"]
    assert len({name for look in looks for name in look["baseline_ids"]}) == len(looks)
    assert statuses(outcome) == ["on"]


def test_with_reuse_a_target_out_of_memory_fails_its_cell_and_condemns_no_candidate(tmp_path):
    outcome = run(settings(tmp_path, "fail.target=out_of_memory", concurrency=(1,), reuse=True))
    assert statuses(outcome) == ["failed"]
    assert not list((folder(outcome) / "failures").glob("*.json"))


def test_fresh_does_not_pull_the_folder_from_under_a_running_driver(tmp_path):
    wanted, recorder, errors = settings(tmp_path, concurrency=(1,)), Recorder(), []

    def second_driver():
        if not errors:
            with pytest.raises(InputError, match="another process"):
                run(replace(wanted, fresh=True))
            errors.append("refused")

    recorder.on_measured = second_driver
    assert statuses(run(wanted, recorder)) == ["on"]
    assert errors


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
