"""Progress and outcome as a user sees them, on a terminal and in a log."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.policy.decide import decide
from pipeline.records.decision import Decision
from pipeline.report.console import make_progress, print_outcome
from pipeline.report.live import LiveProgress
from pipeline.report.plain import PlainProgress


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> Console:
    return Console(file=io.StringIO(), width=40, highlight=False)


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, highlight=False)


def text(console: Console) -> str:
    return console.file.getvalue()


def decided(make_measurement) -> Decision:
    measurement = make_measurement()
    return decide(measurement.cell, [], make_measurement("c", speedup_low=1.31, speedup_high=1.53), [], 0.03)


def test_a_log_has_one_line_with_a_time_per_event(log, clock, make_measurement) -> None:
    progress = PlainProgress(log, clock)
    measurement = make_measurement()
    progress.expect(4)
    progress.cell_started(measurement.cell, "worker-1")
    progress.note("worker-1", "loading")
    progress.measured(measurement)
    progress.decided(decided(make_measurement))
    progress.warn("the server is\naway [really]")
    progress.close()
    lines = text(log).splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "4 cells to decide",
        "smollm2 · chat · greedy · C1: on worker-1",
        "worker-1: loading",
        "smollm2 · chat · greedy · C1: ngram γ4 1.40× (1.33–1.47), α 0.60, 2.10 tokens per verification",
        f"smollm2 · chat · greedy · C1: on: {decided(make_measurement).reason}",
        "warning: the server is away [really]",
    ]
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)


def test_a_log_is_not_flooded_with_notes(log, clock) -> None:
    progress = PlainProgress(log, clock)
    for second in range(25):
        clock.now = float(second)
        progress.note("worker-1", f"prompt {second}")
        progress.note("worker-2", "waiting")
    assert len(re.findall("worker-1", text(log))) == 3
    assert len(re.findall("worker-2", text(log))) == 1


def test_a_measurement_without_figures_is_still_a_line(log, make_measurement) -> None:
    bare = {"speedup_low": None, "acceptance_rate": None, "emitted_per_verification": None}
    PlainProgress(log).measured(make_measurement(kind="aa", **bare))
    assert "(A/A) 1.40×\n" in text(log)


def test_the_live_display_shows_workers_counts_and_latest_results(screen, clock, make_measurement) -> None:
    measurement = make_measurement()
    progress = LiveProgress(screen, clock)
    progress.cell_started(measurement.cell, "worker-1")
    progress.note("worker-1", "search round 2")
    for i in range(7):
        progress.measured(make_measurement(speedup=1.0 + i / 10))
    clock.now = 65.0
    picture = Console(file=io.StringIO(), width=100)
    picture.print(progress.renderable())
    progress.close()
    seen = text(picture)
    assert "0:01:05 · 0 cells decided · 1 running · 7 measured" in seen
    assert re.search(r"worker-1 +smollm2 · chat · greedy · C1 +search round 2 +0:01:05", seen)
    assert "1.60×" in seen
    assert "1.10×" not in seen


def test_decisions_and_warnings_stay_on_the_screen(screen, clock, make_measurement) -> None:
    progress = LiveProgress(screen, clock)
    progress.cell_started(make_measurement().cell, "worker-1")
    progress.decided(decided(make_measurement))
    progress.warn("MLflow is not usable")
    progress.expect(4)
    picture = Console(file=io.StringIO(), width=100)
    picture.print(progress.renderable())
    progress.close()
    progress.close()
    assert "measured 1.40×" in text(screen)
    assert "warning: MLflow is not usable" in text(screen)
    assert "1/4 cells decided (1 on) · 0 running" in text(picture)
    assert "worker-1" not in text(picture)


def test_a_terminal_gets_the_live_display_and_a_pipe_lines(log, screen) -> None:
    with make_progress(log) as progress:
        assert isinstance(progress, PlainProgress)
    with make_progress(screen) as progress:
        assert isinstance(progress, LiveProgress)


def test_the_cursor_comes_back_when_a_sweep_breaks(screen) -> None:
    with pytest.raises(RuntimeError), make_progress(screen):
        raise RuntimeError
    assert text(screen).rindex("\x1b[?25h") > text(screen).rindex("\x1b[?25l")


@dataclass(frozen=True)
class Ended:
    decisions: tuple[Decision, ...]
    ui_command: str
    interrupted: bool = False
    sweep: str = "demo-0000000000"
    policy: Path = Path("/a/rather/long/folder/name/that/is/wider/than/the/terminal/policy.json")
    measured: int = 12
    kept: int = 3


def test_paths_and_commands_can_be_copied_whole(log, make_measurement) -> None:
    outcome = Ended((decided(make_measurement),), "python -m mlflow ui --backend-store-uri sqlite:////a/b/c.db")
    print_outcome(outcome, log)
    lines = text(log).splitlines()
    assert f"policy  {outcome.policy}" in lines
    assert f"MLflow  {outcome.ui_command}" in lines
    assert "sweep   demo-0000000000 · 12 measured now, 3 kept from before" in lines
    assert not any("interrupted" in line for line in lines)


def test_an_interrupted_sweep_says_how_to_go_on_and_no_tracking_no_command(log) -> None:
    print_outcome(Ended((), "", interrupted=True), log)
    assert "the same command" in text(log)
    assert "MLflow" not in text(log)
