"""One simulated cell from its first round to its decision, by the course that a sweep gives it, and no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import optuna

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.course import Course
from pipeline.engines.contract import Limits, Passage, Request, Schedule
from pipeline.engines.simulated import SimulatedEngine
from pipeline.records.cell import Sampling
from pipeline.records.decision import Decision
from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.settings import DraftChoice, SearchSettings, SweepSettings, TargetChoice
from pipeline.records.target import Draft
from pipeline.records.task import RoundResult
from pipeline.records.trace import Trace
from pipeline.search.forecast import run_round
from pipeline.search.study import CellStudy


@dataclass(frozen=True, kw_only=True)
class Run:
    """``seconds`` are the machine's own, of everything it was asked; ``searched`` counts candidates measured before
    the confirmation."""

    decision: Decision
    seconds: float
    searched: int


def decide_cell(cell: SimulatedCell, settings: SearchSettings) -> Run:
    """Forecast, search, confirm and decide, under the default protocol and policy. Raises RuntimeError if anything
    failed: nothing should on this machine."""
    drafts = tuple(
        DraftChoice(draft=draft, gammas=tuple(c.gamma for c in cell.candidates if c.draft == draft))
        for draft in cell.drafts
    )
    choice = TargetChoice(target=cell.cell.target, drafts=drafts)
    sweep = SweepSettings(
        name="benchmark",
        output_dir="",
        targets=(choice,),
        workloads=(cell.cell.workload,),
        samplings=(cell.cell.sampling,),
        concurrency=(cell.cell.concurrency,),
        search=settings,
    )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = CellStudy("cell", drafts, settings, optuna.storages.InMemoryStorage())
    shelf, engine = Shelf(), _Timed(cell)
    allotment = cell.allotment(sweep.protocol)
    course = Course(cell.cell, choice, sweep, sweep.name, study, shelf, allotment.end)
    prepared = cell.prepared(allotment.end)
    while (task := course.next_task()) is not None:
        result = run_round(engine, task, prepared, _quietly)
        if result.failures:
            raise RuntimeError(f"cell {cell.seed}: {result.failures[0].message}")
        shelf.keep(result)
        course.take(task, result)
    assert course.decision is not None
    return Run(decision=course.decision, seconds=engine.seconds, searched=shelf.searched)


@dataclass
class Shelf:
    """A sweep's truth without files."""

    _measurements: list[Measurement] = field(default_factory=list)
    _baselines: list[Baseline] = field(default_factory=list)
    _forecasts: list[CellForecast] = field(default_factory=list)
    _failures: dict[str, Failure] = field(default_factory=dict)

    def keep(self, result: RoundResult) -> None:
        self._measurements += result.measurements
        if result.baseline is not None:
            self._baselines.append(result.baseline)
        if result.forecast is not None:
            self._forecasts.append(result.forecast)

    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(self._measurements)

    def baselines(self) -> tuple[Baseline, ...]:
        return tuple(self._baselines)

    def forecasts(self) -> tuple[CellForecast, ...]:
        return tuple(self._forecasts)

    def failures(self) -> dict[str, Failure]:
        return dict(self._failures)

    def save_failure(self, failure_id: str, failure: Failure) -> None:
        self._failures[failure_id] = failure

    def has(self, record_id: str) -> bool:
        return any(m.id == record_id for m in self._measurements) or any(b.id == record_id for b in self._baselines)

    @property
    def searched(self) -> int:
        return sum(m.kind == "search" for m in self._measurements)


class _Timed(SimulatedEngine):
    """Adds up the virtual seconds of everything that it is asked, scoring a text at what reading it twice takes."""

    def __init__(self, cell: SimulatedCell) -> None:
        super().__init__(cell.machine)
        self.seconds = 0.0
        self.open(cell.cell.target, cell.drafts, Limits(concurrency=cell.cell.concurrency, max_gamma=cell.max_gamma))
        self._prompt_ms = cell.machine.prompt_ms

    def run(self, arrivals: Sequence[Request], sampling: Sampling, draft: Draft | None, schedule: Schedule) -> Trace:
        return self._counted(super().run(arrivals, sampling, draft, schedule))

    def time_widths(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        gammas: Sequence[int],
        proposing: Sequence[int] | None = None,
    ) -> Trace:
        return self._counted(super().time_widths(arrivals, sampling, draft, gammas, proposing))

    def score(self, passages: Sequence[Passage], sampling: Sampling, draft: Draft) -> tuple[tuple[float, ...], ...]:
        read = sum(self._prompt_ms(len(p.request.tokens) + len(p.output)) for p in passages)
        self.seconds += 2 * read / 1e3
        return super().score(passages, sampling, draft)

    def _counted(self, trace: Trace) -> Trace:
        self.seconds += trace.wall_s
        return trace


def _quietly(line: str) -> None:
    """No worker shows what this one does."""
