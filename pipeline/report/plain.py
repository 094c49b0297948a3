"""Progress as lines with a time, for a log or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision
from pipeline.records.measurement import Measurement
from pipeline.report.lines import decided_line, measured_line

NOTE_EVERY_S = 10.0
"""A worker's notes come often; a log takes one of them in this time."""


class PlainProgress:
    """Implements ``Progress``: one line per event. ``clock`` is in seconds and never goes back."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._noted: dict[str, tuple[str, float]] = {}

    def expect(self, cells: int) -> None:
        self._line(f"{cells} cells to decide")

    def cell_started(self, cell: CellKey, worker: str) -> None:
        self._noted.pop(worker, None)
        self._line(f"{cell.label}: on {worker}")

    def note(self, worker: str, text: str) -> None:
        before, at = self._noted.get(worker, ("", -NOTE_EVERY_S))
        if text != before and self._clock() - at >= NOTE_EVERY_S:
            self._noted[worker] = (text, self._clock())
            self._line(f"{worker}: {text}")

    def measured(self, measurement: Measurement) -> None:
        self._line(measured_line(measurement))

    def decided(self, decision: Decision) -> None:
        self._line(decided_line(decision))

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        """A line is a line: no wrapping, and no markup read into anybody's text."""
        self._console.print(Text(f"{time.strftime('%H:%M:%S')} {' '.join(text.split())}"), soft_wrap=True)
