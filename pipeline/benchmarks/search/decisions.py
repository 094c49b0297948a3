"""How often a cell is turned on that should not be, and how often one that should be is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.benchmarks.rows import Row, Wanted
from pipeline.benchmarks.search.asking import CELLS_APART, Asking, share_row
from pipeline.benchmarks.search.cells import SimulatedCell, equal_cell, graded_cell
from pipeline.benchmarks.search.whole import decide_cell
from pipeline.records.settings import SearchSettings

CONCURRENCY = (1, 8)
CANDIDATES = 12
WORTH = 1.10
"""What the best candidate truly gains where the question is whether it is found."""
OTHERS = (0.8, 1.0)
"""Between what the best candidates of the other two drafts truly gain then."""

FALSE_ON = Wanted("ours", "<=", 0.03)
POWER = Wanted("ours", ">=", 0.80)
POWER_PART = 4
"""A share of .8 is known well enough from a quarter of the cells that one of .03 needs."""
UNIT = "of cells"
FIRST_FALSE_ON, FIRST_POWER = 4 * CELLS_APART, 6 * CELLS_APART


@dataclass(frozen=True, kw_only=True)
class Decided:
    """``status`` of the cell, and whether the draft that was confirmed is the first, the best one if any is."""

    status: str
    best: bool


def false_on(asking: Asking) -> Iterator[Row]:
    """Cells of equal candidates that all gain nothing, through search and confirmation."""
    everything: list[Decided] = []
    for place, concurrency in enumerate(CONCURRENCY):
        found = _asked(asking, worthless, "false_on", concurrency, FIRST_FALSE_ON + place * CELLS_APART, 1)
        everything += found
        yield share_row(f"false_on_c{concurrency}", [one.status == "on" for one in found], UNIT, "less")
    yield share_row("false_on", [one.status == "on" for one in everything], UNIT, "less", FALSE_ON)


def power(asking: Asking) -> Iterator[Row]:
    """Cells in which the best candidate gains a tenth, and two other drafts nothing."""
    everything: list[Decided] = []
    for place, concurrency in enumerate(CONCURRENCY):
        found = _asked(asking, worth_it, "power", concurrency, FIRST_POWER + place * CELLS_APART, POWER_PART)
        everything += found
        yield share_row(f"power_c{concurrency}", [one.status == "on" and one.best for one in found], UNIT)
        yield share_row(f"power_undecided_c{concurrency}", [one.status == "undecided" for one in found], UNIT, "less")
        yield share_row(f"power_best_draft_c{concurrency}", [one.best for one in found], UNIT)
    yield share_row("power", [one.status == "on" and one.best for one in everything], UNIT, wanted=POWER)


def worthless(seed: int, concurrency: int) -> Decided:
    return _decided(equal_cell(seed, concurrency, 1.0, CANDIDATES))


def worth_it(seed: int, concurrency: int) -> Decided:
    others = np.random.default_rng([seed, 2]).uniform(*OTHERS, 2)
    return _decided(graded_cell(seed, concurrency, (WORTH, *others.tolist())))


def _asked(
    asking: Asking, work: Callable[[int, int], Decided], what: str, concurrency: int, first: int, part: int
) -> list[Decided]:
    """One ``part``-th of the question's cells, at one concurrency."""
    count = asking.cells // (part * len(CONCURRENCY))
    return asking.each(partial(_at, work, concurrency), first, count, f"{what} at C = {concurrency}")


def _at(work: Callable[[int, int], Decided], concurrency: int, seed: int) -> Decided:
    return work(seed, concurrency)


def _decided(cell: SimulatedCell) -> Decided:
    decision = decide_cell(cell, SearchSettings()).decision
    return Decided(status=decision.status, best=decision.draft == cell.candidates[0].draft)
