"""The course of one cell on the simulated machine: what a wrong forecast costs it, and what failures do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import optuna
import pytest

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.benchmarks.search.whole import Shelf
from pipeline.course import CONFIRMATION_LEVEL, SECOND_LEVEL, Course
from pipeline.engines.machine import Machine
from pipeline.measurement.protocol import LOOKS
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.decision import Decision
from pipeline.records.forecast import CellForecast
from pipeline.records.settings import DraftChoice, SearchSettings, SweepSettings, TargetChoice
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

    def __init__(self, cell: SimulatedCell, forecasts: Mapping[str, float], shelf: Shelf | None = None) -> None:
        self.cell, self.forecasts = cell, forecasts
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
        )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = CellStudy("cell", choices, sweep.search, optuna.storages.InMemoryStorage())
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
    assert levels == {X: CONFIRMATION_LEVEL, Y: SECOND_LEVEL}
    assert pytest.approx(0.05) == (1 - CONFIRMATION_LEVEL + 1 - SECOND_LEVEL) * LOOKS


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


def test_a_candidate_that_fails_in_its_confirmation_holds_nobody_back() -> None:
    class Failing(Driver):
        def measure(self, task: RoundTask) -> RoundResult:
            if task.kind == "confirmation_look" and task.candidates[0].draft == X and task.replicate % LOOKS == 1:
                self.engine._machine = replace(self.engine._machine, fail={"x": "wrong_text"})
            return super().measure(task)

    slower = {"alpha__x": 0.6, "draft_ms__x": 2.0, "alpha__y": 0.6, "draft_ms__y": 1.0}
    driver = Failing(cell_of(**slower), {"x": 3.0})
    decision = driver.run()
    assert decision.draft == Y
    assert decision.status in ("on", "undecided", "off")
