"""A benchmark's report as a table for a terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from pipeline.benchmarks.rows import EQUAL_UNIT, Report, Row

HEADINGS = ("metric", "ours", "peer", "ratio", "from – to", "wanted", "holds")
_NOTHING = "–"
_HOLDS = {True: "yes", False: "no", None: _NOTHING}
_STYLES = {True: "green", False: "red", None: ""}


def report_table(report: Report) -> Table:
    """Columns that say nothing for any row are left out."""
    lines = [cells(row) for row in report.rows]
    shown = [i for i in range(len(HEADINGS)) if any(line[i] != _NOTHING for line in lines)]
    table = Table(box=None, pad_edge=False, caption=conditions_line(report), caption_justify="left")
    for i in shown:
        table.add_column(HEADINGS[i], no_wrap=HEADINGS[i] != "peer", overflow="fold")
    for row, line in zip(report.rows, lines, strict=True):
        table.add_row(*(line[i] for i in shown), style=_STYLES[row.holds])
    return table


def markdown_table(report: Report) -> str:
    """The same in Markdown, and the conditions below it.

    Rows named ``a · b · c`` become one grid, a line for each a and a column for each b · c, with what does not hold in
    bold.
    """
    gridded = {tuple(row.metric.split(" · ", 1)): row for row in report.rows if row.metric.count(" · ") == 2}
    parts = []
    if gridded:
        columns = list(dict.fromkeys(column for _, column in gridded))
        names = dict.fromkeys(name for name, _ in gridded)
        body = [(name, *(_grid_cell(gridded.get((name, column))) for column in columns)) for name in names]
        parts.append(_markdown([("", *columns), ("---",) * (len(columns) + 1), *body]))
    others = [row for row in report.rows if row.metric.count(" · ") != 2]
    if others:
        parts.append(_markdown([HEADINGS, ("---",) * len(HEADINGS), *map(cells, others)]))
    return "\n\n".join([*parts, conditions_line(report)]) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """``low`` and ``high`` are the ratio's, or of ours where there is no peer."""
    peer = _NOTHING if row.peer_value is None else f"{_figure(row.peer_value)} ({row.peer})"
    return (
        row.metric,
        f"{_figure(row.ours)} {row.unit}",
        peer,
        _NOTHING if row.ratio is None else f"{row.ratio:.2f}×",
        _NOTHING if row.low == row.high else f"{_figure(row.low)} – {_figure(row.high)}",
        row.wanted or _NOTHING,
        _HOLDS[row.holds],
    )


def conditions_line(report: Report) -> str:
    where = report.conditions
    return (
        f"{where['accelerator']}, {where['threads']} threads of {where['cpus']} CPUs, {where['dtype']}, "
        f"Python {where['python']}, torch {where['torch']}, transformers {where['transformers']}, "
        f"load {where['load_before']} before and {where['load_after']} after, {where['created']}"
    )


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _grid_cell(row: Row | None) -> str:
    if row is None:
        return _NOTHING
    text = "equal" if row.unit == EQUAL_UNIT and row.ours == 0 else f"{_figure(row.ours)} {row.unit}"
    return f"**{text}**" if row.holds is False else text


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
