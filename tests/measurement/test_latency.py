"""When tokens arrive at the client, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.measurement.latency import latency
from pipeline.records.trace import Block, Iteration, RequestTrace, Trace


def iteration(start_s: float, tau_ms: float) -> Iteration:
    counts = dict.fromkeys(
        ("counted", "gamma", "width", "proposed", "tested", "accepted", "emitted", "stopped", "context_tokens"), 1
    )
    phases = {"tau_draft_ms": 0.0, "tau_verify_ms": tau_ms, "tau_overhead_ms": 0.0}
    return Iteration(start_s=start_s, active=1, pad_fraction=0.0, tau_ms=tau_ms, **counts, **phases)


def request(emitted, *, counted=True, finished_s=0.5, first_iteration=0) -> RequestTrace:
    zeros = (0,) * len(emitted)
    return RequestTrace(
        request_id="p#0",
        counted=counted,
        seed=0,
        prompt_tokens=3,
        output=(0,) * (1 + sum(emitted)),
        finish="length",
        arrival_s=0.0,
        admitted_s=0.05,
        first_token_s=0.1,
        finished_s=finished_s,
        first_iteration=first_iteration,
        room=zeros,
        proposed=zeros,
        tested=zeros,
        accepted=zeros,
        emitted=tuple(emitted),
    )


def block(*requests: RequestTrace) -> Block:
    # Other work came first; between the second and the third iteration a refill took 100 ms.
    iterations = (iteration(0.0, 100), iteration(0.1, 30), iteration(0.13, 20), iteration(0.25, 50))
    return Block(index=0, place=0, trace=Trace(iterations=iterations, requests=requests, wall_s=0.5))


def test_a_burst_is_one_gap_and_zeros_and_a_refill_is_in_the_gaps():
    found = latency([block(request([3, 1, 2], finished_s=0.3, first_iteration=1))])
    gaps = [30, 0, 0, 20, 150, 0]
    assert (found.gap.p50, found.gap.p95, found.gap.p99) == pytest.approx(tuple(np.percentile(gaps, [50, 95, 99])))
    assert found.tpot.p50 == pytest.approx(200 / 6)
    assert sum(gaps) == pytest.approx(200)


def test_time_to_first_token_runs_from_admission():
    assert latency([block(request([1]))]).ttft.p99 == pytest.approx(50)


def test_fillers_are_not_seen_and_one_token_has_no_pace():
    found = latency([block(request([9], counted=False), request([]))])
    assert found.ttft.p50 == pytest.approx(50)
    assert (found.tpot.p50, found.gap.p50) == (None, None)
    assert latency([block(request([9], counted=False))]).ttft.p50 is None
