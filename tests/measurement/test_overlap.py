"""How much of an output its prompt holds, and whether acceptance goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_rounds import request_trace

from pipeline.engines.machine import Machine
from pipeline.measurement.overlap import overlap_acceptance_correlation, prompt_output_overlap, with_overlap
from pipeline.records.trace import Trace


def request(name, output, **changes):
    return replace(request_trace([]), request_id=f"{name}#0", output=output, **changes)


def prompt(n, overlap, accepted, tested=10):
    """A request of prompt ``n`` with what is known of it."""
    rows = [(50, tested, tested, accepted, accepted + 1)]
    return replace(request_trace(rows), request_id=f"p{n}#0", prompt_output_overlap=overlap)


def test_overlap_is_the_share_of_tokens_that_end_a_gram_of_the_prompt():
    trace = Trace(
        iterations=(),
        requests=(
            request("p", (3, 1, 2, 9)),  # the prompt's last two and the first token are a gram that it holds
            request("q", (7, 7, 1, 2, 3, 7)),
            request("short", (1, 1)),
            request("filler", (1, 2, 3), counted=False),
        ),
        wall_s=0.0,
    )
    prompts = {"p": [1, 2, 3, 1, 2], "q": [1, 2, 3, 5], "short": [1]}
    found = with_overlap(trace, prompts)
    # p: 1 2 3, 2 3 1 and 3 1 2 are in its prompt, 1 2 9 is not.
    assert [r.prompt_output_overlap for r in found.requests] == [3 / 4, 1 / 6, 0.0, None]
    assert prompt_output_overlap(found.requests) == pytest.approx(4 / 12)
    assert replace(found.requests[0], prompt_output_overlap=None) == trace.requests[0]


def test_where_nobody_looked_there_is_no_overlap():
    assert prompt_output_overlap([request("p", (1, 2))]) is None
    assert prompt_output_overlap([]) is None


def test_acceptance_that_rises_with_overlap_correlates():
    rising = [prompt(n, n / 10, n) for n in range(8)]
    assert overlap_acceptance_correlation(rising) == pytest.approx(1.0)
    falling = [prompt(n, n / 10, 9 - n) for n in range(8)]
    assert overlap_acceptance_correlation(falling) == pytest.approx(-1.0)


def test_seeds_of_a_prompt_are_one_point():
    """The eighth prompt's two seeds lie on opposite sides of the line, and their sums on it."""
    seeds = [prompt(7, 0.7, 9), replace(prompt(7, 0.7, 5), request_id="p7#1")]
    assert overlap_acceptance_correlation([*(prompt(n, n / 10, n) for n in range(7)), *seeds]) == pytest.approx(1.0)


def test_too_few_prompts_or_no_difference_between_them_correlate_with_nothing():
    points = [prompt(n, n / 10, n) for n in range(8)]
    assert overlap_acceptance_correlation(points[:7]) is None
    untested = replace(points[7], tested=(0,), accepted=(0,))
    assert overlap_acceptance_correlation([*points[:7], untested]) is None
    assert overlap_acceptance_correlation([replace(p, prompt_output_overlap=0.3) for p in points]) is None
    assert overlap_acceptance_correlation([replace(p, prompt_output_overlap=None) for p in points]) is None


def test_a_round_looks_at_what_it_counts_and_sums_it_up(make_task, make_cell, measure):
    result = measure(make_task(make_cell(concurrency=4)), Machine(eos_rate=0.05))
    (measurement,) = result.measurements
    for record in (measurement, result.baseline):
        requests = [request for block in record.trace_blocks for request in block.trace.requests]
        assert {r.counted for r in requests} == {True, False}
        assert all((r.prompt_output_overlap is not None) == r.counted for r in requests)
    counted = [r for block in measurement.trace_blocks for r in block.trace.requests if r.counted]
    assert measurement.metrics.prompt_output_overlap == prompt_output_overlap(counted)
