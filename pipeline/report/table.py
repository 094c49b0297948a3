"""The decisions of a sweep as a table: for a terminal of any width, and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pipeline.records.decision import Decision, Status
from pipeline.report.rows import Row, rows

HEADINGS = ("cell", "status", "draft", "γ", "speedup", "α", "tok/ver")
STYLES: dict[Status, str] = {"on": "green", "off": "", "undecided": "yellow", "failed": "red"}

_GAP = 2
_INDENT = 2
_NARROWEST = 12
_REASON_BESIDE = 60
"""A reason stands in a column of its own only where it gets this many characters; else below its row."""


class DecisionTable:
    """A cell a row: status, draft, γ, speedup with its interval, α, emitted tokens per verification, and why.

    Why is two sentences: what decided the status, and what lies between the ideal and the measured speedup.
    """

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self._rows = rows(decisions)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text("no cell has been decided")
            return
        natural = [max(len(line[i]) for line in (HEADINGS, *map(_texts, self._rows))) for i in range(len(HEADINGS))]
        spare = options.max_width - sum(natural) - _GAP * len(natural)
        fitted = _fitted(natural, spare + _GAP)
        if spare >= _REASON_BESIDE:
            yield from self._beside(natural)
        elif sum(fitted) + _GAP * (len(fitted) - 1) <= options.max_width:
            yield from self._below(fitted)
        else:
            yield from self._without_columns()

    def _beside(self, widths: Sequence[int]) -> RenderResult:
        grid = _grid(widths)
        grid.add_column(overflow="fold")
        grid.add_row(*(Text(heading, style="bold") for heading in (*HEADINGS, "why")))
        for row in self._rows:
            grid.add_row(*_styled(row), Text("\n".join(_sentences(row))))
        yield grid

    def _below(self, widths: Sequence[int]) -> RenderResult:
        heading = _grid(widths)
        heading.add_row(*(Text(heading, style="bold") for heading in HEADINGS))
        yield heading
        yield Rule(style="dim")
        for row in self._rows:
            grid = _grid(widths)
            grid.add_row(*_styled(row))
            yield grid
            yield from _indented(row)

    def _without_columns(self) -> RenderResult:
        for row in self._rows:
            cell, status, *rest = _texts(row)
            figures = ", ".join(f"{heading} {text}" for heading, text in zip(HEADINGS[2:], rest, strict=True))
            yield Text.assemble(cell, " ", (status, STYLES[row.status] or "bold"))
            yield Padding(Text(figures), (0, 0, 0, _INDENT), expand=False)
            yield from _indented(row)


def decision_table(decisions: Sequence[Decision]) -> RenderableType:
    """What ``Console.print`` shows: one line per cell, the reason beside it or, in fewer than ~150 columns, below."""
    return DecisionTable(decisions)


def markdown_table(decisions: Sequence[Decision]) -> str:
    """The same table for the MLflow note and for reports. Ends in a newline; a sentence when there is no decision."""
    if not decisions:
        return "No cell has been decided.\n"
    headings = (*HEADINGS, "why")
    lines = (
        headings,
        ("---",) * len(headings),
        *((*map(_escaped, _texts(row)), _escaped(row.reason)) for row in rows(decisions)),
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_explanations(decisions: Sequence[Decision]) -> str:
    """What stands below that table: for each cell from the ideal to the measured speedup. Empty where none is known."""
    lines = (f"- {_escaped(row.cell)}: {_escaped(row.why)}\n" for row in rows(decisions) if row.why)
    text = "".join(lines)
    return f"\n**Why each speedup is not the ideal one**\n\n{text}" if text else ""


def _sentences(row: Row) -> tuple[str, ...]:
    """Why the status is what it is, and why the speedup is."""
    return tuple(text for text in (row.reason, row.why) if text)


def _indented(row: Row) -> RenderResult:
    for text in _sentences(row):
        yield Padding(Text(text, style="dim"), (0, 0, 0, _INDENT), expand=False)


def _texts(row: Row) -> tuple[str, ...]:
    return (
        row.cell,
        row.status,
        row.draft,
        row.gamma,
        row.speedup,
        row.acceptance_rate,
        row.emitted_per_verification,
    )


def _styled(row: Row) -> tuple[Text, ...]:
    cell, status, *rest = _texts(row)
    return (Text(cell), Text(status, style=STYLES[row.status]), *map(Text, rest))


def _grid(widths: Sequence[int]) -> Table:
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for heading, width in zip(HEADINGS, widths, strict=True):
        right = heading in ("γ", "α", "tok/ver")
        grid.add_column(justify="right" if right else "left", width=width, overflow="fold")
    return grid


def _fitted(natural: Sequence[int], spare: int) -> list[int]:
    """``natural`` widths with what is lacking taken from the cell's name and then from the draft's, which wrap."""
    widths = list(natural)
    for column in (HEADINGS.index("cell"), HEADINGS.index("draft")):
        taken = min(max(0, -spare), max(0, widths[column] - _NARROWEST))
        widths[column] -= taken
        spare += taken
    return widths


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
