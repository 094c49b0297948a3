"""What the user sees: progress while a sweep runs, and its outcome when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision
from pipeline.records.measurement import Measurement
from pipeline.report.live import LiveProgress
from pipeline.report.plain import PlainProgress
from pipeline.report.table import decision_table, markdown_table

__all__ = ["Outcome", "Progress", "decision_table", "make_progress", "markdown_table", "print_outcome"]


class Progress(Protocol):
    """Told what happens, shows it. Never raises for what it is told."""

    def expect(self, cells: int) -> None:
        """How many cells there are in all, once it is known."""

    def cell_started(self, cell: CellKey, worker: str) -> None:
        """``worker`` has leased ``cell``."""

    def note(self, worker: str, text: str) -> None:
        """What ``worker`` is doing now; may come often."""

    def measured(self, measurement: Measurement) -> None:
        """A measurement has been stored."""

    def decided(self, decision: Decision) -> None:
        """A cell has been decided."""

    def warn(self, text: str) -> None:
        """Something the user should know, in one line."""

    def close(self) -> None:
        """Leave the terminal as it was; a second call does nothing."""


class Outcome(Protocol):
    """The part of a sweep's outcome that is printed."""

    @property
    def sweep(self) -> str: ...

    @property
    def decisions(self) -> Sequence[Decision]: ...

    @property
    def policy(self) -> Path: ...

    @property
    def ui_command(self) -> str: ...

    @property
    def measured(self) -> int: ...

    @property
    def kept(self) -> int: ...

    @property
    def interrupted(self) -> bool: ...


@contextmanager
def make_progress(console: Console | None = None) -> Iterator[Progress]:
    """A live display on a terminal, plain lines with a time otherwise; closed on leaving. NO_COLOR is honoured."""
    console = console or Console(highlight=False)
    progress: Progress = LiveProgress(console) if console.is_interactive else PlainProgress(console)
    try:
        yield progress
    finally:
        progress.close()


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """The decisions, then where everything lies. Paths and commands are never broken over lines."""
    console = console or Console(highlight=False)
    console.print()
    console.print(decision_table(outcome.decisions))
    console.print()
    if outcome.interrupted:
        console.print(Text("interrupted: what was measured is kept, and the same command goes on", style="yellow"))
    for name, text in (
        ("sweep", f"{outcome.sweep} · {_measured(outcome)}"),
        ("policy", str(outcome.policy)),
        ("MLflow", outcome.ui_command),
    ):
        if text:
            console.print(Text(f"{name:<7} {text}"), soft_wrap=True)


def _measured(outcome: Outcome) -> str:
    if outcome.measured == 0 and outcome.kept and not outcome.interrupted:
        return f"nothing to measure: all {outcome.kept} measurements were there already"
    return f"{outcome.measured} measured now, {outcome.kept} kept from before"
