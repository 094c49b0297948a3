"""The course of one cell on the simulated machine: what a wrong forecast costs it, and what failures do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import optuna
import pytest

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.benchmarks.search.whole import Shelf
from pipeline.confirming import CONFIRMATION_LEVEL, look_level
from pipeline.course import Course
from pipeline.engines.machine import Machine
from pipeline.measurement.protocol import LOOKS
from pipeline.measurement.student import t_quantile
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.decision import Decision
from pipeline.records.forecast import CellForecast
from pipeline.records.settings import NO_LIMITS, Constraints, DraftChoice, SearchSettings, SweepSettings, TargetChoice
from pipeline.records.target import Candidate, DraftModel, Ngram, Target
from pipeline.records.task import RoundResult, RoundTask
from pipeline.search.forecast import run_round
from pipeline.search.study import CellStudy

X, Y = Ngram(name="x"), DraftModel(name="y", source="simulated")


def cell_of(machine: str = "", **by_draft: float) -> SimulatedCell:
    return SimulatedCell(
        seed=1,
        machine=replace(Machine(noise=0.005), by_draft={key.replace("__", "."): v for key, v in by_draft.items()}),
        cell=Cell(
            target=Target(name="simulated", source=f"simulated:?{machine}" if machine else "simulated"),
            workload=Workload(name="chat", output_tokens=48),
            sampling=Sampling(name="greedy"),
            concurrency=1,
            accelerator="simulated",
        ),
        candidates=(Candidate(draft=X, gamma=2), Candidate(draft=Y, gamma=2)),
    )


class Driver:
    """Runs a course; ``forecasts`` overrules what is forecast of a draft, and every task is remembered."""

    def __init__(
        self,
        cell: SimulatedCell,
        forecasts: Mapping[str, float],
        shelf: Shelf | None = None,
        limits: Constraints = NO_LIMITS,
    ) -> None:
        self.cell, self.forecasts, self.limits = cell, forecasts, limits
        self.shelf = shelf or Shelf()
        self.tasks: list[RoundTask] = []
        choices = tuple(DraftChoice(draft=draft, gammas=(2,)) for draft in cell.drafts)
        choice = TargetChoice(target=cell.cell.target, drafts=choices)
        sweep = SweepSettings(
            name="course",
            output_dir="",
            targets=(choice,),
            workloads=(cell.cell.workload,),
            samplings=(cell.cell.sampling,),
            concurrency=(1,),
            search=SearchSettings(),
            constraints=limits,
        )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = CellStudy("cell", choices, sweep.search, optuna.storages.InMemoryStorage(), constraints=limits)
        allotment = cell.allotment(sweep.protocol)
        self.course = Course(cell.cell, choice, sweep, "course", study, self.shelf, allotment.end)
        self.engine, self.prepared = cell.engine(), cell.prepared(allotment.end)

    def measure(self, task: RoundTask) -> RoundResult:
        result = run_round(self.engine, task, self.prepared, lambda line: None)
        return result if result.forecast is None else replace(result, forecast=self.changed(result.forecast))

    def changed(self, forecast: CellForecast) -> CellForecast:
        told = tuple(
            replace(f, speedup=self.forecasts.get(f.candidate.draft.name, f.speedup))  # type: ignore[union-attr]
            for f in forecast.forecasts
        )
        return replace(forecast, forecasts=told)

    def step(self) -> bool:
        task = self.course.next_task()
        if task is None:
            return False
        self.tasks.append(task)
        result = self.measure(task)
        self.shelf.keep(result)
        self.course.take(task, result)
        return True

    def again(self) -> Driver:
        """Another driver, which knows what the store holds and nothing else."""
        return type(self)(self.cell, self.forecasts, self.shelf, self.limits)

    def levels(self) -> list[tuple[str, float]]:
        looks = [task for task in self.tasks if task.kind == "confirmation_look"]
        return [(task.candidates[0].draft.name, task.level) for task in looks]  # type: ignore[union-attr]

    def run(self) -> Decision:
        while self.step():
            assert len(self.tasks) < 30
        assert self.course.decision is not None
        return self.course.decision

    def rounds(self) -> list[str]:
        return [
            f"{task.kind} {'+'.join(sorted(c.draft.name for c in task.candidates if c.draft))}" for task in self.tasks
        ]


ABOUT_1_04 = {"alpha__x": 0.35, "draft_ms__x": 2.1}
SLOW = {"alpha__y": 0.2, "draft_ms__y": 2.0}
FAST = {"alpha__y": 0.9, "draft_ms__y": 0.5}


def test_a_disappointing_first_choice_is_not_forgotten_for_a_worse_second() -> None:
    driver = Driver(cell_of(**ABOUT_1_04, **SLOW), {"x": 1.6, "y": 1.3})
    decision = driver.run()
    assert decision.draft == X
    assert driver.rounds()[:2] == ["forecast x+y", "confirmation_look x"]
    assert "search x+y" in driver.rounds()
    assert not any(said == "confirmation_look y" for said in driver.rounds()), "it was ranked behind"


def test_a_better_second_choice_is_searched_and_confirmed_at_a_stricter_level() -> None:
    driver = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", Y)
    assert driver.rounds().count("search x+y") == 1
    levels = {task.candidates[0].draft: task.level for task in driver.tasks if task.kind == "confirmation_look"}
    assert levels == {X: CONFIRMATION_LEVEL, Y: look_level(1)}


def test_a_first_choice_that_is_on_still_gives_way_to_what_should_beat_it() -> None:
    good = {"alpha__x": 0.6, "draft_ms__x": 0.5}
    driver = Driver(cell_of(**good, **FAST), {"x": 3.5, "y": 2.3})
    assert driver.run().draft == Y


def test_a_first_choice_as_forecast_needs_nothing_else() -> None:
    driver = Driver(cell_of(**FAST, alpha__x=0.3), {})
    assert driver.run().draft == Y
    assert set(driver.rounds()) == {"forecast x+y", "confirmation_look y"}


@pytest.mark.parametrize("done", range(1, 8))
def test_a_course_taken_up_anywhere_ends_as_it_would_have(done: int) -> None:
    whole = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    expected = whole.run()
    first = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    while len(first.tasks) < done and first.step():
        pass
    again = Driver(first.cell, first.forecasts, first.shelf)
    decision = again.run()
    assert (decision.status, decision.draft) == (expected.status, expected.draft)
    assert len(first.tasks) + len(again.tasks) <= len(whole.tasks) + 1


class OnceBroken(Driver):
    """The first scoring of draft y fails as a busy worker might."""

    def measure(self, task: RoundTask) -> RoundResult:
        result = super().measure(task)
        if task.kind != "forecast" or result.forecast is None:
            return result
        kept = tuple(f for f in result.forecast.forecasts if f.candidate.draft == X)
        return replace(result, forecast=replace(result.forecast, forecasts=kept))


def test_a_draft_without_a_forecast_is_measured_all_the_same() -> None:
    driver = OnceBroken(cell_of(**FAST, alpha__x=0.6), {})
    assert driver.run().draft == Y
    assert any("search" in said and "y" in said for said in driver.rounds())


def test_a_timing_pass_that_does_not_fit_fails_no_cell() -> None:
    driver = Driver(cell_of(**FAST, alpha__x=0.6), {})

    def too_wide(*_: object, **__: object) -> None:
        raise MemoryError("no room for such a width")

    driver.engine.time_widths = too_wide  # type: ignore[assignment]
    assert (driver.run().status, driver.course.decision.draft) == ("on", Y)  # type: ignore[union-attr]


class FailingLook(Driver):
    """Draft x writes wrong text in look ``at`` of its confirmation, which the gate for text meets."""

    at = 1

    def measure(self, task: RoundTask) -> RoundResult:
        looked_at = task.candidates[0].draft if task.kind == "confirmation_look" else None
        fails = looked_at == X and task.replicate % LOOKS == self.at
        self.engine._machine = replace(self.engine._machine, fail={"x": "wrong_text"} if fails else {})
        return super().measure(task)


class FailingAtOnce(FailingLook):
    at = 0


UNSURE = {"alpha__x": 0.6, "draft_ms__x": 4.0, "alpha__y": 0.6, "draft_ms__y": 1.0}
"""x gains a tenth: one look cannot tell."""


def test_a_confirmation_that_failed_after_a_look_has_spent_its_share_of_the_error() -> None:
    driver = FailingLook(cell_of(**UNSURE), {"x": 3.0})
    assert driver.run().draft == Y
    assert driver.levels() == [("x", CONFIRMATION_LEVEL), ("x", CONFIRMATION_LEVEL), ("y", look_level(1))]


def test_a_confirmation_that_failed_before_any_look_has_spent_nothing() -> None:
    driver = FailingAtOnce(cell_of(**UNSURE), {"x": 3.0})
    assert driver.run().draft == Y
    assert driver.levels() == [("x", CONFIRMATION_LEVEL), ("y", CONFIRMATION_LEVEL)]


@pytest.mark.parametrize(
    ("searched", "y_costs_ms", "told"),
    [(False, 1.0, {"x": 3.0}), (False, 1.0, {"x": 3.0, "y": 1.05}), (True, 4.3, {"x": 1.3, "y": 1.28})],
)
def test_what_failed_in_its_confirmation_is_neither_tried_again_nor_forgotten_on_resume(
    searched: bool, y_costs_ms: float, told: dict[str, float]
) -> None:
    first = FailingLook(cell_of(**UNSURE | {"draft_ms__y": y_costs_ms}), told)
    while not first.course._failures:
        assert first.step()
    assert first.levels() == [("x", CONFIRMATION_LEVEL)] * 2
    assert ("search x+y" in first.rounds()) is searched
    again = first.again()
    decision = again.run()
    assert decision.draft == Y
    assert set(again.levels()) == {("y", look_level(1))}
    assert not any("x" in said for said in again.rounds())


@pytest.mark.parametrize("attempts", [1, 2, 3, 10, 40])
def test_all_attempts_together_err_in_at_most_one_cell_in_twenty(attempts: int) -> None:
    spent = [(1 - look_level(earlier)) * LOOKS for earlier in range(attempts)]
    assert sum(spent) <= 0.05
    assert spent[:2] == pytest.approx([0.04, 0.005][:attempts])
    assert spent == sorted(set(spent), reverse=True)


def test_a_level_after_however_many_attempts_is_one_that_an_interval_can_have() -> None:
    assert 0.99 < look_level(1000) < 1 - 1e-16
    t_quantile((1 + look_level(1000)) / 2, 20)


BURSTY = {"alpha__x": 0.5, "draft_ms__x": 0.1, "alpha__y": 0.95, "draft_ms__y": 2.0}
"""y is the faster, and its iterations take 14 ms, x's 10.3."""
GAPS = Constraints(gap_ms_p95=12.0)


def test_without_a_limit_the_fastest_is_on() -> None:
    driver = Driver(cell_of(**BURSTY), {})
    assert (driver.run().draft, set(driver.rounds())) == (Y, {"forecast x+y", "confirmation_look y"})


def test_where_the_fastest_breaks_a_limit_in_its_confirmation_the_next_best_is_on() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", "confirmation_look y", "search x", "confirmation_look x"]
    assert driver.levels() == [("y", CONFIRMATION_LEVEL), ("x", look_level(1))]
    assert "; y γ2 is faster at " in decision.reason
    assert decision.reason.endswith("but gap_ms_p95 14.2 is above 12")


def test_where_the_fastest_breaks_a_limit_in_the_search_it_is_never_confirmed() -> None:
    driver = Driver(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", "search x+y", "confirmation_look x"]
    assert driver.levels() == [("x", CONFIRMATION_LEVEL)]
    assert not any(task.racing for task in driver.tasks), "the one ahead may break a limit"


class Stalling(Driver):
    """Draft y is slower in its confirmation than it was in the search: still the faster, but in too long steps."""

    searched_ms, confirmed_ms = 0.8, 2.0

    def measure(self, task: RoundTask) -> RoundResult:
        cost = self.confirmed_ms if task.kind == "confirmation_look" else self.searched_ms
        self.engine._machine = replace(
            self.engine._machine, by_draft={**self.engine._machine.by_draft, "draft_ms.y": cost}
        )
        return super().measure(task)


def test_where_the_search_saw_no_harm_in_it_the_next_best_of_the_search_is_confirmed() -> None:
    driver = Stalling(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", "search x+y", "confirmation_look y", "confirmation_look x"]


class Easing(Stalling):
    """Draft y takes long steps in the search, and shorter ones in its confirmation."""

    searched_ms, confirmed_ms = 2.0, 0.8


def test_a_confirmation_knows_better_than_a_search_who_keeps_to_the_limits() -> None:
    driver = Easing(cell_of(**BURSTY), {"y": 3.5, "x": 2.8}, limits=GAPS)
    decision = driver.run()
    assert driver.rounds() == ["forecast x+y", "confirmation_look y", "search x+y"]
    assert (decision.status, decision.draft) == ("on", Y)
    searched = {m.candidate.draft: m.metrics.gap_ms_p95 for m in driver.shelf.measurements() if m.kind == "search"}
    assert searched[Y] > 12.0


def test_where_all_break_a_limit_the_cell_is_off_and_says_what_was_best() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=Constraints(gap_ms_p95=10.0))
    decision = driver.run()
    assert (decision.status, decision.speculate, decision.draft) == ("off", False, Y)
    assert driver.rounds() == ["forecast x+y", "confirmation_look y", "search x"]
    assert decision.measurement in {m.id for m in driver.course.confirmations}
    assert decision.reason.startswith("y γ2 was best at 2.")
    assert decision.reason.endswith("98.7 %) on 8 fresh prompts, but gap_ms_p95 14.2 is above 10")


def test_a_gain_below_the_least_throughput_is_off() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=Constraints(throughput_ratio=5.0))
    decision = driver.run()
    assert decision.status == "off"
    assert "throughput_ratio" in decision.reason
    assert decision.reason.endswith("is below 5")


def test_a_limit_that_nothing_breaks_changes_nothing() -> None:
    free, held = (Driver(cell_of(**BURSTY), {}, limits=limits) for limits in (NO_LIMITS, Constraints(gap_ms_p95=99.0)))
    assert free.run() == held.run()
    assert free.rounds() == held.rounds()


class Collapsing(Stalling):
    """Draft y, fast in the search, loses in its confirmation."""

    confirmed_ms = 14.0


@pytest.mark.parametrize("limits", [NO_LIMITS, GAPS])
def test_a_sure_loss_is_off_with_or_without_a_limit_that_it_breaks(limits: Constraints) -> None:
    driver = Collapsing(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=limits)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("off", Y)
    assert decision.reason.startswith("y γ2 was best at 0.")
    assert "gap_ms_p95" not in decision.reason
    assert {draft for draft, _ in driver.levels()} == {"y"}


@pytest.mark.parametrize("gap_ms", [10.0, 12.0])
@pytest.mark.parametrize("told", [{}, {"x": 2.0, "y": 2.0}], ids=["fast track", "searched"])
@pytest.mark.parametrize("kind", [Driver, Stalling])
@pytest.mark.parametrize("done", range(1, 5))
def test_a_course_under_limits_taken_up_anywhere_ends_as_it_would_have(
    kind: type[Driver], told: dict[str, float], gap_ms: float, done: int
) -> None:
    limits = Constraints(gap_ms_p95=gap_ms)
    whole = kind(cell_of(**BURSTY), told, limits=limits)
    expected = whole.run()
    first = kind(cell_of(**BURSTY), told, limits=limits)
    while len(first.tasks) < done and first.step():
        pass
    again = first.again()
    decision = again.run()
    assert (decision.status, decision.draft) == (expected.status, expected.draft)
    assert first.rounds() + again.rounds() == whole.rounds()
    assert first.levels() + again.levels() == whole.levels()


def test_limits_set_later_judge_what_was_measured_before() -> None:
    free = Driver(cell_of(**BURSTY), {})
    assert free.run().draft == Y
    held = Driver(free.cell, {}, free.shelf, GAPS)
    assert (held.run().status, held.course.decision.draft) == ("on", X)  # type: ignore[union-attr]
    assert held.rounds() == ["search x", "confirmation_look x"]
    assert held.levels() == [("x", look_level(1))]
    freed = Driver(free.cell, {}, free.shelf)
    assert freed.run().draft == Y
    assert freed.rounds() == ["search y"], "to be ranked beside x"
