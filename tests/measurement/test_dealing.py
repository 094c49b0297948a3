"""A round's requests: blocks of C counted ones, seeds, and fillers behind them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from simulated_rounds import SAMPLED

from pipeline.engines.contract import Schedule
from pipeline.engines.machine import Machine
from pipeline.measurement.dealing import deal
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate


def test_greedy_blocks_hold_c_prompts_once_each(make_cell, make_task, prepared):
    blocks = deal(make_task(make_cell(concurrency=4), first_prompt=4, prompt_count=12), prepared)
    counted = [[r.prompt_id for r in block if r.counted] for block in blocks]
    assert counted == [[f"chat-{n:03}" for n in range(start, start + 4)] for start in (4, 8, 12)]


def test_a_sampled_workload_decodes_every_prompt_with_every_seed(make_cell, make_task, prepared):
    cell = make_cell(SAMPLED, concurrency=4)
    blocks = deal(make_task(cell, prompt_count=12, protocol=Protocol(seeds=3)), prepared)
    counted = [r for block in blocks for r in block if r.counted]
    assert len(blocks) == 9
    assert len({r.request_id for r in counted}) == len({r.seed for r in counted}) == 36
    assert all(len({r.prompt_id for r in block if r.counted}) == 4 for block in blocks)
    assert sorted(r.prompt_id for r in counted) == sorted(3 * [f"chat-{n:03}" for n in range(12)])


def test_one_at_a_time_needs_no_fillers(make_task, prepared):
    assert all(len(block) == 1 and block[0].counted for block in deal(make_task(), prepared))


def test_the_workloads_stops_go_to_every_counted_request_and_to_no_filler(make_cell, make_task, prepared):
    cell = make_cell(concurrency=4, stop=("\n\n", "User:"), stop_token_ids=(7, 9))
    for block in deal(make_task(cell), prepared):
        assert {(r.stop, r.stop_token_ids) for r in block if r.counted} == {(("\n\n", "User:"), (7, 9))}
        assert {(r.stop, r.stop_token_ids) for r in block if not r.counted} == {((), ())}


def test_repeats_bring_new_seeds_and_ids(make_cell, make_task, prepared):
    task = make_task(make_cell(SAMPLED), prompt_count=6, distinct_prompts=2, protocol=Protocol(seeds=2))
    first = [r for block in deal(task, prepared) for r in block]
    later = [r for block in deal(replace(task, prompt_offset=6), prepared) for r in block]
    assert {r.prompt_id for r in first + later} == {"chat-000", "chat-001"}
    assert len({r.seed for r in first + later}) == len({r.request_id for r in first + later}) == 24


def test_prompts_that_were_not_prepared_are_an_error(make_task, prepared):
    for changes in ({"first_prompt": 38}, {"prompt_count": 0}, {"first_prompt": 39, "distinct_prompts": 2}):
        with pytest.raises(ValueError, match="does not fit 40 prompts"):
            deal(make_task(**changes), prepared)


@pytest.mark.parametrize("output_tokens", [2, 5, 24, 128])
@pytest.mark.parametrize(("gamma", "concurrency", "counted"), [(1, 2, 2), (4, 8, 8), (4, 8, 1), (7, 3, 2)])
def test_fillers_outlast_the_slowest_request_at_their_fastest(
    make_cell, make_task, prepared, output_tokens, gamma, concurrency, counted
):
    cell = make_cell(concurrency=concurrency, output_tokens=output_tokens)
    (block,) = deal(make_task(cell, max_gamma=gamma, prompt_count=counted), prepared)
    slowest = output_tokens - 1
    fastest = ceil((output_tokens - 1) / (gamma + 1))
    assert len(block) - counted >= (concurrency - 1) * ceil(slowest / fastest)


@pytest.mark.parametrize(
    ("alpha", "spread", "eos_rate"), [(1, 0, 0), (0, 0, 0), (0.5, 0.1, 0.2), (1, 0, 0.3), (0.5, 9, 0)]
)
@pytest.mark.parametrize("concurrency", [2, 5])
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_every_slot_is_busy_until_the_last_counted_request_ends(
    make_cell, make_task, prepared, engine_for, alpha, spread, eos_rate, concurrency, gamma
):
    # A spread of 9 makes prompts that accept all and prompts that accept nothing: slow ones among fast fillers.
    task = make_task(make_cell(concurrency=concurrency), prompt_count=31)  # the last block is short
    engine = engine_for(task, Machine(alpha=alpha, alpha_spread=spread, eos_rate=eos_rate))
    candidate: Candidate = task.candidates[0]
    for requests in deal(task, prepared):
        draft = candidate.draft if gamma else None
        trace = engine.run(requests, task.cell.sampling, draft, Schedule.constant(gamma))
        assert {i.active for i in trace.iterations} == {concurrency}
