"""The figures of one candidate beside its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline import speedup as equations
from pipeline.measurement.acceptance import Acceptance, acceptance
from pipeline.measurement.identity import prompt_id
from pipeline.measurement.latency import latency
from pipeline.measurement.statistics import speedup_interval
from pipeline.measurement.sums import (
    block_sums,
    counted_requests,
    mean_times,
    output_tokens_per_s,
    total,
    unit_sums,
)
from pipeline.records.measurement import BlockSums, Metrics, Unit
from pipeline.records.trace import Block


class NothingDecodedError(ValueError):
    """Every counted request ended at its first token, which prefill gives: there is no iteration to time."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is known of a candidate beyond its traces."""

    near_ties: int
    draft_weight_bytes: int
    draft_kv_bytes: int
    prompt_output_overlap: float
    remeasured_blocks: int = 0
    drifted_blocks: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a Measurement holds beside its traces."""

    metrics: Metrics
    marginal: tuple[float, ...]
    conditional: tuple[float | None, ...]
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
    positive exactly when S > 1. ``speedup_ideal`` takes ``emitted_per_verification`` and c; ``speedup_geometric`` is
    E(α, γ) / (d + v + h), what independent acceptances at the measured α and times would give. ``speedup_e2e`` is the
    ratio of ``output_tokens_per_s``. ``context_tokens`` is the mean committed length of a row before an iteration.
    Undefined figures are None. Raises NothingDecodedError if an arm has no iteration with a counted row.
    """
    ours, theirs = total(candidate), total(baseline)
    if not (ours.row_iterations and theirs.row_iterations):
        raise NothingDecodedError("every request ended at its first token; there is no iteration to time")
    accepted = acceptance(counted_requests(candidate), gamma)
    times, tau0 = mean_times(candidate), mean_times(baseline).tau_ms
    d, v, h = times.tau_draft_ms / tau0, times.tau_verify_ms / tau0, times.tau_overhead_ms / tau0
    c = d / times.draft_steps if times.draft_steps else None
    s = ours.tokens_per_ms / theirs.tokens_per_ms
    units, blocks = unit_sums(candidate, baseline), block_sums(candidate, baseline)
    low, high = speedup_interval(s, units, blocks, concurrency, level) or (None, None)
    rate, baseline_rate = output_tokens_per_s(candidate), output_tokens_per_s(baseline)
    seen = latency(candidate)
    pad, context = _batch_shape(candidate)
    metrics = Metrics(
        speedup=s,
        speedup_low=low,
        speedup_high=high,
        interval_level=level,
        units=len(units),
        blocks=len(blocks),
        speedup_e2e=rate / baseline_rate,
        speedup_ideal=_ideal(accepted, gamma, c),
        speedup_geometric=_geometric(accepted, gamma, d, v, h),
        emitted_per_verification=accepted.emitted_per_verification,
        acceptance_rate=accepted.acceptance_rate,
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
        prompt_output_overlap=observed.prompt_output_overlap,
        near_ties=observed.near_ties,
        remeasured_blocks=observed.remeasured_blocks,
        drifted_blocks=observed.drifted_blocks,
    )
    return Summary(
        metrics=metrics,
        marginal=accepted.marginal,
        conditional=accepted.conditional,
        unit_sums=units,
        block_sums=blocks,
    )


def prompt_output_overlap(blocks: Iterable[Block], prompts: Mapping[str, Sequence[int]]) -> float:
    """The share of counted output tokens that end a 3-gram occurring in the prompt; ``prompts`` by prompt id.

    The 3-gram may begin in the prompt: the first output token ends one with the prompt's last two.
    """
    tokens = found = 0
    grams: dict[str, set[tuple[int, int, int]]] = {}
    for request in counted_requests(blocks):
        name = prompt_id(request.request_id)
        prompt = tuple(prompts[name])
        if name not in grams:
            grams[name] = set(zip(prompt, prompt[1:], prompt[2:], strict=False))
        text = (*prompt[-2:], *request.output)
        found += sum(gram in grams[name] for gram in zip(text, text[1:], text[2:], strict=False))
        tokens += len(request.output)
    return found / tokens if tokens else 0.0


def _ideal(accepted: Acceptance, gamma: int, c: float | None) -> float | None:
    expected = accepted.emitted_per_verification
    return None if expected is None or c is None else float(equations.ideal_speedup(expected, gamma, c))


def _geometric(accepted: Acceptance, gamma: int, d: float, v: float, h: float) -> float | None:
    alpha = accepted.acceptance_rate
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
