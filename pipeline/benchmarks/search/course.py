"""What the product does in one cell, round by round, with the functions that it does it with, and no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.confirming import CONFIRMATION_LEVEL
from pipeline.course import SEARCH_LEVEL
from pipeline.measurement.pool import pool
from pipeline.measurement.protocol import Span
from pipeline.measurement.round import measure_round
from pipeline.records.measurement import Baseline, Measurement, MeasurementKind
from pipeline.records.settings import Protocol, SearchSettings
from pipeline.records.target import Candidate
from pipeline.records.task import RoundResult, RoundTask


@dataclass(frozen=True)
class Look:
    """One look of a confirmation with its baseline."""

    measurement: Measurement
    baseline: Baseline


class CellCourse:
    """The rounds of one cell on one engine, under the default protocol unless told otherwise."""

    def __init__(self, cell: SimulatedCell, protocol: Protocol | None = None) -> None:
        self._cell = cell
        self._protocol = protocol or Protocol()
        self._allotment = cell.allotment(self._protocol)
        self._prepared = cell.prepared(self._allotment.end)
        self._engine = cell.engine()
        self._rounds = 0

    def search(self) -> tuple[Measurement, ...]:
        """Every candidate once, as many beside one baseline as the search puts there."""
        found: list[Measurement] = []
        size = SearchSettings().candidates_per_round
        for start in range(0, len(self._cell.candidates), size):
            chosen = self._cell.candidates[start : start + size]
            found += self._round("search", chosen, self._allotment.search, SEARCH_LEVEL).measurements
        return tuple(found)

    def look(self, candidate: Candidate, place: int) -> Look:
        """Look number ``place`` at a winner."""
        result = self._round("confirmation_look", (candidate,), self._allotment.looks[place], CONFIRMATION_LEVEL)
        (measurement,), baseline = result.measurements, result.baseline
        assert baseline is not None
        return Look(measurement, baseline)

    def _round(self, kind: MeasurementKind, candidates: Sequence[Candidate], span: Span, level: float) -> RoundResult:
        """Raises RuntimeError where anything failed: nothing should on this machine."""
        task = RoundTask(
            sweep="benchmark",
            cell=self._cell.cell,
            drafts=self._cell.drafts,
            max_gamma=self._cell.max_gamma,
            candidates=tuple(candidates),
            kind=kind,
            replicate=self._rounds,
            first_prompt=span.first,
            prompt_count=span.count,
            distinct_prompts=span.distinct,
            prompt_offset=span.offset,
            level=level,
            protocol=self._protocol,
            baseline_replicate=self._rounds,
        )
        self._rounds += 1
        result = measure_round(self._engine, task, self._prepared, lambda _: None)
        if result.failures:
            raise RuntimeError(f"cell {self._cell.seed}: {result.failures[0].message}")
        return result


def pooled(looks: Sequence[Look], level: float) -> Measurement:
    """The confirmation that ``looks`` make, at another level if wanted."""
    return pool([look.measurement for look in looks], [look.baseline for look in looks], level)
