"""Costs of an iteration, from passes whose times are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.records.trace import Iteration
from pipeline.search.timing import Costs, Curve, Verification, drafting_costs, looking_cost, verification_costs


def iteration(
    gamma: int, *, rows: int = 1, proposed: int | None = None, draft: float = 0.0, **times: float
) -> Iteration:
    each = gamma if proposed is None else proposed
    verify, overhead = times.get("verify", 10.0), times.get("overhead", 0.0)
    return Iteration(
        start_s=0.0,
        active=rows,
        counted=rows,
        gamma=gamma,
        width=1 + each,
        proposed=rows * each,
        tested=0,
        accepted=0,
        emitted=rows,
        stopped=0,
        context_tokens=0,
        pad_fraction=0.0,
        tau_draft_ms=draft,
        tau_verify_ms=verify,
        tau_overhead_ms=overhead,
        tau_ms=draft + verify + overhead,
    )


def test_verification_is_in_plain_steps_by_positions_and_overhead_by_width() -> None:
    seen = [iteration(g, rows=4, verify=9.0 + 3.0 * g, overhead=1.0 + g) for g in (0, 1, 2) for _ in range(3)]
    costs = verification_costs(seen, (), rows=4)
    verify, overhead = costs.even, costs.overhead
    assert costs.uneven is None
    assert verify([4, 8, 12]) == pytest.approx([0.9, 1.2, 1.5])
    assert verify(10) == pytest.approx(1.35)  # between two widths
    assert overhead([1, 2, 3]) == pytest.approx([0.1, 0.2, 0.3])


def test_iterations_that_fell_short_of_their_width_do_not_count() -> None:
    seen = [iteration(0), iteration(2, verify=20.0), iteration(2, proposed=1, verify=500.0), iteration(2, verify=20.0)]
    seen.append(iteration(0, rows=2, verify=900.0))
    verify = verification_costs(seen, (), rows=1).even
    assert verify([1, 3]) == pytest.approx([1.0, 2.0])


def test_a_burst_of_other_load_moves_no_median() -> None:
    seen = [iteration(g, verify=10.0 + g) for g in (0, 1) for _ in range(5)]
    seen[7] = iteration(1, verify=400.0)
    assert verification_costs(seen, (), rows=1).even(2) == pytest.approx(1.1)


@pytest.mark.parametrize("seen", [[iteration(1)], [iteration(0)], []])
def test_a_pass_without_plain_steps_or_without_proposals_says_nothing(seen: list[Iteration]) -> None:
    with pytest.raises(ValueError, match="plain steps"):
        verification_costs(seen, (), rows=1)


def test_drafting_is_linear_between_the_gammas_tried_and_free_without_proposals() -> None:
    seen = [iteration(0), iteration(1, draft=3.0), iteration(5, draft=11.0)] * 2
    draft = drafting_costs(seen)
    assert draft([0, 1, 3, 5]) == pytest.approx([0.0, 0.3, 0.7, 1.1])


def test_drafts_that_were_cut_are_timed_by_what_they_proposed() -> None:
    cut = [iteration(8, proposed=k, draft=2.0 + k) for k in (2, 4) for _ in range(2)]
    draft = drafting_costs([iteration(0), *cut])
    assert draft([0, 2, 3, 4, 8]) == pytest.approx([0.0, 0.4, 0.5, 0.6, 1.0])


def test_drafting_that_takes_no_time_costs_nothing() -> None:
    assert drafting_costs([iteration(0), iteration(2), iteration(2)])([0, 1, 2]) == pytest.approx([0.0] * 3)


def test_looking_takes_as_long_whatever_it_finds() -> None:
    seen = [iteration(0), iteration(4, proposed=0, draft=0.5), iteration(4, draft=0.5)]
    assert looking_cost(seen)([0, 1, 4]) == pytest.approx([0.05] * 3)


def test_rows_that_propose_unlike_numbers_have_a_curve_of_their_own() -> None:
    even = [iteration(g, rows=4, verify=10.0 + 2.0 * g) for g in (0, 1, 2) for _ in range(3)]
    one = [replace(iteration(2, rows=4, verify=14.0), proposed=2)] * 3
    three = [replace(iteration(2, rows=4, verify=19.0), proposed=6)] * 3
    plain = [iteration(0, rows=4)] * 3
    costs = verification_costs(even, [*plain, *one, *three], rows=4)
    assert costs.uneven is not None
    assert costs.uneven([4, 6, 8, 10]) == pytest.approx([1.0, 1.4, 1.65, 1.9])
    assert costs.even([4, 8, 12]) == pytest.approx([1.0, 1.2, 1.4])


def test_a_total_that_came_up_by_chance_moves_no_curve() -> None:
    even = [iteration(g, rows=4, verify=10.0 + g) for g in (0, 1, 4) for _ in range(3)]
    seen = [iteration(0, rows=4)] * 3 + [
        replace(iteration(4, rows=4, verify=v), proposed=p) for p, v in ((4, 12.0), (12, 13.0)) for _ in range(3)
    ]
    clamped = replace(iteration(4, rows=4, verify=90.0), proposed=10)  # rows near their limit, and a hiccup
    costs = verification_costs(even, [*seen, clamped], rows=4)
    assert costs.uneven is not None
    assert costs.uneven([8, 16]) == pytest.approx([1.2, 1.3])


def test_costs_follow_what_the_rows_propose() -> None:
    even, flat = Curve(np.array([2.0, 10.0]), np.array([1.0, 3.0]), 0.0), Curve(np.array([0.0]), np.array([0.0]), 0.0)
    uneven = Curve(np.array([2.0, 10.0]), np.array([1.0, 5.0]), 0.0)
    most, total = np.array([3.0, 2.0, 0.0]), np.array([4.0, 4.0, 0.0])  # (3, 1), (2, 2), (0, 0)
    packed = Costs(Verification(2, even, uneven, flat), flat).phases(most, total)[1]
    padded = Costs(Verification(2, even, None, flat), flat).phases(most, total)[1]
    assert packed == pytest.approx([3.0, 2.0, 1.0])
    assert padded == pytest.approx([2.5, 2.0, 1.0])


def test_an_error_is_of_the_whole_iteration() -> None:
    def curve(error: float) -> Curve:
        return Curve(np.array([0.0]), np.array([1.0]), error)

    costs = Costs(Verification(1, curve(0.03), None, curve(0.0)), curve(0.08))
    assert costs.error(0.0, 1.0, 0.0) == pytest.approx(0.03)
    assert costs.error(1.0, 1.0, 0.0) == pytest.approx((0.015**2 + 0.04**2) ** 0.5)


def test_noise_shows_in_the_error() -> None:
    calm = [iteration(g, verify=10.0) for g in (0, 1) for _ in range(8)]
    wild = [iteration(g, verify=10.0 * (1.0 + 0.2 * (k % 3))) for g in (0, 1) for k in range(8)]
    assert verification_costs(calm, (), 1).even.error == 0.0
    assert 0.02 < verification_costs(wild, (), 1).even.error < 0.3
