"""A small sweep on the simulated machine, for the tests of the main job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pipeline.interrupt import Interrupt
from pipeline.records.cell import Sampling, Workload
from pipeline.records.settings import (
    ClusterSettings,
    DraftChoice,
    EngineSettings,
    SearchSettings,
    SweepSettings,
    TargetChoice,
    TrackingSettings,
)
from pipeline.records.target import DraftModel, Ngram, Target
from pipeline.sweep import SweepOutcome, run_sweep

GOOD, BAD = Ngram(name="good"), DraftModel(name="bad", source="simulated:")


class Recorder:
    """A Progress that remembers; ``on_measured`` lets a test act in the middle."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.measured_labels: list[str] = []
        self.on_measured = lambda: None

    def expect(self, cells): ...
    def cell_started(self, cell, worker): ...
    def note(self, worker, text): ...
    def decided(self, decision): ...
    def close(self): ...

    def measured(self, measurement):
        self.measured_labels.append(f"{measurement.kind} {measurement.candidate.label}")
        self.on_measured()

    def warn(self, text):
        self.warnings.append(text)


def settings(tmp_path: Path, machine: str = "", **changes) -> SweepSettings:
    base = SweepSettings(
        name="test",
        output_dir=str(tmp_path / "runs"),
        targets=(
            TargetChoice(
                target=Target(name="sim", source=f"simulated:?alpha.good=.9&alpha.bad=.05&draft_ms.bad=5&{machine}"),
                drafts=(DraftChoice(draft=BAD, gammas=(2,)), DraftChoice(draft=GOOD, gammas=(2, 4))),
            ),
        ),
        workloads=(Workload(name="chat", output_tokens=16),),
        samplings=(Sampling(name="greedy"),),
        concurrency=(1, 4),
        search=SearchSettings(strategy="grid"),
        engine=EngineSettings(name="simulated"),
        cluster=ClusterSettings(cpus_per_worker=1, retries=1),
        tracking=TrackingSettings(enabled=False),
    )
    return replace(base, **changes)


def run(wanted: SweepSettings, recorder: Recorder | None = None, interrupt: Interrupt | None = None) -> SweepOutcome:
    return run_sweep(wanted, recorder or Recorder(), interrupt or Interrupt())


def statuses(outcome: SweepOutcome) -> list[str]:
    return [decision.status for decision in outcome.decisions]


def folder(outcome: SweepOutcome) -> Path:
    return outcome.policy.parent


def drop(outcome: SweepOutcome, *kinds: str, most: int = 1000) -> int:
    """Remove stored records of those kinds, as a kill between two writes would have left them; how many."""
    paths = sorted((folder(outcome) / "measurements").glob("*.json"))
    gone = [path for path in paths if json.loads(path.read_text())["kind"] in kinds][:most]
    for path in gone:
        path.unlink()
    return len(gone)
