"""How often a confirmation's interval holds the true speedup, and that of off beside off holds 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import log

from pipeline.benchmarks.rows import Between, Row
from pipeline.benchmarks.search.asking import CELLS_APART, Asking, mean_row, share_row
from pipeline.benchmarks.search.cells import OFF, any_cell
from pipeline.benchmarks.search.course import CellCourse, pooled
from pipeline.confirming import CONFIRMATION_LEVEL
from pipeline.measurement.protocol import LOOKS
from pipeline.records.measurement import Measurement

LEVEL = 0.95
WANTED = Between(0.93, 0.97)
CONCURRENCY = (1, 8)
UNIT = "of intervals"
FIRST_SEED, FIRST_A_A = 0, 2 * CELLS_APART


@dataclass(frozen=True, kw_only=True)
class Covered:
    """Whether the interval at 95 % and the wider one that decides hold the truth, how far S is off it (log), and half
    of the former's width (log)."""

    at_level: bool
    deciding: bool
    error: float
    half_width: float
    remeasured: int


def coverage(asking: Asking) -> Iterator[Row]:
    """Of confirmations that take all their looks, over cells of every kind."""
    everything: list[Covered] = []
    for place, concurrency in enumerate(CONCURRENCY):
        found = asking.each(
            partial(confirmed, concurrency=concurrency),
            FIRST_SEED + place * CELLS_APART,
            asking.cells // len(CONCURRENCY),
            f"coverage at C = {concurrency}",
        )
        everything += found
        where = f"c{concurrency}"
        yield share_row(f"coverage_{where}", [one.at_level for one in found], UNIT, wanted=WANTED)
        yield share_row(f"coverage_deciding_{where}", [one.deciding for one in found], UNIT)
        yield mean_row(f"bias_{where}", [one.error for one in found], "of log S")
        yield mean_row(f"half_width_{where}", [one.half_width for one in found], "of log S")
        yield mean_row(f"remeasured_{where}", [float(one.remeasured) for one in found], "blocks a confirmation")
    yield share_row("coverage", [one.at_level for one in everything], UNIT, wanted=WANTED)


def a_a(asking: Asking) -> Iterator[Row]:
    """Of off beside off on a search's prompts, as a sweep measures it; half its width is the noise floor."""
    for place, concurrency in enumerate(CONCURRENCY):
        found = asking.each(
            partial(off_beside_off, concurrency=concurrency),
            FIRST_A_A + place * CELLS_APART,
            asking.cells // len(CONCURRENCY),
            f"A/A at C = {concurrency}",
        )
        where = f"c{concurrency}"
        yield share_row(f"a_a_{where}", [one.at_level for one in found], UNIT, wanted=WANTED)
        yield mean_row(f"a_a_half_width_{where}", [one.half_width for one in found], "of log S")


def confirmed(seed: int, concurrency: int) -> Covered:
    cell = any_cell(seed, concurrency)
    (candidate,) = cell.candidates
    course = CellCourse(cell)
    looks = [course.look(candidate, place) for place in range(LOOKS)]
    return _covered(pooled(looks, LEVEL), pooled(looks, CONFIRMATION_LEVEL), cell.truth(candidate))


def off_beside_off(seed: int, concurrency: int) -> Covered:
    course = CellCourse(replace(any_cell(seed, concurrency), candidates=(OFF,)))
    (measured,) = course.search()
    return _covered(measured, measured, 1.0)


def _covered(measured: Measurement, deciding: Measurement, truth: float) -> Covered:
    """Raises ValueError for a measurement without an interval."""
    metrics = measured.metrics
    if metrics.speedup_low is None or metrics.speedup_high is None:
        raise ValueError(f"{measured.candidate.label} has no interval")
    return Covered(
        at_level=_holds(measured, truth),
        deciding=_holds(deciding, truth),
        error=log(metrics.speedup / truth),
        half_width=0.5 * log(metrics.speedup_high / metrics.speedup_low),
        remeasured=metrics.remeasured_blocks,
    )


def _holds(measured: Measurement, truth: float) -> bool:
    low, high = measured.metrics.speedup_low, measured.metrics.speedup_high
    return low is not None and high is not None and low <= truth <= high
