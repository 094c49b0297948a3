"""Every number of the design's second section, and the properties behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import speedup as sp

rates = st.floats(0, 1)
gammas = st.integers(0, 64)
positive = st.floats(1e-3, 1e3)


def test_expected_tokens_of_the_worked_examples():
    assert sp.expected_tokens(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert sp.expected_tokens(0.4, 4) == pytest.approx(1.6496, abs=1e-12)


@pytest.mark.parametrize(("gamma", "wanted"), [(2, 2.22), (4, 2.80), (8, 3.09), (12, 2.95)])
def test_ideal_speedup_of_the_worked_example(gamma, wanted):
    assert sp.ideal_speedup(sp.expected_tokens(0.8, gamma), gamma, 0.05) == pytest.approx(wanted, abs=0.005)


def test_inter_token_latency_of_the_worked_example():
    expected = sp.expected_tokens(0.8, 4)
    latency = sp.ideal_inter_token_latency(expected, 4, 0.05, 30.0)
    assert latency * expected == pytest.approx(36.0)  # the step
    assert latency == pytest.approx(10.7, abs=0.05)


@pytest.mark.parametrize(("alpha", "wanted"), [(0.8, 2.24), (0.4, 1.10)])
def test_actual_speedup_of_the_worked_example(alpha, wanted):
    expected = sp.expected_tokens(alpha, 4)
    assert sp.serial_speedup(expected, 0.20, 1.25, 0.05) == pytest.approx(wanted, abs=0.005)
    assert sp.actual_speedup(expected, 30.0, 45.0) == pytest.approx(wanted, abs=0.005)


@pytest.mark.parametrize(
    ("gamma", "alpha", "c", "published"),
    [
        (7, 0.75, 0.02, 3.2),
        (7, 0.80, 0.04, 3.3),
        (7, 0.82, 0.11, 2.5),
        (7, 0.62, 0.02, 2.3),
        (5, 0.68, 0.04, 2.4),
        (3, 0.71, 0.11, 2.0),
        (5, 0.65, 0.02, 2.4),
        (5, 0.73, 0.04, 2.6),
        (3, 0.74, 0.11, 2.0),
        (5, 0.53, 0.02, 1.9),
        (3, 0.55, 0.04, 1.8),
        (3, 0.56, 0.11, 1.6),
    ],
)
def test_the_predictions_published_for_t5_xxl(gamma, alpha, c, published):
    assert sp.ideal_speedup(sp.expected_tokens(alpha, gamma), gamma, c) == pytest.approx(published, abs=0.07)


@given(rates, gammas)
def test_expected_tokens_is_the_geometric_sum(alpha, gamma):
    assert sp.expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)), rel=1e-12)


@pytest.mark.parametrize("gap", [0.0, 1e-16, 1e-12, 1e-9, 1e-6])
def test_expected_tokens_is_stable_near_certain_acceptance(gap):
    assert sp.expected_tokens(1.0 - gap, 7) == pytest.approx(8.0 - 28.0 * gap, rel=1e-9)


def test_expected_tokens_at_the_ends():
    assert sp.expected_tokens(0.0, 5) == 1.0
    assert sp.expected_tokens(1.0, 5) == 6.0
    assert sp.expected_tokens(0.3, 0) == 1.0


@given(rates, gammas)
def test_one_more_proposal_never_lowers_expected_tokens(alpha, gamma):
    assert sp.expected_tokens(alpha, gamma + 1) >= sp.expected_tokens(alpha, gamma)


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_geometric_marginals_give_the_geometric_expectation(alpha, gamma):
    marginals = [alpha**i for i in range(1, gamma + 1)]
    assert sp.expected_tokens_from_marginals(marginals) == pytest.approx(sp.expected_tokens(alpha, gamma))


@given(st.floats(0.001, 1), st.floats(0, 2))
def test_one_proposal_pays_in_the_ideal_model_exactly_when_alpha_exceeds_c(alpha, c):
    pays = sp.ideal_speedup(sp.expected_tokens(alpha, 1), 1, c) > 1
    if abs(alpha - c) > 1e-9:
        assert pays == (alpha > c)


@given(st.floats(1, 10), positive, positive, positive, positive)
def test_serial_and_measured_speedup_agree_and_break_even_has_their_sign(expected, tau0, draft, verify, overhead):
    d, v, h = draft / tau0, verify / tau0, overhead / tau0
    serial = sp.serial_speedup(expected, d, v, h)
    assert serial == pytest.approx(sp.actual_speedup(expected, tau0, draft + verify + overhead))
    margin = sp.break_even_margin(expected, d, v, h)
    if abs(margin) > 1e-9:
        assert (margin > 0) == (serial > 1)


@given(st.floats(0, 0.999), st.floats(0, 1), st.lists(st.integers(0, 16), min_size=1, max_size=6))
def test_best_gamma_is_no_worse_than_any_choice(alpha, c, choices):
    best = sp.best_gamma(alpha, c, choices)

    def ideal(gamma):
        return sp.ideal_speedup(sp.expected_tokens(alpha, gamma), gamma, c)

    assert best in choices
    assert all(ideal(best) >= ideal(gamma) for gamma in choices)


def explained(speedup, alpha, gamma, c, d, v, h, reaches, emitted):
    return sp.explain(
        speedup,
        alpha=alpha,
        gamma=gamma,
        c=c,
        d=d,
        v=v,
        h=h,
        reaches=np.array(reaches, dtype=np.int64),
        emitted=emitted,
    )


def test_why_the_worked_example_is_not_2_80():
    """Verification takes a quarter of a step more and overhead a twentieth: 2.24 is left, and 1/4 costs five times 1/20
    on a log scale."""
    alpha, gamma, c, d, v, h = 0.8, 4, 0.05, 0.20, 1.25, 0.05
    expected = sp.expected_tokens(alpha, gamma)
    measured = sp.serial_speedup(expected, d, v, h)
    found = explained(measured, alpha, gamma, c, d, v, h, [4] * 10, expected)
    ideal = sp.ideal_speedup(expected, gamma, c)
    assert (ideal, measured) == (pytest.approx(2.80, abs=0.005), pytest.approx(2.24, abs=0.005))
    assert ideal * found.verification * found.overhead == pytest.approx(measured)
    assert math.log(found.verification) == pytest.approx(5 * math.log(found.overhead))
    assert (found.drafting, found.proposals, found.independence, found.occupancy) == pytest.approx((1, 1, 1, 1))


@given(
    speedup=st.floats(0.1, 10),
    alpha=rates,
    gamma=st.integers(1, 12),
    c=st.floats(0, 2),
    phases=st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.floats(0, 5)),
    reaches=st.lists(st.integers(0, 12), min_size=1, max_size=20),
    emitted=st.floats(1, 13),
)
def test_the_factors_lead_from_the_ideal_through_the_geometric_to_the_measured(
    speedup, alpha, gamma, c, phases, reaches, emitted
):
    found = explained(speedup, alpha, gamma, c, *phases, [min(reach, gamma) for reach in reaches], emitted)
    expected = sp.expected_tokens(alpha, gamma)
    geometric = sp.ideal_speedup(expected, gamma, c) * found.drafting * found.verification * found.overhead
    assert geometric == pytest.approx(sp.serial_speedup(expected, *phases))
    assert geometric * found.proposals * found.independence * found.occupancy == pytest.approx(speedup)
    assert found.proposals <= 1 + 1e-12
    for factor, grew in ((found.drafting, phases[0] - gamma * c), (found.verification, phases[1] - 1)):
        assert (factor < 1) == (grew > 0) or factor == pytest.approx(1)


@given(positive, positive)
def test_the_logarithmic_mean_is_symmetric_and_lies_between_geometric_and_arithmetic(x, y):
    mean = sp.logarithmic_mean(x, y)
    assert mean == pytest.approx(sp.logarithmic_mean(y, x))
    assert math.sqrt(x * y) * (1 - 1e-9) <= mean <= (x + y) / 2 * (1 + 1e-9)
    assert math.exp((x - y) / mean) == pytest.approx(x / y)


@given(st.floats(-1e-7, 1e-7))
def test_the_logarithmic_mean_is_exact_where_its_arguments_all_but_agree(gap):
    assert sp.logarithmic_mean(2 + gap, 2.0) == pytest.approx(2 + gap / 2, rel=1e-13)


def test_best_gamma_of_the_worked_example():
    assert sp.best_gamma(0.8, 0.05, [2, 4, 8, 12]) == 8
    assert sp.best_gamma(0.1, 0.2, [0, 1, 2]) == 0


def test_arrays_broadcast():
    grid = sp.expected_tokens(np.array([[0.5], [0.8]]), np.array([1, 4]))
    assert grid.shape == (2, 2)
    assert grid[1, 1] == pytest.approx(3.3616)


@pytest.mark.parametrize(("alpha", "gamma"), [(-0.1, 2), (1.1, 2), (0.5, -1), (float("nan"), 2)])
def test_impossible_input_is_refused(alpha, gamma):
    with pytest.raises(ValueError, match="alpha"):
        sp.expected_tokens(alpha, gamma)


def test_no_choice_of_gamma_is_refused():
    with pytest.raises(ValueError, match="gammas"):
        sp.best_gamma(0.5, 0.1, [])
