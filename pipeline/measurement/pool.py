"""The looks of a confirmation as one measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.measurement.identity import digest, measurement_id
from pipeline.measurement.summary import Observed, summarize
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.trace import Block


def pool(looks: Sequence[Measurement], baselines: Sequence[Baseline], level: float) -> Measurement:
    """Everything that ``looks`` measured, summarized anew with an interval at ``level``.

    ``looks`` are of one candidate in one cell, with their traces; ``baselines`` holds each look's. Blocks are numbered
    on from look to look; a prompt that several looks decoded is one unit. Raises ValueError for looks that do not
    belong together, or without their baseline.
    """
    if not looks:
        raise ValueError("a confirmation needs at least one look")
    first = looks[0]
    if any((look.sweep, look.cell, look.candidate) != (first.sweep, first.cell, first.candidate) for look in looks):
        raise ValueError("looks of different candidates, cells or sweeps cannot be pooled")
    by_id = {baseline.id: baseline for baseline in baselines}
    candidate_blocks: list[Block] = []
    baseline_blocks: list[Block] = []
    start = 0
    for look in looks:
        missing = [name for name in look.baseline_ids if name not in by_id]
        if missing or not look.baseline_ids:
            raise ValueError(f"look {look.id} lacks its baselines {missing}")
        beside = [block for name in look.baseline_ids for block in by_id[name].trace_blocks]
        if not look.trace_blocks or not beside:
            raise ValueError(f"look {look.id} and its baseline need their traces to be pooled")
        candidate_blocks += [replace(block, index=start + block.index) for block in look.trace_blocks]
        baseline_blocks += [replace(block, index=start + block.index) for block in beside]
        start += 1 + max(block.index for block in (*look.trace_blocks, *beside))
    summary = summarize(
        candidate_blocks,
        baseline_blocks,
        gamma=first.candidate.gamma,
        concurrency=first.cell.concurrency,
        level=level,
        observed=_observed(looks),
    )
    return Measurement(
        id=measurement_id(first.sweep, first.cell, first.candidate, "confirmation", 0),
        content_id=digest(["pool", *(look.content_id for look in looks)]),
        sweep=first.sweep,
        kind="confirmation",
        cell=first.cell,
        candidate=first.candidate,
        replicate=0,
        baseline_ids=tuple(name for look in looks for name in look.baseline_ids),
        parts=tuple(look.id for look in looks),
        provenance=looks[-1].provenance,
        metrics=summary.metrics,
        marginal=summary.marginal,
        conditional=summary.conditional,
        by_output_position=summary.by_output_position,
        by_context=summary.by_context,
        unit_sums=summary.unit_sums,
        block_sums=summary.block_sums,
    )


def _observed(looks: Sequence[Measurement]) -> Observed:
    return Observed(
        near_ties=sum(look.metrics.near_ties for look in looks),
        draft_weight_bytes=max(look.metrics.draft_weight_bytes for look in looks),
        draft_kv_bytes=max(look.metrics.draft_kv_bytes for look in looks),
        remeasured_blocks=sum(look.metrics.remeasured_blocks for look in looks),
        drifted_blocks=sum(look.metrics.drifted_blocks for look in looks),
        speedup_forecast=looks[-1].metrics.speedup_forecast,
        emitted_forecast=looks[-1].metrics.emitted_forecast,
    )
