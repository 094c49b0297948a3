"""The figures of one candidate beside its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline import speedup as equations
from pipeline.measurement.acceptance import acceptance
from pipeline.measurement.latency import latency
from pipeline.measurement.overlap import overlap_acceptance_correlation, prompt_output_overlap
from pipeline.measurement.places import by_context, by_output_position
from pipeline.measurement.statistics import speedup_interval
from pipeline.measurement.sums import (
    block_sums,
    counted_requests,
    mean_times,
    output_tokens_per_s,
    total,
    unit_sums,
)
from pipeline.records.measurement import AcceptanceBin, BlockSums, Metrics, Unit
from pipeline.records.trace import Block


class NothingDecodedError(ValueError):
    """Every counted request ended at its first token, which prefill gives: there is no iteration to time."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is known of a candidate beyond its traces."""

    near_ties: int
    draft_weight_bytes: int
    draft_kv_bytes: int
    remeasured_blocks: int = 0
    drifted_blocks: int = 0
    raced_out: bool = False
    speedup_forecast: float | None = None
    emitted_forecast: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a Measurement holds beside its traces."""

    metrics: Metrics
    marginal: tuple[float, ...]
    conditional: tuple[float | None, ...]
    by_output_position: tuple[AcceptanceBin, ...]
    by_context: tuple[AcceptanceBin, ...]
    unit_sums: tuple[Unit, ...]
    block_sums: tuple[BlockSums, ...]


def summarize(
    candidate: Sequence[Block],
    baseline: Sequence[Block],
    *,
    gamma: int,
    concurrency: int,
    level: float,
    observed: Observed,
) -> Summary:
    """All figures of a candidate with ``gamma`` from both arms' blocks; sums are over counted requests.

    ``speedup`` S = (Σemitted/Στ of the candidate) / (Σemitted/Στ of the baseline) with time attributed as in ``sums``;
    both passes of the baseline count. τ0, τ_spec and its phases are means of a counted row's iteration; c is the
    drafting time of one draft step over τ0. ``break_even_margin`` takes the E that S implies, S · (d + v + h): with all
    slots busy that is emitted tokens per row-iteration over all row-iterations, clamped ones included, so that it is
    positive exactly when S > 1. ``speedup_ideal`` is E(α, γ) / (1 + γc), ``speedup_geometric`` E(α, γ) / (d + v + h):
    what independent acceptances at the measured α would give at the ideal and at the real times; the ``factor_``s lead
    from the first through the second to S. ``speedup_e2e`` is the ratio of ``output_tokens_per_s``.
    ``context_tokens`` is the mean committed length of a row before an iteration. Undefined figures are None. Raises
    NothingDecodedError if an arm has no iteration with a counted row.
    """
    ours, theirs = total(candidate), total(baseline)
    if not (ours.row_iterations and theirs.row_iterations):
        raise NothingDecodedError("every request ended at its first token; there is no iteration to time")
    requests = tuple(counted_requests(candidate))
    accepted = acceptance(requests, gamma)
    times, tau0 = mean_times(candidate), mean_times(baseline).tau_ms
    d, v, h = times.tau_draft_ms / tau0, times.tau_verify_ms / tau0, times.tau_overhead_ms / tau0
    c = d / times.draft_steps if times.draft_steps else None
    alpha = accepted.acceptance_rate
    s = ours.tokens_per_ms / theirs.tokens_per_ms
    units, blocks = unit_sums(candidate, baseline), block_sums(candidate, baseline)
    low, high = speedup_interval(s, units, blocks, concurrency, level) or (None, None)
    rate, baseline_rate = output_tokens_per_s(candidate), output_tokens_per_s(baseline)
    seen = latency(candidate)
    pad, context = _batch_shape(candidate)
    why = None
    if alpha is not None and c is not None:
        emitted = ours.emitted / ours.row_iterations
        reaches = accepted.reaches
        why = equations.explain(s, alpha=alpha, gamma=gamma, c=c, d=d, v=v, h=h, reaches=reaches, emitted=emitted)
    metrics = Metrics(
        speedup=s,
        speedup_low=low,
        speedup_high=high,
        interval_level=level,
        units=len(units),
        blocks=len(blocks),
        speedup_e2e=rate / baseline_rate,
        speedup_ideal=_ideal(alpha, gamma, c),
        speedup_geometric=_geometric(alpha, gamma, d, v, h),
        factor_drafting=why and why.drafting,
        factor_verification=why and why.verification,
        factor_overhead=why and why.overhead,
        factor_proposals=why and why.proposals,
        factor_independence=why and why.independence,
        factor_occupancy=why and why.occupancy,
        emitted_per_verification=accepted.emitted_per_verification,
        acceptance_rate=alpha,
        draft_acceptance_rate=accepted.draft_acceptance_rate,
        proposed_per_iteration=accepted.proposed_per_iteration,
        accepted_per_iteration=accepted.accepted_per_iteration,
        acceptance_first=accepted.acceptance_first,
        clamped_fraction=accepted.clamped_fraction,
        tau0_ms=tau0,
        tau_draft_ms=times.tau_draft_ms,
        tau_verify_ms=times.tau_verify_ms,
        tau_overhead_ms=times.tau_overhead_ms,
        tau_spec_ms=times.tau_ms,
        d=d,
        v=v,
        h=h,
        c=c,
        break_even_margin=float(equations.break_even_margin(s * (d + v + h), d, v, h)),
        tpot_ms_p50=seen.tpot.p50,
        tpot_ms_p95=seen.tpot.p95,
        tpot_ms_p99=seen.tpot.p99,
        gap_ms_p50=seen.gap.p50,
        gap_ms_p95=seen.gap.p95,
        gap_ms_p99=seen.gap.p99,
        ttft_ms_p50=seen.ttft.p50,
        ttft_ms_p95=seen.ttft.p95,
        ttft_ms_p99=seen.ttft.p99,
        output_tokens_per_s=rate,
        baseline_output_tokens_per_s=baseline_rate,
        draft_weight_bytes=observed.draft_weight_bytes,
        draft_kv_bytes=observed.draft_kv_bytes,
        pad_fraction=pad,
        context_tokens=context,
        prompt_output_overlap=prompt_output_overlap(requests),
        overlap_acceptance_correlation=overlap_acceptance_correlation(requests),
        near_ties=observed.near_ties,
        remeasured_blocks=observed.remeasured_blocks,
        drifted_blocks=observed.drifted_blocks,
        raced_out=observed.raced_out,
        speedup_forecast=observed.speedup_forecast,
        emitted_forecast=observed.emitted_forecast,
    )
    return Summary(
        metrics=metrics,
        marginal=accepted.marginal,
        conditional=accepted.conditional,
        by_output_position=by_output_position(requests),
        by_context=by_context(requests),
        unit_sums=units,
        block_sums=blocks,
    )


def _ideal(alpha: float | None, gamma: int, c: float | None) -> float | None:
    if alpha is None or c is None:
        return None
    return float(equations.ideal_speedup(equations.expected_tokens(alpha, gamma), gamma, c))


def _geometric(alpha: float | None, gamma: int, d: float, v: float, h: float) -> float | None:
    if alpha is None:
        return None
    return float(equations.serial_speedup(equations.expected_tokens(alpha, gamma), d, v, h))


def _batch_shape(blocks: Iterable[Block]) -> tuple[float, float]:
    """(share of verified positions that were padding, mean committed length), over iterations with a counted row."""
    rows = [
        (i.active, i.active + i.proposed, (i.active + i.proposed) / (1.0 - i.pad_fraction), i.context_tokens)
        for block in blocks
        for i in block.trace.iterations
        if i.counted
    ]
    active, live, run, context = (float(x) for x in np.array(rows, dtype=np.float64).sum(axis=0))
    return 1.0 - live / run, context / active
