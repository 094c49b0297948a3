"""A plan on a terminal: what each cell may gain and cost, what that hangs on, and the budgets that enforce it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pipeline.records.plan import Plan, PlannedCandidate, PlannedCell
from pipeline.report.rows import ABSENT

_GAP = 2
_PIPED_WIDTH = 110
"""Where there is no terminal to fit."""


def print_plan(plan: Plan, console: Console | None = None, *, every_candidate: bool = False) -> None:
    """The cells, their candidates (the best of each draft, or every one) and the totals."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    for part in _parts(plan, every_candidate):
        console.print(part)
    for line in _totals(plan):
        console.print(line, soft_wrap=True)


def _parts(plan: Plan, every_candidate: bool) -> Iterator[RenderableType]:
    yield Text(
        f"Assumed, not measured: a roofline of one {plan.device}, and the α of plan.acceptance. S hangs on α: a "
        "candidate whose α is below that under S=1 costs more than it gains."
    )
    yield Text()
    headings = ("cell", "best", "α", "S", "S=1", "measured", "seconds")
    yield _table(headings, [_cell_row(cell) for cell in plan.cells])
    yield Text()
    for cell in plan.cells:
        alphas = tuple(cell.best.by_alpha)
        yield Text(f"{cell.cell.label}: a plain step takes {cell.tau0_ms:.2f} ms", style="bold")
        weighed = ("candidate", "α", "S", "S=1", *(f"α={alpha:g}" for alpha in alphas))
        rows = [_candidate_row(each, alphas) for each in shown(cell, every_candidate)]
        yield Padding(_table(weighed, rows), (0, 0, 0, _GAP), expand=False)
        yield Text()


def shown(cell: PlannedCell, every_candidate: bool) -> Sequence[PlannedCandidate]:
    """The candidates of a cell from the best down: every one, or of each draft the γ that is best for it."""
    ranked = sorted(cell.candidates, key=lambda each: -each.speedup)
    if every_candidate:
        return ranked
    best: dict[object, PlannedCandidate] = {}
    for each in ranked:
        best.setdefault(each.candidate.draft, each)
    return tuple(best.values())


def _totals(plan: Plan) -> Iterator[Text]:
    candidates = sum(len(cell.candidates) for cell in plan.cells)
    measurements = sum(cell.measurements for cell in plan.cells)
    baselines = sum(len(cell.rounds) for cell in plan.cells)
    yield Text(
        f"{_count(len(plan.cells), 'cell')}, {_count(candidates, 'candidate')}; up to {measurements} measurements "
        f"expected beside {_count(baselines, 'baseline')}"
    )
    yield Text(
        f"{plan.worker_s / 3600:.2f} worker-hours, {plan.load_s / 3600:.2f} of them loading; "
        f"{plan.wall_s / 3600:.2f} hours of wall time with {_count(plan.workers, 'worker')}"
    )
    for warning in plan.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield Text.assemble("hold the sweep to that, and a margin, by ", (budget_overrides(plan), "bold"))


def budget_overrides(plan: Plan) -> str:
    """The overrides of `python -m jobs.sweep` that end it when it takes more than was planned and allowed."""
    return f"budget.worker_hours={plan.worker_hours:g} budget.cell_s={plan.cell_s}"


def _cell_row(cell: PlannedCell) -> tuple[str, ...]:
    best = cell.best
    return (
        cell.cell.label,
        best.candidate.label,
        f"{best.acceptance_rate:.2f}",
        f"{best.speedup:.2f}×",
        _alpha(best.break_even),
        str(cell.measurements),
        f"{cell.seconds:.0f}",
    )


def _candidate_row(planned: PlannedCandidate, alphas: Sequence[float]) -> tuple[str, ...]:
    return (
        planned.candidate.label,
        f"{planned.acceptance_rate:.2f}",
        f"{planned.speedup:.2f}×",
        _alpha(planned.break_even),
        *(f"{planned.by_alpha[alpha]:.2f}×" for alpha in alphas),
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Names to the left, figures to the right, a rule under the headings; where there is no room, cells wrap."""
    table = Table.grid(padding=(0, _GAP, 0, 0))
    for heading in headings:
        name = heading in ("cell", "candidate", "best")
        table.add_column(justify="left" if name else "right", overflow="fold", no_wrap=heading != "cell")
    table.add_row(*(Text(heading, style="bold") for heading in headings))
    table.add_row(*(Rule(style="dim") for _ in headings))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _alpha(alpha: float | None) -> str:
    return ABSENT if alpha is None else f"{alpha:.2f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
