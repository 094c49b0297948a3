"""What fails a measurement: every account that contradicts itself, every text that differs without a tie."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_rounds import GREEDY, NGRAM, OFF, SAMPLED, SMALL

from pipeline.engines import contract
from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.gates import GateError, check_text, check_trace, text_must_agree
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, EarlyExit, Target
from pipeline.records.trace import Trace

FOUR = Schedule.constant(4)
REQUESTS = tuple(
    Request(request_id=f"p{n}#0", prompt_id=f"p{n}", tokens=(65, n), max_new_tokens=20 + n, seed=n, counted=n < 3)
    for n in range(6)
)


def engine(machine=None, dtype="float32", slots=2) -> SimulatedEngine:
    made = SimulatedEngine(machine or Machine())
    made.open(Target(name="sim", source="x", dtype=dtype), (), Limits(concurrency=slots, max_gamma=4))
    return made


@pytest.fixture
def trace() -> Trace:
    """A good run with two slots; request 0 has rows with all kinds of counts."""
    return engine(Machine(alpha=0.8)).run(REQUESTS, GREEDY, SMALL, FOUR)


def with_row(trace: Trace, at: int = 0, **changes) -> Trace:
    requests = list(trace.requests)
    requests[at] = replace(requests[at], **changes)
    return replace(trace, requests=tuple(requests))


def with_iteration(trace: Trace, at: int = 0, **changes) -> Trace:
    iterations = list(trace.iterations)
    iterations[at] = replace(iterations[at], **changes)
    return replace(trace, iterations=tuple(iterations))


def plus(values, at, amount):
    return (*values[:at], values[at] + amount, *values[at + 1 :])


def test_a_good_run_passes(trace):
    check_trace(trace, REQUESTS, FOUR)


@pytest.mark.parametrize("column", ["active", "counted", "proposed", "tested", "accepted", "emitted", "stopped"])
def test_an_iteration_that_miscounts_is_caught(trace, column):
    at = next(i for i, it in enumerate(trace.iterations) if it.proposed < 8)
    broken = with_iteration(trace, at, **{column: getattr(trace.iterations[at], column) + 1})
    with pytest.raises(GateError):
        check_trace(broken, REQUESTS, FOUR)


@pytest.mark.parametrize("column", ["room", "proposed", "tested", "accepted", "emitted"])
@pytest.mark.parametrize("amount", [1, -1])
def test_a_request_that_miscounts_is_caught(trace, column, amount):
    row = trace.requests[0]
    broken = with_row(trace, **{column: plus(getattr(row, column), 1, amount)})
    with pytest.raises(GateError):
        check_trace(broken, REQUESTS, FOUR)


def test_miscounts_that_agree_with_each_other_are_caught_too(trace):
    """Accepted and emitted raised together, in the request and in its iteration: the output is one too short."""
    row, it = trace.requests[0], trace.iterations[1]
    both = with_row(trace, accepted=plus(row.accepted, 1, 1), emitted=plus(row.emitted, 1, 1))
    both = with_iteration(both, 1, accepted=it.accepted + 1, emitted=it.emitted + 1)
    with pytest.raises(GateError, match="tokens of output"):
        check_trace(both, REQUESTS, FOUR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau_ms": 11.0}, "do not sum"),
        ({"tau_ms": 0.0}, "took 0.0 ms"),
        ({"tau_ms": float("nan")}, "took nan ms"),
        ({"width": 6}, "the schedule says gamma 4"),
        ({"width": 0}, "the schedule says gamma 4"),
    ],
)
def test_an_iterations_times_and_width_must_make_sense(trace, changes, message):
    with pytest.raises(GateError, match=message):
        check_trace(with_iteration(trace, 2, **changes), REQUESTS, FOUR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_string": "zz"}, "ended by 'zz', which was not asked for"),
        ({"stop_string": "stop", "finish": "length"}, "length at stop string 'stop'"),
        ({"text": "a stop b"}, r"its text holds stop string \['stop'\]"),
    ],
)
def test_text_that_does_not_end_where_its_ids_do_is_caught(trace, changes, message):
    asked = tuple(replace(request, stop=("stop",)) for request in REQUESTS)
    check_trace(with_row(trace, text="a b"), asked, FOUR)
    with pytest.raises(GateError, match=message):
        check_trace(with_row(trace, **changes), asked, FOUR)


def test_a_baseline_that_speculates_is_caught(trace):
    with pytest.raises(GateError, match="the schedule says gamma 0"):
        check_trace(trace, REQUESTS, contract.OFF)


def test_a_switch_that_the_engine_ignores_is_caught(trace):
    """Off above one request, and the engine went on with four proposals for two."""
    with pytest.raises(GateError, match="the schedule says gamma 0"):
        check_trace(trace, REQUESTS, Schedule(((1, 4),)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finish": "abandoned"}, "never finished"),
        ({"counted": False}, "not the request"),
        ({"seed": 9}, "not the request"),
        ({"prompt_tokens": 3}, "prompt tokens"),
        ({"first_iteration": 99}, "rows of no iteration"),
        ({"first_iteration": 1}, "requests' rows sum to"),
        ({"room": ()}, "differ in length"),
        ({"request_id": "p9#0"}, "not asked for"),
    ],
)
def test_a_request_must_be_the_one_that_was_asked_for(trace, changes, message):
    with pytest.raises(GateError, match=message):
        check_trace(with_row(trace, **changes), REQUESTS, FOUR)


def test_fewer_or_more_tokens_than_the_limit_are_caught(trace):
    longer = (replace(REQUESTS[0], max_new_tokens=21), *REQUESTS[1:])
    with pytest.raises(GateError, match="said to be full at 20 tokens"):
        check_trace(trace, longer, FOUR)
    shorter = (replace(REQUESTS[0], max_new_tokens=19), *REQUESTS[1:])
    with pytest.raises(GateError, match="over its limit"):
        check_trace(trace, shorter, FOUR)


def test_missing_doubled_and_disordered_requests_are_caught(trace):
    for requests, message in (
        (trace.requests[1:], "missing"),
        ((trace.requests[1], trace.requests[0], *trace.requests[2:]), "order"),
        ((trace.requests[0], *trace.requests), "order"),
    ):
        with pytest.raises(GateError, match=message):
            check_trace(replace(trace, requests=requests), REQUESTS, FOUR)
    with pytest.raises(GateError, match="one id"):
        check_trace(trace, (*REQUESTS, REQUESTS[0]), FOUR)


def test_a_block_that_ends_at_an_accepted_stop_lacks_the_targets_token():
    made = engine(Machine(alpha=1, alpha_spread=0, eos_rate=0.2))
    trace = made.run(REQUESTS, GREEDY, SMALL, FOUR)
    assert any(i.stopped for i in trace.iterations)
    check_trace(trace, REQUESTS, FOUR)


def test_a_block_that_loses_the_targets_token_half_way_is_caught_though_all_sums_agree():
    trace = engine(Machine(alpha=1, alpha_spread=0), slots=1).run(REQUESTS[:1], GREEDY, SMALL, FOUR)
    check_trace(trace, REQUESTS[:1], FOUR)
    row, it = trace.requests[0], trace.iterations[1]
    broken = with_row(
        trace,
        emitted=plus(row.emitted, 1, -1),
        output=row.output[:-1],
        room=(*row.room[:2], *(room + 1 for room in row.room[2:])),
        finish="eos",
    )
    broken = with_iteration(broken, 1, emitted=it.emitted - 1, stopped=1)
    with pytest.raises(GateError, match="row 1"):
        check_trace(broken, REQUESTS[:1], FOUR)


def test_tests_past_a_rejection_are_caught_though_all_sums_agree(trace):
    """They would make acceptance by position rise again, or its conditional shares too small."""
    row, k = trace.requests[0], 1
    assert row.accepted[k] < row.tested[k] < row.proposed[k]
    at = row.first_iteration + k
    broken = with_row(trace, tested=plus(row.tested, k, 1))
    broken = with_iteration(broken, at, tested=trace.iterations[at].tested + 1)
    with pytest.raises(GateError, match="row 1"):
        check_trace(broken, REQUESTS, FOUR)


def test_a_row_with_more_proposals_than_gamma_is_caught_though_its_iteration_has_no_more(trace):
    """Acceptance by position would leave out what it has too many."""
    row, other = trace.requests[:2]
    at = next(k for k, counts in enumerate(zip(row.tested, other.tested, strict=False)) if max(counts) < 4)
    assert row.first_iteration == other.first_iteration == 0
    assert row.proposed[at] == other.proposed[at] == 4
    broken = with_row(trace, 0, proposed=plus(row.proposed, at, 1))
    broken = with_row(broken, 1, proposed=plus(other.proposed, at, -1))
    with pytest.raises(GateError, match="more proposals than gamma"):
        check_trace(broken, REQUESTS, FOUR)


def test_text_must_agree_wherever_proposals_are_one_hot():
    greedy_small = Candidate(draft=replace(SMALL, draft_sampling="greedy"), gamma=2)
    exit_early = Candidate(draft=EarlyExit(name="exit", layers=2), gamma=2)
    agreeing = [None, OFF, Candidate(draft=NGRAM, gamma=2), greedy_small]
    assert all(text_must_agree(c, SAMPLED) and text_must_agree(c, GREEDY) for c in agreeing)
    for candidate in (Candidate(draft=SMALL, gamma=2), exit_early):
        assert text_must_agree(candidate, GREEDY)
        assert not text_must_agree(candidate, SAMPLED)


@pytest.mark.parametrize(
    ("dtype", "margin", "allowed"),
    [
        ("float32", 1e-3, True),
        ("float32", 1.1e-3, False),
        ("float32", float("nan"), False),
        ("bfloat16", 0.2, True),
        ("bfloat16", 0.3, False),
    ],
)
def test_a_text_may_differ_at_a_near_tie_alone_and_is_counted(dtype, margin, allowed):
    made = engine(Machine(tie_margin=margin, fail={"ngram": "wrong_text"}), dtype)
    reference = made.run(REQUESTS, GREEDY, None, contract.OFF)
    wrong = made.run(REQUESTS, GREEDY, NGRAM, FOUR)
    assert check_text(made, REQUESTS, reference, reference, GREEDY, Protocol()) == 0
    if allowed:
        assert check_text(made, REQUESTS, wrong, reference, GREEDY, Protocol()) == 3
    else:
        with pytest.raises(GateError, match=r"request p0#0: token 19 is 33, the baseline's \d+, and no tie"):
            check_text(made, REQUESTS, wrong, reference, GREEDY, Protocol())


def test_the_margin_is_asked_for_at_the_first_difference(monkeypatch):
    made = engine(Machine(fail={"ngram": "wrong_text"}))
    reference = made.run(REQUESTS[:1], GREEDY, None, contract.OFF)
    wrong = made.run(REQUESTS[:1], GREEDY, NGRAM, FOUR)
    asked = []

    def tie_margin(request, output, sampling):
        asked.append((request, output))
        return 0.0

    monkeypatch.setattr(made, "tie_margin", tie_margin)
    check_text(made, REQUESTS, wrong, reference, GREEDY, Protocol())
    assert asked == [(REQUESTS[0], reference.requests[0].output[:19])]


def test_a_text_that_only_ends_sooner_is_no_tie():
    made = engine(Machine(tie_margin=0.0))
    reference = made.run(REQUESTS, GREEDY, None, contract.OFF)
    short = with_row(reference, output=reference.requests[0].output[:-1])
    with pytest.raises(GateError, match="ends after 19 tokens, the baseline's 20"):
        check_text(made, REQUESTS, short, reference, GREEDY, Protocol())
