"""Forecasts of the default target held against real speculation, and what guided search would have lost there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.benchmarks.conditions import cpus
from pipeline.benchmarks.rows import Row, Wanted, alone, known
from pipeline.benchmarks.search.asking import Asking
from pipeline.cells import cells_of
from pipeline.config import load_settings
from pipeline.engines.contract import Engine, Limits
from pipeline.measurement.prepare import Prepared, prepare
from pipeline.measurement.protocol import Allotment, Span, allot
from pipeline.policy.decide import choose
from pipeline.records.cell import Cell
from pipeline.records.forecast import Forecast
from pipeline.records.measurement import Measurement, RoundKind
from pipeline.records.settings import EngineSettings, SweepSettings
from pipeline.records.target import Candidate
from pipeline.records.task import RoundResult, RoundTask
from pipeline.search.forecast import run_round
from pipeline.search.guided import Guided
from pipeline.search.space import CandidateSpace
from pipeline.search.strategies import Strategy
from pipeline.workloads.load import load_prompts

CELLS = (("code_edit", 1), ("chat", 4))
"""Workload and concurrency: one where decoding is alone, one where rows of different widths share a verification."""
GAMMAS = "[1,2,3,4,5,6,7,8]"
OVERRIDES = (
    f"targets.smollm2.drafts.ngram.gammas={GAMMAS}",
    f"targets.smollm2.drafts.early_exit.gammas={GAMMAS}",
)

WITHIN_E, WITHIN_S = Wanted("ours", "<=", 0.03), Wanted("ours", "<=", 0.06)
WITHIN_REGRET = Wanted("ours", "<=", 0.02)
QUARTER = Wanted("ours", "<=", 0.25)

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RealCell:
    """One cell measured whole: what was forecast, what each candidate did, and both searches' winners measured anew.

    ``fresh`` are the true contenders' speedups on prompts that no search has seen; seconds are of the wall.
    """

    label: str
    forecasts: Mapping[Candidate, Forecast]
    measured: Mapping[Candidate, Measurement]
    guided: Candidate
    grid: Candidate
    fresh: Mapping[Candidate, float]
    guided_s: float
    grid_s: float

    @property
    def errors(self) -> list[tuple[float, float]]:
        """(of E, of S) for each candidate, relative to what was measured."""
        pairs = []
        for candidate, measurement in self.measured.items():
            forecast, metrics = self.forecasts[candidate], measurement.metrics
            expected, real = forecast.emitted_per_verification, metrics.emitted_per_verification
            if expected is not None and real is not None:
                pairs.append((abs(expected / real - 1), abs(forecast.speedup / metrics.speedup - 1)))
        return pairs

    @property
    def regret(self) -> float:
        """What guided search's winner falls short of the grid's, measured side by side; off counts as 1."""
        ours, theirs = (max(1.0, self.fresh[winner]) for winner in (self.guided, self.grid))
        return 1 - ours / theirs


def real_rows(cells: Sequence[RealCell]) -> list[Row]:
    """Medians over all candidates of all cells, with their quartiles."""
    errors = [pair for cell in cells for pair in cell.errors]
    regrets = [cell.regret for cell in cells]
    rows = [
        _quartiles("forecast_error_e", [e for e, _ in errors], "of E", WITHIN_E),
        _quartiles("forecast_error_s", [s for _, s in errors], "of S", WITHIN_S),
        alone("regret_guided_real", "of S", "less", [statistics.mean(regrets)], WITHIN_REGRET),
        alone(
            "seconds_guided_real",
            "of grid's",
            "less",
            [sum(cell.guided_s for cell in cells) / sum(cell.grid_s for cell in cells)],
            QUARTER,
        ),
    ]
    return [*rows, *(alone(f"regret_{cell.label}", "of S", "less", [cell.regret]) for cell in cells)]


def real(asking: Asking) -> Iterator[Row]:
    """The default target, n-gram and early exit, γ 1 to 8: every candidate of ``CELLS`` measured, on all CPUs alone."""
    from pipeline.engines.decoding.engine import DecodingEngine  # no other question needs PyTorch

    engine = DecodingEngine(EngineSettings(), cpus())
    yield from real_rows([measure_cell(engine, *cell, asking.say) for cell in CELLS])


def measure_cell(engine: Engine, workload: str, concurrency: int, say: Say, overrides: Sequence[str] = ()) -> RealCell:
    """Everything that can be measured of one cell of the default target, as ``overrides`` change it."""
    chosen = (f"workload=[{workload}]", f"concurrency=[{concurrency}]")
    return _Cell(engine, load_settings([*chosen, *OVERRIDES, *overrides]), say).measure()


class _Cell:
    def __init__(self, engine: Engine, settings: SweepSettings, say: Say) -> None:
        self._engine = engine
        self._settings = settings
        self._say = say
        ((self._cell, choice),) = cells_of(settings, "cpu")
        self._space = CandidateSpace(choice.drafts)
        self._drafts = tuple(item.draft for item in choice.drafts)
        limits = Limits(concurrency=self._cell.concurrency, max_gamma=self._space.max_gamma)
        engine.open(self._cell.target, self._drafts, limits)
        self._prepared: Prepared = prepare(engine, self._cell, settings.protocol, say, self._space.max_gamma)
        available = len(load_prompts(self._cell.workload).prompts)
        self._allotment: Allotment = allot(available, self._cell.concurrency, settings.protocol)

    def measure(self) -> RealCell:
        label = self._cell.key.label
        begun = time.monotonic()
        forecast = self._round("forecast", self._space.candidates, self._allotment.search).forecast
        forecast_s = time.monotonic() - begun
        if forecast is None:
            raise RuntimeError(f"{label}: no forecast could be made")
        size = self._settings.search.candidates_per_round
        measured: dict[Candidate, Measurement] = {}
        rounds: dict[Candidate, tuple[float, float]] = {}
        for start in range(0, len(self._space.candidates), size):
            wanted = self._space.candidates[start : start + size]
            result = self._round("confirmation_look", wanted, self._allotment.search)  # a search would race them
            assert result.baseline is not None
            for m in result.measurements:
                measured[m.candidate] = m
                rounds[m.candidate] = (_wall_s(m), sum(b.trace.wall_s for b in result.baseline.trace_blocks))
        tried, alone = guided(Guided(self._space, self._settings.search.seed, forecast.forecasts), measured, size)
        ranked = [] if alone and len(tried) == 1 else tried
        wasted = 1 if alone and ranked else 0  # the first one's whole confirmation, at most
        ours, theirs = (choose([measured[c] for c in some]) for some in (tried, list(measured)))
        assert ours is not None
        assert theirs is not None
        winners = tuple(dict.fromkeys((ours.candidate, theirs.candidate)))
        looks = self._allotment.looks
        whole = Span(first=looks[0].first, count=sum(s.count for s in looks), distinct=sum(s.distinct for s in looks))
        self._say(f"{label}: guided {ours.candidate.label}, grid {theirs.candidate.label}, measured anew")
        begun = time.monotonic()
        again = self._round("confirmation_look", winners, whole)
        confirm_s = (time.monotonic() - begun) * 3 / (2 + len(winners))  # a confirmation has one candidate
        return RealCell(
            label=label.replace(" · ", "_"),
            forecasts={f.candidate: f for f in forecast.forecasts},
            measured=measured,
            guided=ours.candidate,
            grid=theirs.candidate,
            fresh={m.candidate: m.metrics.speedup for m in again.measurements},
            guided_s=forecast_s + _seconds(ranked, rounds, size) + (1 + wasted) * confirm_s,
            grid_s=_seconds(list(measured), rounds, size) + confirm_s,
        )

    def _round(self, kind: RoundKind, candidates: Sequence[Candidate], span: Span) -> RoundResult:
        cell: Cell = self._cell
        task = RoundTask(
            sweep="benchmark-real",
            cell=cell,
            drafts=self._drafts,
            max_gamma=self._space.max_gamma,
            candidates=tuple(candidates),
            kind=kind,
            replicate=0,
            first_prompt=span.first,
            prompt_count=span.count,
            distinct_prompts=span.distinct,
            prompt_offset=span.offset,
            level=0.95,
            protocol=self._settings.protocol,
        )
        result = run_round(self._engine, task, self._prepared, self._say)
        for failure in result.failures:
            self._say(f"{cell.key.label}: {failure.message}")
        return result


def guided(search: Strategy, measured: Mapping[Candidate, Measurement], size: int) -> tuple[list[Candidate], bool]:
    """The candidates that ``search`` would have measured, given what they turned out to be, in rounds of ``size``.

    And whether the first stood alone: a course then confirms it at once (``Course``), and searches only where another
    is expected to beat what it turned out to be.
    """
    scores: dict[Candidate, float] = {}
    alone = False
    while chosen := search.propose([c for c in measured if c not in scores], scores, size):
        alone = alone or (not scores and len(chosen) == 1)
        scores |= {c: measured[c].metrics.speedup for c in chosen}
    return list(scores), alone


def _wall_s(measurement: Measurement) -> float:
    return sum(block.trace.wall_s for block in measurement.trace_blocks)


def _seconds(tried: Sequence[Candidate], rounds: Mapping[Candidate, tuple[float, float]], size: int) -> float:
    """Of measuring ``tried`` in rounds of ``size``, each beside a baseline of its own; prefill and all."""
    if not tried:
        return 0.0
    baselines = -(-len(tried) // size)
    return sum(rounds[c][0] for c in tried) + baselines * statistics.mean(rounds[c][1] for c in tried)


def _quartiles(metric: str, values: Sequence[float], unit: str, wanted: Wanted) -> Row:
    low, middle, high = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return known(metric, unit, "less", middle, low, high, wanted)
