"""A benchmark's report as it is printed: in colour on a terminal, where rich is installed, which it need not be."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from pipeline.benchmarks.rows import Report
from pipeline.benchmarks.table import below, plain_table, shown_cells

_STYLES = {True: "green", False: "red", None: ""}


def print_report(report: Report) -> None:
    """Plain text, of any width, for a file or a pipe and where rich is missing."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        print(plain_table(report))
        return
    from rich.console import Console
    from rich.table import Table

    headings, *lines = shown_cells(report)
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "peer", overflow="fold")
    for row, line in zip(report.rows, lines, strict=True):
        table.add_row(*line, style=_STYLES[row.holds])
    console = Console(highlight=False)
    console.print(table)
    for text in below(report):
        console.print(text, markup=False)
