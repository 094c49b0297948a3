"""What a search loses against measuring everything, and what it saves: on cells whose true speedups are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.benchmarks.rows import Row, Wanted, alone
from pipeline.benchmarks.search.asking import Asking, share_row
from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.benchmarks.search.regret_cells import KINDS, regret_cell
from pipeline.benchmarks.search.whole import decide_cell
from pipeline.records.settings import SearchSettings
from pipeline.records.target import Candidate

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
        by_strategy={name: _searched(cell, _settings(name)) for name in STRATEGIES},
    )


def _searched(cell: SimulatedCell, settings: SearchSettings) -> Searched:
    run = decide_cell(cell, settings)
    chosen = Candidate(draft=run.decision.draft, gamma=run.decision.gamma)
    value = cell.truth(chosen) if chosen.draft is not None else 1.0
    return Searched(value=max(1.0, value), seconds=run.seconds, measured=run.searched)


def _settings(strategy: Strategy) -> SearchSettings:
    """The grid measures all there are; TPE as many as it does by default."""
    settings = SearchSettings(strategy=strategy)
    return replace(settings, max_candidates=10_000) if strategy == "grid" else settings


def _close(one: Compared, strategy: str) -> bool:
    return one.by_strategy[strategy].value >= one.by_strategy["grid"].value * (1 - CLOSE)
