"""The figures of a candidate: against the equations, and defined or None."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from math import isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_rounds import GREEDY, NGRAM, OFF, SMALL

from pipeline import speedup as equations
from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.summary import NothingDecodedError, Observed, summarize
from pipeline.records.target import Candidate, Target
from pipeline.records.trace import Block

OBSERVED = Observed(near_ties=2, draft_weight_bytes=100, draft_kv_bytes=10)
CHAIN = Candidate(draft=SMALL, gamma=4)


def arms(machine, candidate, *, slots=1, prompts=6, length=40, blocks=1):
    """The candidate's and the baseline's blocks of one engine."""
    engine = SimulatedEngine(machine)
    engine.open(Target(name="sim", source="x"), (), Limits(concurrency=slots, max_gamma=candidate.gamma))
    out: tuple[list[Block], list[Block]] = ([], [])
    for index in range(blocks):
        requests = [
            Request(
                request_id=f"p{n}-{index}#0",
                prompt_id=f"p{n}-{index}",
                tokens=(65 + n, 66 + index, 67),
                max_new_tokens=length,
                seed=0,
                counted=n < prompts,
            )
            for n in range(prompts + (slots - 1) * (candidate.gamma + 1))
        ]
        for place, draft in ((0, None), (1, candidate.draft), (2, None)):
            schedule = Schedule.constant(candidate.gamma if draft else 0)
            trace = engine.run(requests, GREEDY, draft, schedule)
            out[0 if place == 1 else 1].append(Block(index=index, place=place, trace=trace))
    return out


def summary(machine, candidate, *, slots=1, level=0.95, **kwargs):
    ours, theirs = arms(machine, candidate, slots=slots, **kwargs)
    return summarize(ours, theirs, gamma=candidate.gamma, concurrency=slots, level=level, observed=OBSERVED)


def test_without_noise_the_speedup_is_what_the_machine_says():
    machine = Machine(noise=0, tau0_ms=10, token_ms=0, draft_ms=0.5, overhead_ms=0, alpha=1, alpha_spread=0)
    metrics = summary(machine, Candidate(draft=SMALL, gamma=4), length=1 + 5 * 20).metrics
    assert metrics.speedup == pytest.approx(5 * 10 / 12)
    assert (metrics.tau0_ms, metrics.tau_spec_ms) == pytest.approx((10, 12))
    assert (metrics.d, metrics.v, metrics.h, metrics.c) == pytest.approx((0.2, 1.0, 0.0, 0.05))
    assert metrics.emitted_per_verification == pytest.approx(5)
    assert metrics.speedup_ideal == pytest.approx(metrics.speedup)
    assert metrics.speedup_geometric == pytest.approx(metrics.speedup)
    assert metrics.break_even_margin == pytest.approx(5 - 1.2)
    assert (metrics.speedup_low, metrics.speedup_high) == pytest.approx((metrics.speedup, metrics.speedup))
    assert (metrics.units, metrics.blocks, metrics.interval_level) == (6, 1, 0.95)
    assert (metrics.near_ties, metrics.draft_weight_bytes, metrics.draft_kv_bytes) == (2, 100, 10)


def test_prefill_counts_in_the_whole_run_only():
    machine = Machine(noise=0, alpha=1, alpha_spread=0, prefill_ms=50)
    metrics = summary(machine, Candidate(draft=SMALL, gamma=4)).metrics
    assert 1 < metrics.speedup_e2e < metrics.speedup
    assert metrics.speedup_e2e == pytest.approx(metrics.output_tokens_per_s / metrics.baseline_output_tokens_per_s)
    free = Machine(noise=0, alpha=1, alpha_spread=0, prefill_ms=0)
    alone = summary(free, Candidate(draft=SMALL, gamma=4)).metrics
    assert alone.speedup_e2e == pytest.approx(alone.speedup * 1.0, rel=1e-9)


candidates = st.one_of(
    st.just(OFF),
    st.builds(Candidate, draft=st.sampled_from([NGRAM, SMALL]), gamma=st.integers(1, 8)),
)
machines = st.builds(
    Machine,
    alpha=st.floats(0, 1),
    miss=st.sampled_from([0.0, 0.5, 1.0]),
    eos_rate=st.sampled_from([0.0, 0.1]),
    token_ms=st.floats(0, 2),
    draft_ms=st.floats(0, 5),
    noise=st.floats(0, 0.2),
)


@settings(max_examples=60, deadline=None)
@given(
    machine=machines,
    candidate=candidates,
    slots=st.sampled_from([1, 3]),
    prompts=st.integers(1, 4),
    length=st.integers(12, 30),
    blocks=st.integers(1, 3),
)
def test_figures_agree_with_each_other_and_are_finite(machine, candidate, slots, prompts, length, blocks):
    try:
        found = summary(machine, candidate, slots=slots, prompts=prompts, length=length, blocks=blocks)
    except NothingDecodedError:
        return
    metrics = found.metrics
    for name, value in asdict(metrics).items():
        assert value is None or isfinite(value), name
    assert (metrics.break_even_margin > 0) == (metrics.speedup > 1) or metrics.speedup == pytest.approx(1)
    assert metrics.d + metrics.v + metrics.h == pytest.approx(metrics.tau_spec_ms / metrics.tau0_ms)
    if metrics.speedup_ideal is None:
        assert factors(metrics) == [None] * 6
    else:
        times, tokens = math.prod(factors(metrics)[:3]), math.prod(factors(metrics)[3:])
        assert metrics.speedup_ideal * times == pytest.approx(metrics.speedup_geometric)
        assert metrics.speedup_geometric * tokens == pytest.approx(metrics.speedup)
        assert metrics.factor_proposals <= 1 + 1e-12
    assert len(found.marginal) == len(found.conditional)
    if metrics.speedup_low is not None:
        assert 0 < metrics.speedup_low <= metrics.speedup * (1 + 1e-12)
        assert metrics.speedup <= metrics.speedup_high * (1 + 1e-12)
    if slots == 1:
        assert metrics.factor_occupancy in (None, pytest.approx(1))
        # With prompts one at a time S = τ0 · E / τ_spec, E over all row-iterations.
        expected = sum(u.emitted for u in found.unit_sums) / sum(u.row_iterations for u in found.unit_sums)
        actual = equations.actual_speedup(expected, metrics.tau0_ms, metrics.tau_spec_ms)
        assert metrics.speedup == pytest.approx(actual)


def test_with_all_slots_busy_the_equation_holds_as_well():
    found = summary(Machine(), Candidate(draft=SMALL, gamma=3), slots=4, prompts=4, blocks=3)
    expected = sum(u.emitted for u in found.unit_sums) / sum(u.row_iterations for u in found.unit_sums)
    metrics = found.metrics
    assert metrics.speedup == pytest.approx(equations.actual_speedup(expected, metrics.tau0_ms, metrics.tau_spec_ms))
    assert metrics.break_even_margin == pytest.approx(expected - metrics.d - metrics.v - metrics.h)
    assert metrics.speedup_low < metrics.speedup < metrics.speedup_high


def test_off_beside_off_has_a_speedup_near_one_and_no_acceptance():
    metrics = summary(Machine(noise=0), OFF).metrics
    assert metrics.speedup == pytest.approx(1)
    assert (metrics.acceptance_rate, metrics.c, metrics.speedup_ideal, metrics.speedup_geometric) == (None,) * 4
    assert (metrics.emitted_per_verification, metrics.clamped_fraction, metrics.pad_fraction) == (1.0, 0.0, 0.0)


def test_short_drafts_show_beside_a_high_acceptance():
    machine = Machine(alpha=1, alpha_spread=0, miss=0.75)
    metrics = summary(machine, Candidate(draft=NGRAM, gamma=4), prompts=20).metrics
    assert metrics.acceptance_rate == metrics.draft_acceptance_rate == 1
    assert metrics.proposed_per_iteration == pytest.approx(0.25 * 4, abs=0.35)
    assert metrics.acceptance_first == 1
    assert metrics.emitted_per_verification == pytest.approx(2, abs=0.35)


def test_padding_and_context_are_means_over_verified_rows():
    machine = Machine(noise=0, miss=0.5, alpha=0.5)
    found = summary(machine, Candidate(draft=NGRAM, gamma=4), slots=4, prompts=4)
    assert 0 < found.metrics.pad_fraction < 0.5
    assert 3 < found.metrics.context_tokens < 43


def test_nothing_decoded_has_no_figures():
    with pytest.raises(NothingDecodedError):
        summary(Machine(), Candidate(draft=SMALL, gamma=2), length=1)


def factors(metrics):
    names = ("drafting", "verification", "overhead", "proposals", "independence", "occupancy")
    return [getattr(metrics, f"factor_{name}") for name in names]


def test_the_ideal_machine_loses_nothing():
    machine = Machine(noise=0, tau0_ms=10, token_ms=0, draft_ms=0.5, overhead_ms=0, alpha=1, alpha_spread=0)
    metrics = summary(machine, Candidate(draft=SMALL, gamma=4), length=1 + 5 * 20).metrics
    assert factors(metrics) == pytest.approx([1.0] * 6)


def test_dear_verification_and_missing_proposals_show_in_their_own_factors():
    quiet = {"noise": 0, "tau0_ms": 10, "token_ms": 0, "draft_ms": 0.5, "overhead_ms": 0, "alpha": 1, "alpha_spread": 0}
    candidate = Candidate(draft=SMALL, gamma=4)
    ideal = summary(Machine(**quiet), candidate, length=101).metrics.speedup_ideal
    dear = summary(Machine(**(quiet | {"token_ms": 4.0})), candidate, length=101).metrics
    assert dear.factor_verification == pytest.approx(12 / 22)
    assert factors(replace(dear, factor_verification=1)) == pytest.approx([1.0] * 6)
    missing = summary(Machine(**(quiet | {"miss": 0.5})), candidate, length=101).metrics
    assert missing.factor_proposals < 0.7
    assert missing.factor_drafting > 1.0  # what was not proposed took no time either
    kept = replace(missing, factor_proposals=1, factor_drafting=1)
    assert factors(kept) == pytest.approx([1.0] * 6)
    assert dear.speedup_ideal == pytest.approx(ideal)
    assert missing.speedup_ideal == pytest.approx(ideal)


def test_acceptance_that_comes_in_runs_gives_less_than_its_rate_promises():
    """Half the texts take every proposal and half take none: 48 of 107 tested, 59 of them one by one."""
    candidate, baseline = [], []
    for index, alpha in enumerate((1.0, 0.0)):
        machine = Machine(noise=0, alpha=alpha, alpha_spread=0)
        for mine, theirs in zip((candidate, baseline), arms(machine, CHAIN, length=61), strict=True):
            mine += [replace(block, index=index) for block in theirs]
    metrics = summarize(candidate, baseline, gamma=4, concurrency=1, level=0.95, observed=OBSERVED).metrics
    alpha, reaches = 48 / 107, np.array([4] * 12 + [4] * 56 + [3, 2, 1, 0])
    assert metrics.acceptance_rate == pytest.approx(alpha)
    independent = np.mean(equations.expected_tokens(alpha, reaches))
    assert metrics.factor_independence == pytest.approx((120 / 72) / independent)
    assert metrics.factor_independence < 0.99


def test_the_margin_follows_the_speedup_when_slots_stand_empty():
    """Rows that decode alone pay whole iterations: E over row-iterations would not say so."""
    ours, theirs = arms(Machine(noise=0, eos_rate=0.05), Candidate(draft=SMALL, gamma=4), slots=4, prompts=4)
    for blocks in (ours, theirs):
        blocks[:] = [replace(block, trace=_without_sharing(block.trace)) for block in blocks]
    found = summarize(ours, theirs, gamma=4, concurrency=4, level=0.95, observed=OBSERVED)
    metrics = found.metrics
    phases = metrics.d + metrics.v + metrics.h
    assert metrics.break_even_margin == pytest.approx((metrics.speedup - 1) * phases)


def _without_sharing(trace):
    """As if fillers had run out half way: the iterations of the second half have their counted rows alone."""
    half = len(trace.iterations) // 2
    alone = [replace(i, active=i.counted) if i.counted else i for i in trace.iterations[half:]]
    return replace(trace, iterations=(*trace.iterations[:half], *alone))
