"""Where in the output, and after how long a context, proposals were accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_rounds import request_trace

from pipeline.measurement.places import by_context, by_output_position

blocks = st.lists(
    st.integers(0, 9).flatmap(
        lambda proposed: st.integers(0, proposed).map(
            lambda accepted: (99, proposed, min(proposed, accepted + 1), accepted, accepted + 1)
        )
    ),
    max_size=60,
)
requests = st.lists(
    st.builds(lambda rows, prompt: replace(request_trace(rows), prompt_tokens=prompt), blocks, st.integers(1, 5000)),
    max_size=4,
)


def test_a_block_belongs_where_its_first_token_stands():
    """Prefill gave token 0 of the output; blocks begin at 1, 5 and 8, after 100 + 27 + 1, 5 and 8 tokens."""
    request = replace(request_trace([(9, 4, 4, 3, 4), (5, 3, 3, 2, 3), (2, 2, 1, 0, 1)]), prompt_tokens=127)
    early, late = by_output_position([request])
    assert (early.low, early.high, early.row_iterations) == (0, 7, 2)
    assert (early.proposed, early.tested, early.accepted, early.emitted) == (7, 7, 5, 7)
    assert early.acceptance_rate == pytest.approx(5 / 7)
    assert (late.low, late.high, late.row_iterations, late.acceptance_rate) == (8, 15, 1, 0.0)
    (only,) = by_context([request])
    assert (only.low, only.high, only.emitted) == (128, 255, 8)
    (shorter, _) = by_context([replace(request, prompt_tokens=124)])
    assert (shorter.low, shorter.high, shorter.row_iterations) == (0, 127, 1)


def test_a_request_that_ended_at_its_first_token_falls_nowhere():
    assert by_output_position([request_trace([])]) == by_context([request_trace([])]) == ()


def test_where_nothing_was_tested_there_is_no_rate():
    (only,) = by_output_position([request_trace([(9, 0, 0, 0, 1)])])
    assert only.acceptance_rate is None


@given(requests)
def test_every_row_iteration_is_in_the_one_bin_that_holds_its_place(found):
    for bins, first in ((by_output_position(found), 8), (by_context(found), 128)):
        assert sum(b.row_iterations for b in bins) == sum(len(r.emitted) for r in found)
        assert sum(b.emitted for b in bins) == sum(sum(r.emitted) for r in found)
        assert sum(b.tested for b in bins) == sum(sum(r.tested) for r in found)
        assert [b.low for b in bins] == sorted({b.low for b in bins})
        assert all(b.high + 1 == (2 * b.low or first) for b in bins)
    places = [r.prompt_tokens + 1 + sum(r.emitted[:i]) for r in found for i in range(len(r.emitted))]
    for b in by_context(found):
        assert b.row_iterations == sum(b.low <= place <= b.high for place in places)
