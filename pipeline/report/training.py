"""A head's training on the terminal: what is being done, the looks, and the result beside n-gram."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from pipeline.records.head_training import Agreement, HeadReport, Look

NOTE_EVERY_S = 10.0
"""Notes come often; a log takes one of them in this time."""


class TrainingLines:
    """Implements ``training.progress.TrainingProgress``: one line that changes on a terminal, many elsewhere.

    ``clock`` is in seconds and never goes back.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._noted = -NOTE_EVERY_S
        self._status: Status | None = None
        if console.is_interactive:
            self._status = console.status("")
            self._status.start()

    def note(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(f"{self._since()} {text}"))
        elif self._clock() - self._noted >= NOTE_EVERY_S:
            self._noted = self._clock()
            self.say(text)

    def say(self, text: str) -> None:
        """A line is a line: no wrapping, and no markup read into anybody's text."""
        self._console.print(Text(f"{self._since()} {' '.join(text.split())}"), soft_wrap=True)

    def warn(self, text: str) -> None:
        self._console.print(Text(f"warning: {' '.join(text.split())}", style="yellow"), soft_wrap=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _since(self) -> str:
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        return f"{minutes:3}:{seconds:02}"


@contextmanager
def training_progress(console: Console | None = None) -> Iterator[TrainingLines]:
    lines = TrainingLines(console or Console(highlight=False))
    try:
        yield lines
    finally:
        lines.close()


def print_head(folder: Path, report: HeadReport | None, ui_command: str, console: Console) -> None:
    """The result, then where everything lies. Paths and commands are never broken over lines."""
    console.print()
    if report is None:
        console.print(Text("interrupted: what was made is kept, and the same command goes on", style="yellow"))
    else:
        console.print(result_table(report))
        console.print(Text(_told(report)), soft_wrap=True)
        console.print()
    for name, text in (("head", str(folder)), ("MLflow", ui_command)):
        if text:
            console.print(Text(f"{name:<7} {text}"), soft_wrap=True)


def look_line(look: Look) -> str:
    """``step 1200: loss 2.31, watched 2.51, agreement 0.412 0.301 0.244``."""
    agreement = " ".join(f"{share:.3f}" for share in look.watched_agreement)
    return (
        f"step {look.step} ({look.progress:.0%}): loss {look.loss:.3f}, on watched prompts {look.watched_loss:.3f}, "
        f"agreement by draft step {agreement}"
    )


def result_table(report: HeadReport) -> Table:
    """A row for each workload: first-position agreement of head and n-gram, and what the engine saw."""
    table = Table(box=None, pad_edge=False)
    for name in (
        "held-out",
        "prompts",
        "places",
        "head",
        "n-gram",
        "difference",
        "head tok/ver",
        "n-gram tok/ver",
        "γ",
    ):
        table.add_column(name, justify="left" if name == "held-out" else "right")
    for result in report.results:
        table.add_row(
            result.workload,
            str(len(result.prompts)),
            str(result.places),
            _share(result.head),
            _share(result.ngram),
            _share(result.ahead),
            _number(result.head_drafted.emitted_per_verification),
            _number(result.ngram_drafted.emitted_per_verification),
            str(result.head_drafted.gamma),
        )
    return table


def _told(report: HeadReport) -> str:
    return (
        f"learned from {report.learned_places} places in {report.learned_texts} texts "
        f"({report.prompts_written} prompts written by {report.target.name} itself); "
        f"{report.collecting_s / 60:.1f} min collecting, "
        f"{report.learning_s / 60:.1f} min learning, {report.measuring_s / 60:.1f} min measuring; "
        f"it knows the target's token at {report.coverage:.1%} of the held-out places"
    )


def _share(share: Agreement) -> str:
    return f"{share.share:.3f} ({share.low:.3f}–{share.high:.3f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
