"""The drift guard: a baseline that moved is measured again and said so, a calm one is left alone, no arm favoured."""

from __future__ import annotations

from dataclasses import replace
from math import log, log1p, sqrt

import numpy as np
import pytest
from simulated_rounds import GREEDY, OFF, QUIET, SMALL

import pipeline.measurement.round
from pipeline.engines.contract import OFF as PLAIN
from pipeline.engines.contract import Limits, Request
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.drift import Shift, moved, shift
from pipeline.measurement.pool import pool
from pipeline.measurement.round import measure_round
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Target
from pipeline.records.trace import Trace

PROTOCOL = Protocol()
FAST = Candidate(draft=SMALL, gamma=4)


def slowed(trace: Trace, factor: float) -> Trace:
    """``trace`` as it would be on a machine that takes ``factor`` as long, prefill too."""
    names = ("start_s", "tau_ms", "tau_draft_ms", "tau_verify_ms", "tau_overhead_ms")
    iterations = [replace(i, **{name: factor * getattr(i, name) for name in names}) for i in trace.iterations]
    times = ("admitted_s", "first_token_s", "finished_s")
    requests = [replace(r, **{name: factor * getattr(r, name) for name in times}) for r in trace.requests]
    return replace(trace, iterations=tuple(iterations), requests=tuple(requests), wall_s=factor * trace.wall_s)


class Stepping:
    """A machine whose speed depends on how many passes it has made: ``factor(n)`` for the n-th after the warm-up."""

    def __init__(self, engine, arms, factor):
        self._engine, self._factor, self.passes = engine, factor, -arms

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, arrivals, sampling, draft, schedule):
        trace = slowed(self._engine.run(arrivals, sampling, draft, schedule), self._factor(self.passes))
        self.passes += 1
        return trace


@pytest.fixture
def stepping(make_task, prepared, engine_for):
    """A round of one candidate on a machine whose passes 0, 1, 2 … take ``factor`` times as long as they should."""

    def go(factor, machine=QUIET, lines=None, **changes):
        task = make_task(candidates=(FAST,), **{"prompt_count": 4, **changes})
        engine = Stepping(engine_for(task, machine), 2, factor)
        return measure_round(engine, task, prepared, (lines if lines is not None else []).append)

    return go


def made(ratios: np.ndarray) -> tuple[Trace, Trace]:
    """Two passes whose matched iterations have these log ratios, each iteration another amount of work."""
    engine = SimulatedEngine(QUIET)
    engine.open(Target(name="sim", source="x"), (), Limits(concurrency=1, max_gamma=1))
    request = Request(request_id="p#0", prompt_id="p", tokens=(65,), max_new_tokens=len(ratios) + 1, seed=0)
    trace = engine.run([request], GREEDY, None, PLAIN)
    work = 1.0 + np.arange(len(ratios)) % 7
    one, two = (
        replace(
            trace,
            iterations=tuple(replace(i, tau_ms=t) for i, t in zip(trace.iterations, times.tolist(), strict=True)),
        )
        for times in (work, work * np.exp(ratios))
    )
    return one, two


def test_the_shift_is_the_median_of_matched_iterations_whatever_their_work():
    seen = shift(*made(np.full(31, log(1.2))))
    assert seen == Shift(pytest.approx(log(1.2)), pytest.approx(0.0, abs=1e-12))
    assert moved(seen, [], PROTOCOL)


def test_one_iteration_in_four_that_stalls_is_no_drift():
    ratios = np.where(np.arange(32) % 4 == 0, log(5.0), np.random.default_rng(0).normal(0, 0.02, 32))
    assert not moved(shift(*made(ratios)), [], PROTOCOL)
    assert np.mean(ratios) > 0.3, "a mean would be taken in"


@pytest.mark.parametrize(("correlation", "iterations"), [(0.0, 31), (0.6, 61)])
def test_the_error_is_that_of_the_median_in_correlated_noise_too(correlation, iterations):
    """z of a machine that did not move has a spread of about 1; with correlation unheeded it would be 2."""
    draws = np.random.default_rng(1)
    z = []
    for _ in range(300):
        steps = draws.normal(0, 0.1 * sqrt(1 - correlation**2), iterations)
        ratios = [draws.normal(0, 0.1)]
        for step in steps[1:]:
            ratios.append(correlation * ratios[-1] + step)
        seen = shift(*made(np.array(ratios)))
        z.append(seen.log_ratio / seen.error)
    assert 0.85 < np.std(z) < 1.4


def test_a_small_move_is_none_however_sure_and_a_great_one_none_within_the_noise():
    assert not moved(Shift(0.999 * log1p(0.05), 0.001), [], PROTOCOL)
    assert moved(Shift(-1.001 * log1p(0.05), 0.001), [], PROTOCOL)
    assert not moved(Shift(0.2, 0.051), [], PROTOCOL)
    assert moved(Shift(0.2, 0.049), [], PROTOCOL)
    assert not moved(Shift(0.2, 0.001), [], replace(PROTOCOL, drift_least=0.25))


def test_passes_that_always_lie_apart_are_the_machines_noise():
    usual = [Shift(0.05, 0.01), Shift(-0.06, 0.01), Shift(0.04, 0.01)]
    assert moved(Shift(0.2, 0.01), usual[:1], PROTOCOL), "one block says nothing of what is usual"
    assert not moved(Shift(0.2, 0.01), usual, PROTOCOL)
    assert moved(Shift(0.4, 0.01), usual, PROTOCOL)


def test_few_iterations_say_nothing():
    one, two = made(np.full(7, 1.0))
    assert shift(one, two) is None
    assert not moved(None, [], PROTOCOL)


def test_texts_of_different_length_are_compared_as_far_as_both_go():
    one, two = made(np.full(31, 0.3))
    assert shift(one, replace(two, iterations=two.iterations[:20])) == shift(*made(np.full(20, 0.3)))


def test_a_step_in_one_pass_is_caught_and_the_whole_block_measured_again(stepping):
    """Pass 5 is the second baseline of block 1: 20 % slow, once."""
    lines: list[str] = []
    result = stepping(lambda n: 1.2 if n == 5 else 1.0, lines=lines)
    calm = stepping(lambda n: 1.0)
    (measurement,), (undisturbed,) = result.measurements, calm.measurements
    assert measurement.metrics == replace(undisturbed.metrics, remeasured_blocks=1)
    assert [(b.index, b.place) for b in result.baseline.set_aside] == [(1, 0), (1, 2)]
    assert [(b.index, b.place) for b in measurement.set_aside] == [(1, 1)]
    assert [(b.index, b.place) for b in result.baseline.trace_blocks] == [(i, p) for i in range(4) for p in (0, 2)]
    assert [(b.index, b.place) for b in measurement.trace_blocks] == [(i, 1) for i in range(4)]
    assert lines[3] == "sim · chat · greedy · C1 · block 2/4 · again: the baseline moved by +20%"


@pytest.mark.parametrize("level", [1.2, 0.8])
def test_a_lasting_new_level_is_accepted_after_one_more_measurement(stepping, level):
    (measurement,) = stepping(lambda n: 1.0 if n < 5 else level).measurements
    assert (measurement.metrics.remeasured_blocks, measurement.metrics.drifted_blocks) == (1, 0)
    assert len(measurement.set_aside) == 1


@pytest.mark.parametrize("remeasure", [0, 1, 2, 4])
def test_what_never_calms_is_kept_at_its_calmest_and_said_so(stepping, remeasure):
    """Every attempt at the only block ends slower than it began, the second one least."""
    steps = [1.5, 1.2, 1.4, 1.3, 1.6]
    result = stepping(
        lambda n: steps[n // 3] if n % 3 == 2 else 1.0, prompt_count=1, protocol=Protocol(remeasure=remeasure)
    )
    (measurement,) = result.measurements
    assert (measurement.metrics.remeasured_blocks, measurement.metrics.drifted_blocks) == (min(remeasure, 1), 1)
    first, second = (block.trace.iterations[0].tau_ms for block in result.baseline.trace_blocks)
    assert second / first == pytest.approx(1.5 if remeasure == 0 else 1.2)
    assert len(measurement.set_aside) == remeasure
    assert len(result.baseline.set_aside) == 2 * remeasure


def test_a_candidate_that_fails_in_the_second_attempt_is_dropped_like_any_other(make_task, prepared, engine_for):
    other = Candidate(draft=replace(SMALL, name="other"), gamma=2)
    task = make_task(candidates=(FAST, other), prompt_count=3)
    # Drafts fail from their fourth run on: warm-up, block 0, block 1, and its second attempt.
    engine = engine_for(task, replace(QUIET, fail={"small": "error"}, fail_after=3))
    result = measure_round(Stepping(engine, 3, lambda n: 1.3 if n == 7 else 1.0), task, prepared, lambda line: None)
    assert [f.candidate for f in result.failures] == [FAST]
    (measurement,) = result.measurements
    assert (measurement.candidate, len(measurement.trace_blocks), len(measurement.set_aside)) == (other, 3, 1)


def test_near_ties_of_an_attempt_set_aside_are_not_counted(stepping):
    machine = replace(QUIET, fail={"small": "wrong_text"}, tie_margin=1e-4)
    (measurement,) = stepping(lambda n: 1.2 if n == 5 else 1.0, machine).measurements
    assert measurement.metrics.near_ties == 4


def test_the_looks_of_a_confirmation_add_their_marks_up(stepping):
    looks = [stepping(lambda n: 1.2 if n == 5 else 1.0, replicate=k, baseline_replicate=k) for k in range(2)]
    pooled = pool([look.measurements[0] for look in looks], [look.baseline for look in looks], 0.95)
    assert (pooled.metrics.remeasured_blocks, pooled.metrics.drifted_blocks) == (2, 0)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_calm_machine_is_measured_once(make_task, make_cell, prepared, engine_for, noise, concurrency):
    blocks = again = 0
    for seed in range(8):
        task = make_task(make_cell(concurrency=concurrency), candidates=(OFF,), prompt_count=12 * concurrency)
        task = replace(task, distinct_prompts=40 if concurrency == 4 else None)
        engine = engine_for(task, Machine(noise=noise, seed=seed))
        metrics = measure_round(engine, task, prepared, lambda line: None).measurements[0].metrics
        blocks, again = blocks + metrics.blocks, again + metrics.remeasured_blocks
    assert blocks == 96
    assert again <= 0.02 * blocks


@pytest.fixture
def mean_log_speedup(make_task, make_cell, prepared, engine_for):
    """(mean of log S of off beside off over many rounds, its standard error, blocks measured again).

    The true S is 1, and noise of whole passes makes a guard this strict fire all the time.
    """

    def go(rounds=120):
        logs, again = [], 0
        protocol = Protocol(drift_least=0.02, drift_z=2.0)
        task = make_task(make_cell(output_tokens=12), candidates=(OFF,), prompt_count=4, protocol=protocol)
        for seed in range(rounds):
            engine = engine_for(task, Machine(noise=0.02, block_noise=0.1, seed=seed))
            (measurement,) = measure_round(engine, task, prepared, lambda line: None).measurements
            logs.append(log(measurement.metrics.speedup))
            again += measurement.metrics.remeasured_blocks
        return float(np.mean(logs)), float(np.std(logs, ddof=1)) / sqrt(rounds), again

    return go


def test_choosing_by_the_difference_of_the_passes_does_not_bias_the_speedup(mean_log_speedup):
    mean, error, again = mean_log_speedup()
    assert again > 100
    assert abs(mean) < 3 * error


def test_choosing_by_how_slow_the_baseline_was_would_bias_it(mean_log_speedup, monkeypatch):
    """The same test of a guard that measures again what is slow, rather than what moved: it can fail."""
    usual_ms = Machine().tau0_ms + Machine().overhead_ms
    monkeypatch.setattr(
        pipeline.measurement.round, "shift", lambda _, b: Shift(log(b.iterations[0].tau_ms / usual_ms), 0.0)
    )
    monkeypatch.setattr(pipeline.measurement.round, "moved", lambda seen, kept, protocol: seen.log_ratio > 0)
    mean, error, again = mean_log_speedup()
    assert again > 100
    assert mean < -3 * error
