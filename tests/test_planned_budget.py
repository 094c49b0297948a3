"""The budgets that a plan names hold a sweep to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.cluster.fleet import Fleet
from pipeline.config import load_settings
from pipeline.interrupt import Interrupt
from pipeline.planning.plan import make_plan
from pipeline.records.settings import SweepSettings
from pipeline.report.plain import PlainProgress
from pipeline.report.plan import budget_overrides
from pipeline.sweep import run_sweep

pytestmark = pytest.mark.usefixtures("ray_cluster")

SIMULATED = [
    "workload=[chat]",
    "concurrency=[1,4]",
    "output_tokens=16",
    "engine=simulated",
    "tracking=none",
    "search.strategy=grid",
    "cluster.cpus_per_worker=1",
]


def settings(tmp_path: Path, *overrides: str) -> SweepSettings:
    return load_settings([*SIMULATED, f"output_dir={tmp_path}", *overrides])


def enforced(tmp_path: Path, *overrides: str) -> SweepSettings:
    """Settings with the budgets that a plan of them names."""
    plan = make_plan(settings(tmp_path, *overrides))
    return settings(tmp_path, *overrides, *budget_overrides(plan).split())


@pytest.fixture
def walls(monkeypatch) -> list[float]:
    """Seconds of worker time of each call, as the sweep is told of them."""
    seen: list[float] = []
    wait = Fleet.wait

    def watched(fleet, timeout_s):
        outcomes = list(wait(fleet, timeout_s))
        seen.extend(outcome.wall_s for outcome in outcomes)
        return outcomes

    monkeypatch.setattr(Fleet, "wait", watched)
    return seen


def run(wanted: SweepSettings):
    return run_sweep(wanted, PlainProgress(Console(quiet=True)), Interrupt())


def test_a_sweep_that_takes_what_was_planned_decides_within_its_budgets(tmp_path, walls):
    wanted = enforced(tmp_path, "targets.smollm2.source='simulated:?alpha=.9'")
    decisions = run(wanted).decisions
    assert len(decisions) == 2
    assert not any("budget" in decision.reason for decision in decisions)
    assert 0 < sum(walls) < wanted.budget.worker_hours * 3600


@pytest.mark.slow
def test_a_sweep_that_takes_longer_ends_out_of_budget_one_call_late_at_most(tmp_path, walls):
    slow = "targets.smollm2.source='simulated:?alpha=.9&sleep_s=0.5'"
    wanted = enforced(tmp_path, slow, "plan.start_s=0", "plan.device=h100", "plan.allowance=1")
    assert wanted.budget.cell_s <= 4  # and a forecast alone takes ten runs of half a second
    decisions = run(replace(wanted, concurrency=(1,))).decisions
    assert [decision.status for decision in decisions] == ["undecided"]
    assert "budget" in decisions[0].reason
    assert sum(walls[:-1]) < wanted.budget.cell_s
