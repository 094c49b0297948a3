"""A benchmark's report as a table for a terminal, and in Markdown."""

from __future__ import annotations

from rich.table import Table

from pipeline.benchmarks.rows import Report, Row

HEADINGS = ("metric", "ours", "peer", "ratio", "from – to", "wanted", "holds")
_HOLDS = {True: "yes", False: "no", None: "–"}
_STYLES = {True: "green", False: "red", None: ""}


def report_table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, caption=conditions_line(report), caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading in ("metric", "ratio", "holds"))
    for row in report.rows:
        table.add_row(*cells(row), style=_STYLES[row.holds])
    return table


def markdown_table(report: Report) -> str:
    """The same, and the conditions below it."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(cells, report.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{conditions_line(report)}\n"


def cells(row: Row) -> tuple[str, ...]:
    """``low`` and ``high`` are the ratio's, or of ours where there is no peer."""
    peer = "–" if row.peer_value is None else f"{_figure(row.peer_value)} ({row.peer})"
    return (
        row.metric,
        f"{_figure(row.ours)} {row.unit}",
        peer,
        "–" if row.ratio is None else f"{row.ratio:.2f}×",
        f"{_figure(row.low)} – {_figure(row.high)}",
        row.wanted or "–",
        _HOLDS[row.holds],
    )


def conditions_line(report: Report) -> str:
    where = report.conditions
    return (
        f"{where['accelerator']}, {where['threads']} threads of {where['cpus']} CPUs, {where['dtype']}, "
        f"Python {where['python']}, torch {where['torch']}, transformers {where['transformers']}, "
        f"load {where['load_before']} before and {where['load_after']} after, {where['created']}"
    )


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
