"""A request's output is its own: whatever its slot, its neighbours, refills, arrivals and fillers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tiny_models import GREEDY, WARM, assert_counts_hold, mixed_requests, outputs

from pipeline.engines.contract import OFF, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.target import DraftModel, Ngram

OpenEngine = Callable[..., DecodingEngine]
NGRAM = Ngram(name="ngram")


def test_different_seeds_draw_different_text(open_engine: OpenEngine) -> None:
    request = _request("a", 20)
    engine = open_engine(concurrency=1)
    first, second = (
        engine.run([dataclasses.replace(request, seed=s)], WARM, None, OFF).requests[0].output for s in (1, 2)
    )
    assert first != second


def test_negative_and_huge_seeds_are_accepted(open_engine: OpenEngine) -> None:
    requests = [
        dataclasses.replace(_request(name, 9), seed=s) for name, s in (("a", -1), ("b", 2**64 - 1), ("c", 2**63))
    ]
    texts = outputs(open_engine(concurrency=3).run(requests, WARM, None, OFF))
    assert texts["a"] == texts["b"] != texts["c"]


def test_run_ends_with_the_last_counted_request_and_abandons_fillers(open_engine: OpenEngine) -> None:
    requests = [
        _request("short", 5),
        _request("long", 12),
        *(dataclasses.replace(_request(f"filler{i}", 30), counted=False) for i in range(3)),
    ]
    trace = open_engine(concurrency=2).run(requests, GREEDY, None, OFF)
    finish = {row.request_id: row.finish for row in trace.requests}
    assert finish == {"short": "length", "long": "length", "filler0": "abandoned"}
    assert [it.counted for it in trace.iterations] == [2] * 4 + [1] * 7
    assert all(it.active == 2 for it in trace.iterations)
    filler = trace.requests[2]
    assert len(filler.output) == 1 + len(filler.emitted) == 8
    assert filler.first_iteration == 4
    assert_counts_hold(trace, requests)


def test_a_filler_that_finishes_ends_nothing(open_engine: OpenEngine) -> None:
    requests = [dataclasses.replace(_request(f"filler{i}", 3), counted=False) for i in range(2)] + [
        _request("long", 12)
    ]
    trace = open_engine(concurrency=2).run(requests, GREEDY, None, OFF)
    assert {row.request_id: len(row.output) for row in trace.requests} == {"filler0": 3, "filler1": 3, "long": 12}
    assert trace.requests[2].finish == "length"


def test_one_output_token_takes_no_iteration(open_engine: OpenEngine) -> None:
    trace = open_engine(concurrency=2).run([_request("a", 1), _request("b", 1)], GREEDY, None, OFF)
    assert trace.iterations == ()
    assert [(len(r.output), r.finish, r.emitted) for r in trace.requests] == [(1, "length", ())] * 2


def test_rows_that_leave_close_up_so_that_nothing_empty_is_decoded(open_engine: OpenEngine) -> None:
    lengths = (9, 3, 7, 5)
    requests = [_request(f"r{n}", n) for n in lengths]
    trace = open_engine(concurrency=4).run(requests, GREEDY, None, OFF)
    assert [it.active for it in trace.iterations] == [4, 4, 3, 3, 2, 2, 1, 1]
    assert [len(r.output) for r in trace.requests] == list(lengths)


def test_no_request_is_admitted_before_it_arrives(open_engine: OpenEngine) -> None:
    requests = [
        _request("now", 4),
        dataclasses.replace(_request("later", 4), arrival_s=0.25),
        dataclasses.replace(_request("latest", 4), arrival_s=0.5),
    ]
    trace = open_engine(concurrency=2).run(requests, GREEDY, None, OFF)
    for row in trace.requests:
        assert row.arrival_s <= row.admitted_s <= row.first_token_s <= row.finished_s <= trace.wall_s
    assert trace.wall_s >= 0.5
    assert sum(it.tau_ms for it in trace.iterations) < 250, "idle time is in no iteration"


def test_iterations_and_refills_make_up_the_run(open_engine: OpenEngine, draft: DraftModel) -> None:
    """No iteration overlaps another, and none begins before a refill before it has ended."""
    trace = open_engine(draft, concurrency=2).run(mixed_requests(), GREEDY, draft, Schedule.constant(3))
    ends = [it.start_s + it.tau_ms / 1e3 for it in trace.iterations]
    for end, following in zip(ends, trace.iterations[1:], strict=False):
        assert following.start_s >= end - 1e-9
    for row in trace.requests:
        if row.emitted:
            assert trace.iterations[row.first_iteration].start_s >= row.first_token_s
            last = row.first_iteration + len(row.emitted) - 1
            assert row.finished_s >= ends[last] - 1e-9
    assert ends[-1] <= trace.wall_s


def _request(name: str, new_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_id=name,
        tokens=(7, 30, 12, 44, 8 + len(name), 21),
        max_new_tokens=new_tokens,
        seed=3,
        ignore_eos=True,
    )
