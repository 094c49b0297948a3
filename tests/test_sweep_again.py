"""The main job taken up again: what is measured once stays, whatever ended the sweep or was changed since."""

from __future__ import annotations

import json
from dataclasses import replace

import optuna
import pytest
from sweeping import GOOD, Recorder, drop, folder, run, settings, statuses

import pipeline.confirming
import pipeline.sweep
from pipeline.interrupt import Interrupt
from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.records.settings import (
    Constraints,
    PolicySettings,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")


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
    first = run(settings(tmp_path, concurrency=(1,), constraints=Constraints(gap_ms_p95=99.0)))
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
