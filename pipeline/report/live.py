"""Progress on a terminal: what every worker does, cells done, the latest results."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision, Status
from pipeline.records.measurement import Measurement
from pipeline.report.lines import decided_line, measured_line
from pipeline.report.table import STYLES

LATEST = 5
_ORDER: tuple[Status, ...] = ("on", "off", "undecided", "failed")


@dataclass
class _Worker:
    cell: str
    since: float
    note: str = ""


class LiveProgress:
    """Implements ``Progress``. Decisions and warnings stay on the screen; the rest is redrawn and gone at the end.

    ``clock`` is in seconds and never goes back.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._workers: dict[str, _Worker] = {}
        self._status: dict[CellKey, Status] = {}
        self._started: set[CellKey] = set()
        self._latest: deque[str] = deque(maxlen=LATEST)
        self._measured = 0
        self._total: int | None = None
        self._live = Live(console=console, get_renderable=self.renderable, refresh_per_second=4, transient=True)
        self._live.start()

    def expect(self, cells: int) -> None:
        self._total = cells

    def cell_started(self, cell: CellKey, worker: str) -> None:
        self._started.add(cell)
        self._workers[worker] = _Worker(cell.label, self._clock())

    def note(self, worker: str, text: str) -> None:
        if worker in self._workers:
            cell = self._workers[worker].cell
            self._workers[worker].note = " ".join(text.split()).removeprefix(f"{cell} · ")

    def measured(self, measurement: Measurement) -> None:
        self._measured += 1
        self._latest.append(measured_line(measurement))

    def decided(self, decision: Decision) -> None:
        self._status[decision.cell] = decision.status
        for name, worker in list(self._workers.items()):
            if worker.cell == decision.cell.label:
                del self._workers[name]
        self._say(Text(decided_line(decision), style=STYLES[decision.status]))

    def warn(self, text: str) -> None:
        self._say(Text(f"warning: {' '.join(text.split())}", style="yellow"))

    def close(self) -> None:
        self._live.stop()

    def renderable(self) -> RenderableType:
        """The part that is redrawn."""
        counts = Counter(self._status.values())
        cells = ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])
        running = len(self._started - self._status.keys())
        done = f"{len(self._status)}" if self._total is None else f"{len(self._status)}/{self._total}"
        head = (
            f"{_duration(self._clock() - self._began)} · {done} cells decided"
            f"{f' ({cells})' if cells else ''} · {running} running · {self._measured} measured"
        )
        workers = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(2):
            workers.add_column(no_wrap=True)
        workers.add_column(no_wrap=True, overflow="ellipsis")
        workers.add_column(no_wrap=True, justify="right", style="dim")
        for name, worker in sorted(self._workers.items()):
            since = _duration(self._clock() - worker.since)
            workers.add_row(Text(name, style="dim"), Text(worker.cell), Text(worker.note, style="dim"), since)
        latest = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._latest]
        return Group(Text(head, style="bold"), workers, *latest)

    def _say(self, text: Text) -> None:
        self._live.console.print(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
