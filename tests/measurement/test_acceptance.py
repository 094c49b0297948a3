"""Acceptance, by hand and against the equations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_rounds import request_trace

from pipeline.measurement.acceptance import acceptance
from pipeline.speedup import expected_tokens_from_marginals


def test_accept_reject_accept_counts_one_and_a_miss_counts_nothing():
    rows = [
        (20, 3, 2, 1, 2),  # one accepted, the next rejected, the third never tested
        (18, 0, 0, 0, 1),  # nothing proposed
        (17, 3, 3, 3, 4),  # all
        (2, 2, 2, 2, 3),  # no room for three
    ]
    found = acceptance([request_trace(rows)], gamma=3)
    assert found.marginal == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert found.conditional == pytest.approx((1.0, 0.5, 1.0))
    assert found.acceptance_first == 1.0
    assert found.emitted_per_verification == pytest.approx(7 / 3)
    assert found.clamped_fraction == 0.25
    assert found.acceptance_rate == pytest.approx(6 / 7)
    assert found.draft_acceptance_rate == pytest.approx(6 / 8)
    assert (found.proposed_per_iteration, found.accepted_per_iteration) == (2.0, 1.5)


def test_what_was_never_tested_has_no_conditional_acceptance():
    found = acceptance([request_trace([(9, 0, 0, 0, 1), (8, 1, 1, 0, 1)])], gamma=2)
    assert found.conditional == (0.0, None)
    assert acceptance([request_trace([(9, 0, 0, 0, 1)])], gamma=2).acceptance_rate is None


def test_without_room_for_gamma_anywhere_there_is_no_estimate_of_it():
    found = acceptance([request_trace([(1, 1, 1, 1, 2)])], gamma=4)
    assert (found.emitted_per_verification, found.marginal, found.conditional) == (None, (), ())
    assert (found.clamped_fraction, found.acceptance_rate, found.acceptance_first) == (1.0, 1.0, None)


def test_plain_decoding_emits_one():
    found = acceptance([request_trace([(2, 0, 0, 0, 1), (1, 0, 0, 0, 1), (0, 0, 0, 0, 1)])], gamma=0)
    assert (found.emitted_per_verification, found.clamped_fraction, found.marginal) == (1.0, 0.0, ())
    with pytest.raises(ValueError, match="no request"):
        acceptance([request_trace([])], gamma=0)


blocks = st.integers(0, 6).flatmap(
    lambda proposed: st.integers(0, proposed).map(
        lambda accepted: (50, proposed, min(proposed, accepted + 1), accepted, accepted + 1)
    )
)


@given(st.lists(blocks, min_size=1, max_size=40))
def test_marginals_fall_and_sum_to_e(rows):
    found = acceptance([request_trace(rows)], gamma=6)
    assert list(found.marginal) == sorted(found.marginal, reverse=True)
    assert found.emitted_per_verification == pytest.approx(expected_tokens_from_marginals(found.marginal))


def test_what_could_be_accepted_is_what_was_proposed_and_what_the_text_still_held():
    """Of 4 proposals before the last 3 tokens, whose last is an accepted stop, only 2 have a token after them."""
    rows = [(50, 4, 2, 1, 2), (48, 0, 0, 0, 1), (47, 4, 3, 3, 3)]
    assert acceptance([request_trace(rows)], gamma=4).reaches.tolist() == [4, 0, 2]
    limited = [(3, 3, 1, 0, 1), (2, 2, 2, 2, 3)]
    assert acceptance([request_trace(limited), request_trace(rows)], gamma=4).reaches.tolist() == [3, 2, 4, 0, 2]
