"""The simulated engine keeps the contract: counts, refills, limits, determinism and faults."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines.contract import OFF, Engine, Limits, Request, Schedule
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import BOS, EOS, ByteTokenizer, SimulatedEngine
from pipeline.measurement.gates import check_trace
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.target import DraftModel, Ngram, Target
from pipeline.records.trace import Trace

GREEDY = Sampling(name="greedy")
SAMPLED = Sampling(name="t1", temperature=1.0)
NGRAM = Ngram(name="ngram")
SMALL = DraftModel(name="small", source="small")


def request(n: int, **changes: object) -> Request:
    given = {"max_new_tokens": 20, "seed": n, "tokens": tuple(range(65, 70 + n)), **changes}
    return Request(request_id=f"r{n}", prompt_id=f"p{n}", **given)  # type: ignore[arg-type]


def run(machine, requests, sampling=GREEDY, draft=None, gamma=0, slots=1) -> Trace:
    engine: Engine = SimulatedEngine(machine)
    engine.open(Target(name="sim", source="simulated:"), (NGRAM, SMALL), Limits(concurrency=slots, max_gamma=gamma))
    schedule = Schedule.constant(gamma) if draft else OFF
    trace = engine.run(requests, sampling, draft, schedule)
    check_trace(trace, requests, schedule)
    return trace


@settings(max_examples=60, deadline=None)
@given(
    alpha=st.floats(0, 1),
    miss=st.floats(0, 1),
    eos_rate=st.sampled_from([0.0, 0.05, 0.5]),
    gamma=st.integers(1, 8),
    slots=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    draft=st.sampled_from([None, NGRAM, SMALL]),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
)
def test_every_run_keeps_the_identities_of_a_trace(alpha, miss, eos_rate, gamma, slots, lengths, draft, sampling):
    machine = Machine(alpha=alpha, miss=miss, eos_rate=eos_rate)
    counted = [request(n, max_new_tokens=size) for n, size in enumerate(lengths)]
    fillers = [request(100 + n, counted=False) for n in range(3)]
    trace = run(machine, counted + fillers, sampling, draft, gamma, slots)
    assert [r.request_id for r in trace.requests if r.counted] == [r.request_id for r in counted]
    assert trace.wall_s >= sum(i.tau_ms for i in trace.iterations) / 1e3
    for row in trace.requests:
        if row.finish == "eos":
            assert row.output.index(EOS) == len(row.output) - 1


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_greedy_text_is_the_same_in_every_arm(gamma):
    requests = [request(n) for n in range(5)]
    plain = run(Machine(), requests)
    for draft in (NGRAM, SMALL):
        speculative = run(Machine(), requests, draft=draft, gamma=gamma, slots=3)
        assert [r.output for r in speculative.requests] == [r.output for r in plain.requests]


def test_sampled_text_follows_the_seed_and_one_hot_proposals_leave_it():
    plain = run(Machine(), [request(1), request(2, seed=1), request(3, seed=9, tokens=request(2).tokens)], SAMPLED)
    outputs = [r.output for r in plain.requests]
    assert len(set(outputs)) == 3
    ngram = run(Machine(), [request(1)], SAMPLED, NGRAM, 4)
    small = run(Machine(), [request(1)], SAMPLED, SMALL, 4)
    assert ngram.requests[0].output == outputs[0] != small.requests[0].output


def test_the_same_calls_give_the_same_traces_and_a_second_pass_other_noise():
    requests = [request(n) for n in range(4)]
    assert run(Machine(), requests, draft=SMALL, gamma=3) == run(Machine(), requests, draft=SMALL, gamma=3)
    engine = SimulatedEngine(Machine())
    engine.open(Target(name="sim", source="any"), (), Limits(concurrency=1, max_gamma=0))
    first, second = (engine.run(requests, GREEDY, None, OFF) for _ in range(2))
    assert first.requests[0].output == second.requests[0].output
    assert first.wall_s != second.wall_s


def test_without_noise_an_iteration_costs_what_the_machine_says():
    machine = Machine(noise=0, tau0_ms=10, token_ms=2, draft_ms=0.5, overhead_ms=0.1, alpha=1, alpha_spread=0)
    trace = run(machine, [request(n) for n in range(4)], draft=SMALL, gamma=3, slots=4)
    first = trace.iterations[0]
    assert (first.active, first.width, first.accepted, first.emitted) == (4, 4, 12, 16)
    assert (first.tau_draft_ms, first.tau_verify_ms, first.tau_overhead_ms) == (1.5, 32.0, 0.1)
    assert run(machine, [request(0)]).iterations[0].tau_verify_ms == 10


def test_acceptance_is_what_was_asked_for():
    machine = Machine(alpha=0.7, alpha_spread=0)
    trace = run(machine, [request(n, max_new_tokens=400) for n in range(10)], draft=SMALL, gamma=4)
    share = sum(i.accepted for i in trace.iterations) / sum(i.tested for i in trace.iterations)
    assert share == pytest.approx(0.7, abs=0.04)


def test_a_draft_that_finds_nothing_is_a_plain_step():
    trace = run(Machine(miss=1.0), [request(0)], draft=NGRAM, gamma=4)
    assert {(i.width, i.proposed, i.emitted, i.tau_draft_ms) for i in trace.iterations} == {(1, 0, 1, 0.0)}


def test_freed_slots_are_refilled_and_fillers_end_with_the_last_counted_request():
    requests = [request(0, max_new_tokens=4), request(1), request(2, counted=False), request(3, counted=False)]
    trace = run(Machine(), requests, slots=2)
    assert all(i.active == 2 for i in trace.iterations)
    assert [r.request_id for r in trace.requests] == ["r0", "r1", "r2"]
    filler = trace.requests[2]
    assert (filler.finish, filler.first_iteration, len(filler.emitted)) == ("abandoned", 3, 16)


def test_a_request_that_ends_at_its_first_token_has_no_iteration():
    trace = run(Machine(), [request(0, max_new_tokens=1)])
    assert (trace.iterations, trace.requests[0].finish, trace.requests[0].emitted) == ((), "length", ())
    ended = run(Machine(eos_rate=1.0), [request(0), request(1, ignore_eos=True)])
    assert [(r.finish, len(r.output)) for r in ended.requests] == [("eos", 1), ("length", 20)]


def test_an_accepted_stop_ends_its_block():
    text = run(Machine(), [request(0)]).requests[0].output
    stop = text[5]
    end = text.index(stop)
    machine = Machine(alpha=1.0, alpha_spread=0)
    trace = run(machine, [request(0, stop_token_ids=(stop,))], draft=SMALL, gamma=8)
    assert trace.requests[0].output == text[: end + 1]
    assert trace.requests[0].finish == "stop"
    assert trace.iterations[-1].stopped == 1


@pytest.mark.parametrize("draft", [None, SMALL])
def test_a_stop_string_ends_text_ids_and_counts_at_one_token(draft):
    text = bytes(run(Machine(), [request(0)]).requests[0].output).decode()
    stop = text[4:7]
    end = text.index(stop) + 3
    machine = Machine(alpha=1.0, alpha_spread=0)
    (row,) = run(machine, [request(0, stop=("!", stop), ignore_eos=True)], draft=draft, gamma=8).requests
    assert bytes(row.output).decode() == text[:end]
    assert (row.finish, row.stop_string, row.text) == ("stop", stop, text[: end - 3])
    (row,) = run(machine, [request(0, stop=("!",))], draft=draft, gamma=8).requests
    assert (row.finish, row.stop_string, row.text) == ("length", "", text)


def test_penalties_change_nothing_in_a_text_that_is_made_up():
    penalized = Sampling(name="p", repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=1.0)
    assert run(Machine(), [request(0)], penalized) == run(Machine(), [request(0)])


def test_a_request_arrives_no_sooner_than_it_says():
    trace = run(Machine(), [request(0, arrival_s=1.5), request(1, arrival_s=0.5)], slots=2)
    assert [r.admitted_s >= r.arrival_s for r in trace.requests] == [True, True]
    assert trace.requests[0].admitted_s == 1.5


def test_what_cannot_fit_is_refused():
    with pytest.raises(InputError, match="r0"):
        run(Machine(max_context=24), [request(0)], draft=SMALL, gamma=4)
    with pytest.raises(InputError, match="r0"):
        run(Machine(), [request(0, tokens=())])
    engine = SimulatedEngine()
    engine.open(Target(name="sim", source="x"), (), Limits(concurrency=1, max_gamma=1))
    with pytest.raises(ValueError, match="needs a draft"):
        engine.run([request(0)], GREEDY, None, Schedule.constant(1))


def test_faults_come_where_they_were_asked_for():
    with pytest.raises(MemoryError):
        run(Machine(fail={"small": "out_of_memory"}), [request(0)], draft=SMALL, gamma=2)
    with pytest.raises(RuntimeError, match="off is broken"):
        run(Machine(fail={"off": "error"}), [request(0)])
    with pytest.raises(RuntimeError, match="target is broken"):
        run(Machine(fail={"target": "error"}), [request(0)])
    wrong = run(Machine(fail={"ngram": "wrong_text"}), [request(0)], draft=NGRAM, gamma=2)
    assert wrong.requests[0].output != run(Machine(), [request(0)]).requests[0].output


def test_a_crash_takes_the_process_with_it():
    code = (
        "from pipeline.engines.machine import Machine, break_down; break_down(Machine(fail={'bad': 'crash'}), 'bad', 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 70


def test_the_tokenizer_round_trips_text_and_its_template_ends_where_the_answer_begins():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é") == [BOS, 0xC3, 0xA9]
    assert tokenizer.decode([*tokenizer.encode("höflich"), EOS]) == "höflich"
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "<|user|>hi\n<|assistant|>"


def test_the_simulation_needs_no_torch():
    code = (
        "import sys; import pipeline.engines.simulated, pipeline.measurement.round, pipeline.measurement.pool\n"
        "loaded = {'torch', 'scipy', 'ray', 'optuna', 'mlflow', 'hydra', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(' '.join(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""
