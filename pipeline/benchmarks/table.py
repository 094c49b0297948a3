"""A benchmark's report as cells, as plain text and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.benchmarks.rows import EQUAL_UNIT, Report, Row

HEADINGS = ("metric", "ours", "peer", "ratio", "from – to", "wanted", "holds")
_NOTHING = "–"
_HOLDS = {True: "yes", False: "no", None: _NOTHING}


def shown_cells(report: Report) -> list[tuple[str, ...]]:
    """Headings, then a line a row. Columns that say nothing for any row are left out."""
    lines = [cells(row) for row in report.rows]
    shown = [i for i in range(len(HEADINGS)) if any(line[i] != _NOTHING for line in lines)]
    return [tuple(line[i] for i in shown) for line in (HEADINGS, *lines)]


def plain_table(report: Report) -> str:
    """The table for a machine without rich, with what is below it."""
    lines = shown_cells(report)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*rows, *below(report)])


def below(report: Report) -> list[str]:
    """What stands under the table: where it was measured, what was left out and what failed."""
    return [conditions_line(report), *report.notes, *(f"failed: {failure}" for failure in report.failures)]


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
    return "\n\n".join([*parts, *below(report)]) + "\n"


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
    driver = f"driver {where['driver']}, " if where.get("driver") else ""
    return (
        f"{where['accelerator']}, {where['threads']} threads of {where['cpus']} CPUs, {where['dtype']}, "
        f"Python {where['python']}, torch {where['torch']}, transformers {where['transformers']}, "
        f"{driver}"
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
