"""Runs the course of one cell on the simulated machine, and remembers what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import optuna

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.benchmarks.search.whole import Shelf
from pipeline.course import Course
from pipeline.engines.machine import Machine
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

    def taken_up_after(self, done: int) -> Driver:
        """Another driver, once this one has made ``done`` calls, or all there are."""
        while len(self.tasks) < done and self.step():
            pass
        return self.again()

    def run(self) -> Decision:
        while self.step():
            assert len(self.tasks) < 30
        assert self.course.decision is not None
        return self.course.decision

    def rounds(self) -> list[str]:
        return [
            f"{task.kind} {'+'.join(sorted(c.draft.name for c in task.candidates if c.draft))}" for task in self.tasks
        ]
