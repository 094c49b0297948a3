"""The cells of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.records.cell import Cell
from pipeline.records.settings import SweepSettings, TargetChoice


def cells_of(settings: SweepSettings, accelerator: str) -> Sequence[tuple[Cell, TargetChoice]]:
    """Every cell of a sweep, a target's cells together."""
    return [
        (
            Cell(
                target=choice.target,
                workload=workload,
                sampling=sampling,
                concurrency=concurrency,
                accelerator=accelerator,
            ),
            choice,
        )
        for choice in settings.targets
        for workload in settings.workloads
        for sampling in settings.samplings
        for concurrency in settings.concurrency
    ]
