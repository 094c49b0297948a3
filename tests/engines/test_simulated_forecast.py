"""What the simulated machine foretells of a draft is what its runs then do; its true speedup is what they tend to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines.contract import OFF, Limits, Passage, Request, Schedule
from pipeline.engines.machine import Machine, machine_from
from pipeline.engines.simulated import SimulatedEngine
from pipeline.engines.truth import true_speedup, truth
from pipeline.measurement.gates import check_trace
from pipeline.records.cell import Sampling
from pipeline.records.target import Candidate, DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target

GREEDY, SAMPLED = Sampling(name="greedy"), Sampling(name="t1", temperature=1.0)
NGRAM, SMALL = Ngram(name="ngram"), DraftModel(name="small", source="small")
ONE_HOT = DraftModel(name="small", source="small", draft_sampling="greedy")
ROOFLINE = "simulated:?device=h100&shape=36x4096x12288x32x8x128x151936&shape.small=28x1024x3072x16x8x128x151936xtied"


def opened(machine: Machine, slots: int = 1, gamma: int = 12, source: str = "simulated:") -> SimulatedEngine:
    engine = SimulatedEngine(machine)
    engine.open(Target(name="sim", source=source), (NGRAM, SMALL), Limits(concurrency=slots, max_gamma=gamma))
    return engine


def requests(count: int, tokens: int = 40) -> list[Request]:
    return [
        Request(request_id=f"r{n}", prompt_id=f"p{n}", tokens=(n // 200, n % 200, 7), max_new_tokens=tokens, seed=n)
        for n in range(count)
    ]


def replayed(weights: tuple[float, ...], gamma: int) -> list[int]:
    """How many proposals each block has accepted, walking the text with weights of 0 and 1."""
    place, accepted = 1, []
    while place < len(weights):
        taken = 0
        while taken < min(gamma, len(weights) - 1 - place) and weights[place + taken]:
            taken += 1
        accepted.append(taken)
        place += taken + 1
    return accepted


@settings(max_examples=40)
@given(
    machine=st.builds(
        Machine,
        alpha=st.floats(0, 1),
        alpha_trend=st.floats(-1, 1),
        miss=st.sampled_from([0.0, 0.3, 1.0]),
        match_tokens=st.integers(1, 9),
        seed=st.integers(0, 9),
    ),
    gamma=st.integers(1, 10),
    case=st.sampled_from([(NGRAM, GREEDY), (NGRAM, SAMPLED), (SMALL, GREEDY), (ONE_HOT, SAMPLED)]),
)
def test_a_walk_over_plain_text_accepts_block_by_block_what_a_run_accepts(machine, gamma, case):
    draft, sampling = case
    engine, asked = opened(machine), requests(3)
    plain = engine.run(asked, sampling, None, OFF)
    passages = [Passage(request=r, output=row.output) for r, row in zip(asked, plain.requests, strict=True)]
    scores = engine.score(passages, sampling, draft)
    real = engine.run(asked, sampling, draft, Schedule.constant(gamma))
    assert [replayed(weights, gamma) for weights in scores] == [list(row.accepted) for row in real.requests]


def test_drawn_proposals_stand_with_the_chance_that_runs_accept_them():
    engine, asked = opened(Machine(alpha=0.6, alpha_spread=0.2), slots=4), requests(40, 200)
    plain = engine.run(asked, SAMPLED, None, OFF)
    passages = [Passage(request=r, output=row.output) for r, row in zip(asked, plain.requests, strict=True)]
    scores = engine.score(passages, SAMPLED, SMALL)
    real = engine.run(asked, SAMPLED, SMALL, Schedule.constant(1))
    foretold = [np.mean(weights) for weights in scores]
    taken = [sum(row.accepted) / sum(row.tested) for row in real.requests]
    assert np.mean(foretold) == pytest.approx(np.mean(taken), abs=0.02)
    assert np.corrcoef(foretold, taken)[0, 1] > 0.6
    assert len(set(scores[0])) == 1


def test_a_decay_down_the_block_is_what_a_walk_over_places_cannot_see():
    engine, asked = opened(Machine(alpha=0.8, alpha_decay=0.8), slots=4), requests(40, 100)
    plain = engine.run(asked, GREEDY, None, OFF)
    passages = [Passage(request=r, output=row.output) for r, row in zip(asked, plain.requests, strict=True)]
    promised = sum(sum(replayed(weights, 8)) for weights in engine.score(passages, GREEDY, SMALL))
    blocks = sum(len(replayed(weights, 8)) for weights in engine.score(passages, GREEDY, SMALL))
    real = engine.run(asked, GREEDY, SMALL, Schedule.constant(8)).requests
    assert promised / blocks > 1.3 * sum(sum(r.accepted) for r in real) / sum(len(r.accepted) for r in real)


def test_a_draft_that_misses_proposes_as_far_as_the_next_miss():
    asked = requests(20)
    (matched,) = {
        n
        for row in opened(Machine(miss=0.0)).run(asked, GREEDY, NGRAM, Schedule.constant(3)).requests
        for n, room in zip(row.proposed, row.room, strict=True)
        if room >= 3
    }
    assert matched == 3
    machine = Machine(miss=0.5, match_tokens=4, alpha=1.0, alpha_spread=0.0)
    rows = opened(machine).run(asked, GREEDY, NGRAM, Schedule.constant(12)).requests
    proposed = [n for row in rows for n, room in zip(row.proposed, row.room, strict=True) if room >= 12]
    assert set(proposed) == {0, 3, 4, 7, 8, 11, 12}  # 4 · n, less the place that the target's own token took


def test_heads_are_probed_and_everything_else_is_scored():
    engine = opened(Machine())
    heads = Medusa(name="m", source="m"), Eagle3(name="e", source="e")
    assert {engine.replays(head) for head in heads} == {"probe"}
    assert {engine.replays(draft) for draft in (NGRAM, SMALL, EarlyExit(name="exit", layers=2))} == {"score"}
    with pytest.raises(ValueError, match="head"):
        engine.score([], GREEDY, heads[0])


@pytest.mark.parametrize("draft", [None, SMALL])
def test_a_timing_pass_goes_through_its_gammas_in_turn(draft):
    engine, gammas = opened(Machine(noise=0.0), slots=2), (0, 4, 1, 8)
    trace = engine.time_widths(requests(4), GREEDY, draft, gammas)
    assert [i.gamma for i in trace.iterations] == [gammas[n % 4] for n in range(len(trace.iterations))]
    roomy = [i for i in trace.iterations if i.context_tokens < 2 * 30]
    assert [i.width for i in roomy] == [1 + i.gamma for i in roomy]
    widest = tuple(replace(i, gamma=8) for i in trace.iterations)  # no schedule goes by turns
    check_trace(replace(trace, iterations=widest), requests(4), Schedule.constant(8))
    assert {i.tau_draft_ms > 0 for i in roomy if i.gamma} == {draft is not None}
    if draft is None:
        assert sum(i.accepted for i in trace.iterations) == 0


def test_widths_of_no_gamma_and_a_broken_draft_are_errors():
    engine = opened(Machine(fail={"small": "out_of_memory"}))
    for gammas in ((), (2, -1)):
        with pytest.raises(ValueError, match="gammas"):
            engine.time_widths(requests(1), GREEDY, None, gammas)
    with pytest.raises(MemoryError):
        engine.time_widths(requests(1), GREEDY, SMALL, (1,))
    with pytest.raises(MemoryError):
        engine.score([], GREEDY, SMALL)


def measured(machine: Machine, candidate: Candidate, slots: int, tokens: int, source: str) -> float:
    """Σemitted/Στ over plain decoding's, with every slot busy."""
    engine, asked = opened(machine, slots, source=source), requests(120, tokens)
    rates = []
    for draft, schedule in ((None, OFF), (candidate.draft, Schedule.constant(candidate.gamma))):
        iterations = [i for i in engine.run(asked, GREEDY, draft, schedule).iterations if i.active == slots]
        rates.append(sum(i.emitted for i in iterations) / sum(i.tau_ms for i in iterations))
    return rates[1] / rates[0]


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(("draft", "gamma"), [(NGRAM, 2), (SMALL, 5)])
@pytest.mark.parametrize("source", ["simulated:?token_ms=1&tau0_ms=6", ROOFLINE, ROOFLINE.replace("h100", "cpu")])
def test_the_true_speedup_is_what_long_runs_without_noise_tend_to(slots, draft, gamma, source):
    machine = Machine(noise=0.0, alpha_decay=0.95, alpha_spread=0.2, by_draft={"miss.ngram": 0.3})
    candidate = Candidate(draft=draft, gamma=gamma)
    expected = true_speedup(
        machine_from(source, machine), candidate, concurrency=slots, prompt_tokens=3, output_tokens=40
    )
    assert measured(machine, candidate, slots, 40, source) == pytest.approx(expected, rel=0.03)


def test_the_truth_is_geometric_where_every_place_is_alike_and_there_is_room():
    machine = Machine(alpha=0.8, alpha_spread=0.0, tau0_ms=10, draft_ms=0.5, token_ms=0.1, overhead_ms=0.0)
    found = truth(machine, Candidate(draft=SMALL, gamma=4), concurrency=1, prompt_tokens=10, output_tokens=2000)
    assert found.emitted_per_verification == pytest.approx(3.3616, rel=2e-3)  # Leviathan, α = .8, γ = 4
    assert found.speedup == pytest.approx(3.3616 / 1.2, rel=5e-3)
    off = Candidate(draft=None, gamma=0)
    assert true_speedup(machine, off, concurrency=4, prompt_tokens=10, output_tokens=20) == 1.0
    with pytest.raises(ValueError, match="eos_rate"):
        true_speedup(Machine(eos_rate=1.0), off, concurrency=1, prompt_tokens=1, output_tokens=9)
    with pytest.raises(ValueError, match="output_tokens"):
        true_speedup(machine, off, concurrency=1, prompt_tokens=1, output_tokens=1)
