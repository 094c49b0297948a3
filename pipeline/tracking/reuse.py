"""A measurement of an earlier sweep, taken over by this one: the same figures under this sweep's ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.measurement.identity import measurement_id
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.task import RoundTask


def adopt(
    task: RoundTask, measurement: Measurement, baselines: Sequence[Baseline]
) -> tuple[Measurement, tuple[Baseline, ...]]:
    """``measurement`` and its baselines as ``task``'s sweep would have stored them.

    A baseline keeps an id of its own (made from its old one), since its round in this sweep is not this task's.
    """
    renamed = tuple(
        replace(
            baseline,
            id=measurement_id(f"{task.sweep}<{baseline.id}", task.cell.key, None, task.kind, baseline.replicate),
            sweep=task.sweep,
            cell=task.cell.key,
        )
        for baseline in baselines
    )
    taken = replace(
        measurement,
        id=measurement_id(task.sweep, task.cell.key, measurement.candidate, task.kind, task.replicate),
        sweep=task.sweep,
        cell=task.cell.key,
        baseline_ids=tuple(baseline.id for baseline in renamed),
    )
    return taken, renamed
