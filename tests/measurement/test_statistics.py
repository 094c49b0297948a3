"""Intervals: exact where there is no noise, indifferent to units and to which arm is which, and they cover."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log

import numpy as np
import pytest
import scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.measurement.statistics import decisive, jackknife_variance, log_ratio, speedup_interval
from pipeline.records.measurement import BlockSums, Unit

counts = st.integers(1, 400)
times = st.floats(0.1, 1e4)
units_of_any_kind = st.lists(
    st.builds(
        Unit,
        prompt_id=st.uuids().map(str),
        emitted=counts,
        row_iterations=counts,
        tau_ms=times,
        baseline_emitted=counts,
        baseline_row_iterations=counts,
        baseline_tau_ms=times,
    ),
    min_size=3,
    max_size=12,
)
blocks_of_any_kind = st.lists(
    st.builds(BlockSums, index=st.integers(0, 99), tau_ms=times, baseline_tau_ms=times), min_size=2, max_size=8
)
concurrencies = st.sampled_from([1, 8])


def speedup_of(units):
    return (sum(u.emitted for u in units) / sum(u.tau_ms for u in units)) / (
        sum(u.baseline_emitted for u in units) / sum(u.baseline_tau_ms for u in units)
    )


def interval(units, blocks, concurrency, level=0.95):
    return speedup_interval(speedup_of(units), units, blocks, concurrency, level)


def same_pace(n, emitted, tau_ms, baseline_tau_ms):
    """``n`` prompts of different lengths, each at the very same pace."""
    return [
        Unit(
            prompt_id=f"p{k}",
            emitted=emitted * k,
            row_iterations=10 * k,
            tau_ms=tau_ms * k,
            baseline_emitted=10 * k,
            baseline_row_iterations=10 * k,
            baseline_tau_ms=baseline_tau_ms * k,
        )
        for k in range(1, n + 1)
    ]


@given(units_of_any_kind, blocks_of_any_kind, concurrencies, st.sampled_from([1e-3, 0.5, 1e3]))
def test_the_unit_of_time_does_not_matter(units, blocks, concurrency, factor):
    scaled = [replace(u, tau_ms=u.tau_ms * factor, baseline_tau_ms=u.baseline_tau_ms * factor) for u in units]
    scaled_blocks = [replace(b, tau_ms=b.tau_ms * factor, baseline_tau_ms=b.baseline_tau_ms * factor) for b in blocks]
    assert interval(scaled, scaled_blocks, concurrency) == pytest.approx(interval(units, blocks, concurrency), rel=1e-6)


@given(units_of_any_kind, blocks_of_any_kind, concurrencies)
def test_swapping_the_arms_turns_the_interval_over(units, blocks, concurrency):
    swapped = [
        Unit(
            prompt_id=u.prompt_id,
            emitted=u.baseline_emitted,
            row_iterations=u.baseline_row_iterations,
            tau_ms=u.baseline_tau_ms,
            baseline_emitted=u.emitted,
            baseline_row_iterations=u.row_iterations,
            baseline_tau_ms=u.tau_ms,
        )
        for u in units
    ]
    swapped_blocks = [BlockSums(index=b.index, tau_ms=b.baseline_tau_ms, baseline_tau_ms=b.tau_ms) for b in blocks]
    low, high = interval(units, blocks, concurrency)
    assert interval(swapped, swapped_blocks, concurrency) == pytest.approx((1 / high, 1 / low), rel=1e-6)


@given(units_of_any_kind, blocks_of_any_kind, concurrencies, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_higher_level_is_a_wider_interval_around_the_speedup(units, blocks, concurrency, one, other):
    narrow, wide = (interval(units, blocks, concurrency, level) for level in sorted((one, other)))
    assert wide[0] <= narrow[0] <= speedup_of(units) * (1 + 1e-12)
    assert wide[1] >= narrow[1] >= speedup_of(units) * (1 - 1e-12)


@given(st.integers(2, 12), st.integers(10, 50), times, times, concurrencies)
def test_noiseless_data_have_an_exact_interval(n, emitted, tau_ms, baseline_tau_ms, concurrency):
    units = same_pace(n, emitted, tau_ms, baseline_tau_ms)
    blocks = [BlockSums(index=i, tau_ms=tau_ms, baseline_tau_ms=baseline_tau_ms) for i in range(3)]
    speedup = emitted * baseline_tau_ms / (10 * tau_ms)
    assert interval(units, blocks, concurrency) == pytest.approx((speedup, speedup), rel=1e-9)


@given(units_of_any_kind, blocks_of_any_kind)
def test_at_one_request_at_a_time_blocks_say_nothing_more(units, blocks):
    assert interval(units, blocks, 1) == interval(units, [], 1)


def test_two_units_by_hand():
    units = [
        Unit(
            prompt_id=name,
            emitted=10,
            row_iterations=5,
            tau_ms=tau_ms,
            baseline_emitted=10,
            baseline_row_iterations=10,
            baseline_tau_ms=100,
        )
        for name, tau_ms in (("a", 40.0), ("b", 60.0))
    ]
    # Left out: log 100/60 and log 100/40; jackknife variance (n-1)/n Σ(θ-mean)² = ½ · 2 · (½ log 60/40)².
    half = 12.7062047 * 0.5 * log(60 / 40)
    assert interval(units, [], 1) == pytest.approx((2 * exp(-half), 2 * exp(half)))
    assert jackknife_variance(np.array([1.0, 2.0, 6.0])) == pytest.approx(2 / 3 * 14)


def test_three_prompts_in_two_blocks_by_hand():
    units = [
        Unit(
            prompt_id=name,
            emitted=emitted,
            row_iterations=10,
            tau_ms=100.0,
            baseline_emitted=10,
            baseline_row_iterations=10,
            baseline_tau_ms=100.0,
        )
        for name, emitted in (("a", 10), ("b", 20), ("c", 30))
    ]
    blocks = [BlockSums(index=i, tau_ms=10.0, baseline_tau_ms=tau0) for i, tau0 in enumerate((10.0, 20.0))]
    left = np.log([50 / 20, 40 / 20, 30 / 20])  # log E without a, b, c
    of_tokens = 2 / 3 * np.sum((left - left.mean()) ** 2)
    of_time = log(2) ** 2 / 2 / 2  # the variance of log 1 and log 2, with n − 1, over n = 2 blocks
    variance = of_tokens + of_time
    df = variance**2 / (of_tokens**2 / 2 + of_time**2 / 1)  # Welch and Satterthwaite
    half = scipy.stats.t.ppf(0.975, df) * variance**0.5
    low, high = interval(units, blocks, 4)
    assert log(high / low) == pytest.approx(2 * half, rel=1e-6)


def test_nothing_is_known_of_too_few_units_or_blocks():
    units = same_pace(3, 20, 50.0, 100.0)
    blocks = [BlockSums(index=0, tau_ms=5, baseline_tau_ms=10)]
    assert interval(units[:1], blocks, 1) is None
    assert interval(units[:1], blocks * 2, 8) is None
    assert interval(units, blocks, 8) is None
    assert interval(units, blocks * 2, 8) is not None
    alone = [units[0], replace(units[1], emitted=0, tau_ms=0.0)]
    assert interval(alone, blocks, 1) is None
    with pytest.raises(ValueError, match="level"):
        interval(units, blocks, 1, level=1.0)


def test_eight_prompts_and_two_blocks_decide(make_measurement):
    assert decisive(make_measurement(units=8).metrics)
    assert not decisive(make_measurement(units=7).metrics)
    assert not decisive(make_measurement(units=20, blocks=1).metrics)
    assert not decisive(make_measurement(units=20, speedup_low=None, speedup_high=None).metrics)


def test_candidates_are_compared_over_their_common_prompts(make_measurement):
    fast, slow = make_measurement(speedup=2.0, units=12), make_measurement(speedup=1.6, units=8)
    ratio, error = log_ratio(fast, slow)
    assert ratio == pytest.approx(log(2.0 / 1.6))
    assert error == pytest.approx(0, abs=1e-9)
    assert log_ratio(slow, fast)[0] == pytest.approx(-ratio)


def test_pairing_cancels_what_two_candidates_share(make_measurement):
    a, b = make_measurement(speedup=2.0, spread=0.3), make_measurement(speedup=1.9, spread=0.3)
    assert log_ratio(a, b)[1] == pytest.approx(0, abs=1e-9)
    assert log_ratio(a, make_measurement(speedup=1.9, spread=-0.3))[1] > 0.1


def with_times(measurement, times):
    """``measurement`` of as many prompts, each with 10 tokens in so many ms, 100 without a draft."""
    units = tuple(replace(u, emitted=10, tau_ms=ms) for u, ms in zip(measurement.unit_sums, times, strict=True))
    return replace(measurement, unit_sums=units)


def test_two_paired_candidates_by_hand(make_measurement):
    """Left out one by one, a is 50/60 and 50/40 of b: the jackknife of the logs is that of log 60/40 between them."""
    a, b = (with_times(make_measurement(units=2), times) for times in ((40.0, 60.0), (50.0, 50.0)))
    assert log_ratio(a, b) == (pytest.approx(0.0), pytest.approx(0.5 * log(60 / 40)))
    shared = with_times(make_measurement(units=2), (80.0, 120.0))
    assert log_ratio(a, shared) == (pytest.approx(log(2)), pytest.approx(0.0, abs=1e-9)), "what is shared cancels"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(times, times), min_size=3, max_size=9))
def test_the_error_is_the_jackknifes_of_the_difference_itself(make_measurement, pairs):
    a, b = (with_times(make_measurement(units=len(pairs)), column) for column in zip(*pairs, strict=True))
    left = []
    for out in range(len(pairs)):
        less_a, less_b = (replace(m, unit_sums=m.unit_sums[:out] + m.unit_sums[out + 1 :]) for m in (a, b))
        left.append(log_ratio(less_a, less_b)[0])
    n = len(pairs)
    expected = ((n - 1) / n * sum((x - sum(left) / n) ** 2 for x in left)) ** 0.5
    assert log_ratio(a, b)[1] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_at_concurrency_shared_noise_cancels_in_tokens_and_in_time(make_measurement):
    """Prompts that are easy for both, and blocks that were slow for both, leave the difference sure."""
    cell = replace(make_measurement().cell, concurrency=8)

    def made(speedup, ease=0.3, slow=0.2):
        m = make_measurement(speedup=speedup)
        units = tuple(replace(u, emitted=round(u.emitted * (1 + ease * (-1) ** i))) for i, u in enumerate(m.unit_sums))
        blocks = tuple(replace(b, tau_ms=b.tau_ms * (1 + slow * (b.index % 2))) for b in m.block_sums)
        return replace(m, cell=cell, unit_sums=units, block_sums=blocks)

    assert log_ratio(made(2.0), made(1.6))[1] == pytest.approx(0.0, abs=1e-9)
    assert log_ratio(made(2.0), made(1.6, ease=-0.3))[1] > 0.1
    assert log_ratio(made(2.0), made(1.6, slow=0.0))[1] == pytest.approx(log(1.2) / 2 * (6 / 5) ** 0.5 / 6**0.5)


def test_of_strangers_nothing_is_known(make_measurement):
    a, b = make_measurement(speedup=2.0), make_measurement(speedup=1.0)
    apart = replace(b, unit_sums=tuple(replace(u, prompt_id=f"other-{u.prompt_id}") for u in b.unit_sums))
    assert log_ratio(a, apart) == (pytest.approx(log(2.0)), inf)
    with pytest.raises(ValueError, match="two cells"):
        log_ratio(a, replace(b, cell=replace(b.cell, workload="math")))


def test_at_concurrency_the_error_has_the_blocks_times_in_it(make_measurement):
    a, b = make_measurement(speedup=2.0), make_measurement(speedup=1.6)
    cell = replace(a.cell, concurrency=8)
    a, b = replace(a, cell=cell), replace(b, cell=cell)
    assert log_ratio(a, b)[1] == pytest.approx(0, abs=1e-9)
    noisy = replace(a, block_sums=tuple(replace(s, tau_ms=s.tau_ms * (1 + 0.1 * (s.index % 2))) for s in a.block_sums))
    assert log_ratio(noisy, b)[1] == pytest.approx(log(1.1) / 2 * (6 / 5) ** 0.5 / 6**0.5)
    assert log_ratio(replace(noisy, block_sums=noisy.block_sums[:1]), b)[1] == inf


def _simulated(rng, prompts, concurrency, block_noise):
    """A cell's units and blocks: prompts whose E differs, blocks whose time is shared; and the true speedup."""
    size = 80
    rows = rng.integers(20, 40, prompts)
    ease = np.exp(rng.normal(0, 0.25, prompts))
    units, blocks = [], []
    for start in range(0, prompts, concurrency):
        tau, tau0 = 20 * np.exp(rng.normal(0, block_noise)), 10 * np.exp(rng.normal(0, block_noise))
        blocks.append(BlockSums(index=start, tau_ms=float(tau), baseline_tau_ms=float(tau0)))
        for k in range(start, start + concurrency):
            emitted = max(1, round(rows[k] * 2.5 * ease[k] + rng.normal(0, 3)))
            units.append(
                Unit(
                    prompt_id=str(k),
                    emitted=emitted,
                    row_iterations=int(rows[k]),
                    tau_ms=float(rows[k] * tau),
                    baseline_emitted=size,
                    baseline_row_iterations=size,
                    baseline_tau_ms=float(size * tau0),
                )
            )
    truth = 2.5 * np.exp(0.25**2 / 2) / 2  # E of all prompts together, over τ_spec/τ0; the noise has median 1
    return units, blocks, truth


def _coverage(cells, **kwargs):
    rng = np.random.default_rng(20)
    hits = 0
    for _ in range(cells):
        units, blocks, truth = _simulated(rng, **kwargs)
        low, high = interval(units, blocks, kwargs["concurrency"])
        hits += low <= truth <= high
    return hits / cells


def test_intervals_cover_roughly():
    assert _coverage(200, prompts=12, concurrency=1, block_noise=0.03) > 0.88
    assert _coverage(200, prompts=48, concurrency=8, block_noise=0.08) > 0.88


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "concurrency", "block_noise"), [(6, 1, 0.02), (12, 1, 0.1), (12, 2, 0.1), (48, 8, 0.02), (48, 8, 0.1)]
)
def test_intervals_cover_what_they_say(prompts, concurrency, block_noise):
    coverage = _coverage(1500, prompts=prompts, concurrency=concurrency, block_noise=block_noise)
    assert 0.92 <= coverage <= 0.98
