"""What a search loses against measuring everything, and what it saves: on cells whose true speedups are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import optuna

from pipeline.benchmarks.rows import Row, Wanted, alone
from pipeline.benchmarks.search.asking import Asking, share_row
from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.benchmarks.search.regret_cells import KINDS, regret_cell
from pipeline.course import Course
from pipeline.engines.contract import Limits, Passage, Request, Schedule
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.round import measure_round
from pipeline.records.cell import Sampling
from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.settings import DraftChoice, SearchSettings, SweepSettings, TargetChoice
from pipeline.records.target import Candidate, Draft
from pipeline.records.task import RoundResult
from pipeline.records.trace import Trace
from pipeline.search.forecast import forecast_round
from pipeline.search.study import CellStudy

FIRST_SEED = 7_000_000
"""Of this question's cells, far from those of the others."""
CELLS = 200
CLOSE = 0.02
Strategy = Literal["grid", "tpe", "guided"]
STRATEGIES: tuple[Strategy, ...] = ("grid", "tpe", "guided")

WITHIN = Wanted("ours", ">=", 0.95)
QUARTER, HALF = Wanted("ours", "<=", 0.25), Wanted("ours", "<=", 0.5)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One cell under one strategy: the true speedup of what it chose, 1 where off is better, and what that cost."""

    value: float
    seconds: float
    measured: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One cell under every strategy, and the best that there is."""

    kind: str
    best: float
    by_strategy: Mapping[str, Searched]


def regret(asking: Asking) -> Iterator[Row]:
    """``regret_guided``: the share of cells in which guided search is within 2 % of the grid's choice, in true S.

    Of ``CELLS`` cells where at least ten times as many are asked for, else of a tenth of those: each is searched whole.
    """
    found = asking.each(compare, FIRST_SEED, min(CELLS, max(len(KINDS), asking.cells // 10)), "regret")
    yield share_row("regret_guided", [_close(one, "guided") for one in found], "of cells", "more", WITHIN)
    for kind in KINDS:
        yield share_row(f"regret_guided_{kind}", [_close(o, "guided") for o in found if o.kind == kind], "of cells")
    yield share_row("regret_tpe", [_close(one, "tpe") for one in found], "of cells")
    for name in STRATEGIES:
        near = [one.by_strategy[name].value >= one.best * (1 - CLOSE) for one in found]
        yield share_row(f"near_best_{name}", near, "of cells")
    seconds = {name: sum(one.by_strategy[name].seconds for one in found) for name in STRATEGIES}
    yield alone("seconds_guided", "of grid's", "less", [seconds["guided"] / seconds["grid"]], QUARTER)
    yield alone("seconds_guided_tpe", "of tpe's", "less", [seconds["guided"] / seconds["tpe"]], HALF)
    for name in STRATEGIES:
        measured = sum(one.by_strategy[name].measured for one in found) / len(found)
        yield alone(f"measured_{name}", "candidates a cell", "less", [measured])


def compare(seed: int) -> Compared:
    """The same cell, searched and confirmed by each strategy on a machine that is as it was at first."""
    cell = regret_cell(seed)
    best = max(1.0, *(cell.truth(candidate) for candidate in cell.candidates))
    return Compared(
        kind=cell.cell.workload.name,
        best=best,
        by_strategy={name: search(cell, _settings(name)) for name in STRATEGIES},
    )


def search(cell: SimulatedCell, settings: SearchSettings) -> Searched:
    """One cell from its first round to its decision, as a sweep does it; seconds are the machine's own."""
    drafts = tuple(
        DraftChoice(draft=draft, gammas=tuple(c.gamma for c in cell.candidates if c.draft == draft))
        for draft in cell.drafts
    )
    choice = TargetChoice(target=cell.cell.target, drafts=drafts)
    sweep = SweepSettings(
        name="regret",
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
    course = Course(cell.cell, choice, sweep, "regret", study, shelf, allotment.end)
    prepared = cell.prepared(allotment.end)
    while (task := course.next_task()) is not None:
        measure = forecast_round if task.kind == "forecast" else measure_round
        result = measure(engine, task, prepared, _quietly)
        shelf.keep(result)
        course.take(task, result)
    decision = course.decision
    assert decision is not None
    chosen = Candidate(draft=decision.draft, gamma=decision.gamma)
    value = cell.truth(chosen) if decision.draft is not None else 1.0
    return Searched(value=max(1.0, value), seconds=engine.seconds, measured=shelf.searched)


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


def _settings(strategy: Strategy) -> SearchSettings:
    """The grid measures all there are; TPE as many as it does by default."""
    settings = SearchSettings(strategy=strategy)
    return replace(settings, max_candidates=10_000) if strategy == "grid" else settings


def _close(one: Compared, strategy: str) -> bool:
    return one.by_strategy[strategy].value >= one.by_strategy["grid"].value * (1 - CLOSE)


def _quietly(line: str) -> None:
    """No worker shows what this one does."""
