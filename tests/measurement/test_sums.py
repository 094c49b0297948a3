"""Attribution: an iteration's time is shared equally by its rows, and nothing of a run is lost or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_rounds import GREEDY, NGRAM, QUIET

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.sums import attributed_ms, block_sums, mean_times, output_tokens_per_s, total, unit_sums
from pipeline.records.target import Target
from pipeline.records.trace import Block


def run(machine, lengths, slots=1, gamma=0, fillers=0, index=0):
    engine = SimulatedEngine(machine)
    engine.open(Target(name="sim", source="x"), (), Limits(concurrency=slots, max_gamma=gamma))
    requests = [
        Request(
            request_id=f"p{n}#0",
            prompt_id=f"p{n}",
            tokens=(65 + n,),
            max_new_tokens=length,
            seed=0,
            counted=n < len(lengths),
        )
        for n, length in enumerate([*lengths, *[30] * fillers])
    ]
    draft, schedule = (NGRAM, Schedule.constant(gamma)) if gamma else (None, OFF)
    return Block(index=index, place=0, trace=engine.run(requests, GREEDY, draft, schedule))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), slots=st.integers(1, 4), fillers=st.integers(0, 3))
def test_shares_add_up_to_the_time_of_all_iterations(lengths, slots, fillers):
    trace = run(Machine(), lengths, slots, gamma=3, fillers=fillers).trace
    assert sum(ms for _, ms in attributed_ms(trace)) == pytest.approx(sum(i.tau_ms for i in trace.iterations))


def test_one_at_a_time_the_speed_is_the_plain_ratio_of_sums():
    block = run(Machine(), [20, 5, 9], gamma=4)
    sums = total([block])
    assert sums.emitted == 19 + 4 + 8
    assert sums.tau_ms == pytest.approx(sum(i.tau_ms for i in block.trace.iterations))
    assert sums.tokens_per_ms == pytest.approx(sums.emitted / sums.tau_ms)


def test_with_all_slots_busy_the_speed_is_c_tokens_per_iteration():
    block = run(QUIET, [20, 20, 20], slots=3, gamma=2, fillers=9)
    sums = total([block])
    assert {i.active for i in block.trace.iterations} == {3}
    expected = sums.emitted / sums.row_iterations
    assert sums.tokens_per_ms == pytest.approx(3 * expected / mean_times([block]).tau_ms)


def test_fillers_are_in_no_sum():
    alone, beside = run(QUIET, [20, 20], slots=2), run(QUIET, [20, 20], slots=2, fillers=5)
    assert total([alone]) == total([beside])
    assert [u.prompt_id for u in unit_sums([beside], [beside])] == ["p0", "p1"]


def test_a_prompt_is_one_unit_over_blocks_and_passes():
    passes = [run(QUIET, [20, 10], index=index) for index in (0, 0, 1)]
    (first, second) = unit_sums(passes[:1], passes)
    assert (first.emitted, first.row_iterations, first.baseline_emitted) == (19, 19, 57)
    assert first.baseline_tau_ms == pytest.approx(3 * first.tau_ms)
    assert (second.emitted, second.baseline_row_iterations) == (9, 27)


def test_a_prompt_that_ended_at_its_first_token_is_no_unit():
    block = run(QUIET, [1, 10])
    assert [u.prompt_id for u in unit_sums([block], [block])] == ["p1"]


def test_blocks_pair_their_mean_times_and_an_empty_one_is_left_out():
    slow = Machine(noise=0, tau0_ms=20, overhead_ms=0)
    fast = Machine(noise=0, tau0_ms=10, overhead_ms=0)
    candidate = [run(slow, [9], index=0), run(slow, [1], index=1), run(slow, [9], index=2)]
    baseline = [run(fast, [9], index=i) for i in (0, 0, 1, 1, 2, 2)]
    assert [(b.index, b.tau_ms, b.baseline_tau_ms) for b in block_sums(candidate, baseline)] == [
        (0, pytest.approx(20), pytest.approx(10)),
        (2, pytest.approx(20), pytest.approx(10)),
    ]
    with pytest.raises(ValueError, match="counted row"):
        mean_times([candidate[1]])


def test_phases_and_steps_are_means_of_iterations():
    machine = Machine(noise=0, tau0_ms=10, draft_ms=0.5, overhead_ms=0.1, alpha=1, alpha_spread=0)
    times = mean_times([run(machine, [1 + 4 * 5], gamma=4)])  # the first token, then four blocks of 4 + 1
    widths = [5, 5, 5, 5]
    assert times.draft_steps == sum(widths) / 4 - 1
    assert (times.tau_draft_ms, times.tau_verify_ms, times.tau_overhead_ms) == pytest.approx((2.0, 10.0, 0.1))


def test_throughput_counts_every_token_and_the_whole_wall_when_alone():
    block = run(Machine(), [20, 5])
    assert output_tokens_per_s([block]) == pytest.approx(25 / block.trace.wall_s)
    assert output_tokens_per_s([block, block]) == pytest.approx(25 / block.trace.wall_s)


def test_fillers_take_their_part_of_the_wall_with_them():
    block = run(Machine(noise=0, prefill_ms=0), [21, 21], slots=3, fillers=1)
    # Three rows at all times, of which two are counted: they are charged two thirds of the time.
    assert output_tokens_per_s([block]) == pytest.approx(42 / (block.trace.wall_s * 2 / 3))
