"""A plan counts what a sweep would measure, and says which key it lacks."""

from __future__ import annotations

import io
from functools import cache

import pytest
from rich.console import Console

from pipeline.config import load_settings
from pipeline.planning.plan import device_of, make_plan
from pipeline.records.failure import InputError
from pipeline.records.plan import Plan
from pipeline.report.plan import budget_overrides, print_plan, shown

QWEN = ["target=[qwen3_8b]", "cluster=gpu", "cluster.accelerator_type=H100", "concurrency=[1,8,32]"]


@cache
def plan(*overrides: str) -> Plan:
    return make_plan(load_settings(overrides))


def kinds(made: Plan) -> list[tuple[str, int]]:
    return [(each.kind, len(each.candidates)) for each in made.cells[0].rounds]


def test_every_cell_is_planned_with_every_candidate():
    made = plan(*QWEN, "sampling=[greedy,t1]")
    assert [cell.cell.label for cell in made.cells[:4]] == [
        "qwen3_8b · code_edit · greedy · C1",
        "qwen3_8b · code_edit · greedy · C8",
        "qwen3_8b · code_edit · greedy · C32",
        "qwen3_8b · code_edit · t1 · C1",
    ]
    assert len(made.cells) == 12
    assert {len(cell.candidates) for cell in made.cells} == {27}
    assert {cell.prompts for cell in made.cells} == {48}
    greedy, sampled = made.cells[0], made.cells[3]
    assert sampled.rounds[1].requests == 3 * greedy.rounds[1].requests  # three seeds a prompt
    assert sampled.seconds > 2 * greedy.seconds


def test_rounds_are_those_of_the_strategy():
    looks = [("confirmation_look", 1)] * 3
    assert kinds(plan(*QWEN)) == [("forecast", 27), ("search", 4), ("search", 4), *looks]
    grid = kinds(plan(*QWEN, "search.strategy=grid", "protocol.a_a=true"))
    assert grid == [*[("search", 4)] * 6, ("search", 3), ("aa", 1), *looks]
    tpe = plan(*QWEN, "search.strategy=tpe", "search.max_candidates=6")
    assert kinds(tpe) == [("search", 4), ("search", 2), *looks]
    assert tpe.cells[0].measurements == 9
    limited = kinds(plan(*QWEN, "constraints.tpot_ms_p99=20"))
    assert limited == [("forecast", 27), ("search", 4), ("search", 4), *looks * 3], "a confirmed candidate may break it"
    assert plan(*QWEN, "search.strategy=grid").cells[0].seconds > 1.5 * plan(*QWEN).cells[0].seconds


def test_prompts_are_as_long_as_their_workload_makes_them():
    short, long = plan("workload=[chat]", "workloads.chat.context_tokens=[0,800]", "concurrency=[4]").cells
    assert (short.cell.workload, long.cell.workload) == ("chat", "chat_ctx800")
    assert short.prompt_tokens < long.prompt_tokens == 800
    assert short.tau0_ms < long.tau0_ms
    assert 2 * short.seconds < long.seconds


def test_more_workers_take_less_time_and_more_loading():
    one, many = plan(*QWEN), plan(*QWEN, "cluster.workers=3")
    assert many.load_s == pytest.approx(3 * one.load_s)
    assert many.wall_s < one.wall_s == one.worker_s
    assert many.wall_s >= max(cell.seconds for cell in many.cells)
    assert plan(*QWEN, "cluster.workers=50").load_s == pytest.approx(6 * one.load_s)  # six cells to load for


def test_budgets_are_the_estimate_and_its_allowance_rounded_up():
    made = plan(*QWEN, "plan.allowance=3")
    assert made.worker_hours * 3600 == pytest.approx(3 * made.worker_s, abs=36)
    assert made.worker_hours * 3600 >= 3 * made.worker_s
    assert made.cell_s >= 3 * max(cell.seconds for cell in made.cells)
    settings = load_settings(budget_overrides(made).split())
    assert (settings.budget.worker_hours, settings.budget.cell_s) == (made.worker_hours, made.cell_s)


@pytest.mark.parametrize(
    ("overrides", "device"),
    [
        ([], "cpu"),
        (["plan.device=l4"], "l4"),
        (["cluster=gpu", "cluster.accelerator_type=A100-80G"], "a100"),
        (["cluster=gpu", "cluster.accelerator_type=V100", "plan.device=h200"], "h200"),
    ],
)
def test_the_device_is_the_one_named_or_the_clusters(overrides, device):
    assert device_of(load_settings(overrides)).name == device


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster=gpu"], "plan.device: must be set to one of h100"),
        (["cluster=gpu", "cluster.accelerator_type=V100"], "V100"),
        (["targets.smollm2.shape=null"], "targets.smollm2.shape: must be set"),
        (["target=[qwen3_8b]", "targets.qwen3_8b.drafts.qwen3_0_6b.shape=null"], "drafts.qwen3_0_6b.shape: must be"),
    ],
)
def test_what_a_plan_lacks_is_named(overrides, said):
    with pytest.raises(InputError, match=said) as caught:
        plan(*overrides)
    assert "\n" not in str(caught.value)


def test_what_cannot_fit_is_a_warning():
    assert plan("target=[qwen3_30b_a3b]", "plan.device=h200").warnings == ()
    (line,) = plan("target=[qwen3_30b_a3b]", "plan.device=l4").warnings
    assert "qwen3_30b_a3b" in line
    assert "24" in line


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_plan_says_that_it_assumes_and_ends_with_the_budgets(width):
    made = plan("target=[qwen3_30b_a3b]", "plan.device=l4")
    stream = io.StringIO()
    print_plan(made, Console(file=stream, width=width, force_terminal=True, no_color=True, legacy_windows=False))
    text = stream.getvalue()
    assert "Assumed, not measured" in text
    assert "warning: qwen3_30b_a3b" in text
    assert budget_overrides(made) in text
    assert f"{sum(len(cell.candidates) for cell in made.cells)} candidates" in text


def test_the_best_of_each_draft_is_shown_or_every_candidate():
    cell = plan(*QWEN).cells[0]
    best = shown(cell, every_candidate=False)
    assert [each.candidate.draft.name for each in best] == ["eagle3", "qwen3_0_6b", "ngram", "qwen3_1_7b"]
    assert best[0] == cell.best
    everyone = shown(cell, every_candidate=True)
    assert len(everyone) == 27
    assert [each.speedup for each in everyone] == sorted((each.speedup for each in everyone), reverse=True)


def test_an_assumed_acceptance_that_is_lower_promises_less():
    named = {c.candidate.draft.name: c for c in shown(plan(*QWEN, "plan.acceptance.eagle3=0.2").cells[0], False)}
    assert named["eagle3"].speedup < 1.2 < named["qwen3_0_6b"].speedup
    assert named["eagle3"].candidate.gamma == 1
