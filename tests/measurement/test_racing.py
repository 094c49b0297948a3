"""A search goes on without candidates that are surely behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_rounds import NGRAM, SMALL

from pipeline.engines.machine import Machine
from pipeline.measurement.racing import losers
from pipeline.measurement.statistics import Sample, log_ratio, paired
from pipeline.policy.decide import choose, fair_speedup
from pipeline.records.measurement import BlockSums, Unit
from pipeline.records.target import Candidate


def sample(speedups: list[float]) -> Sample:
    """A prompt for each speedup: 30 tokens in 30/S plain steps of 10 ms."""
    units = [
        Unit(
            prompt_id=f"p{n}",
            emitted=30,
            row_iterations=20,
            tau_ms=300.0 / s,
            baseline_emitted=30,
            baseline_row_iterations=30,
            baseline_tau_ms=300.0,
        )
        for n, s in enumerate(speedups)
    ]
    blocks = [BlockSums(index=n, tau_ms=15.0 / s, baseline_tau_ms=10.0) for n, s in enumerate(speedups)]
    return Sample(units, blocks)


def test_a_candidate_behind_on_every_prompt_is_lost_and_an_equal_one_is_not() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.01, (3, 10))
    prompts = np.linspace(1.0, 2.0, 10)  # what prompts have in common takes nothing from the test
    arms = {
        name: sample((prompts * level * np.exp(noise[i])).tolist())
        for i, (name, level) in enumerate([("best", 1.0), ("equal", 0.998), ("slow", 0.9)])
    }
    assert losers(arms, 1) == {"slow"}


def test_nothing_is_lost_on_fewer_than_eight_prompts() -> None:
    arms = {"best": sample([2.0] * 7), "slow": sample([1.0 + 0.001 * n for n in range(7)])}
    assert losers(arms, 1) == frozenset()


def test_the_best_is_never_lost_and_one_arm_alone_neither() -> None:
    assert losers({"only": sample([0.5] * 9)}, 1) == frozenset()
    arms = {n: sample((np.linspace(1, 2, 9) * (1 + 0.1 * n)).tolist()) for n in range(4)}
    assert 3 not in losers(arms, 1)


def test_of_equal_candidates_few_are_lost() -> None:
    """One in a hundred against a given other; the best of three is chosen for being ahead, so somewhat more."""
    draws = np.random.default_rng(1)
    lost = 0
    for _ in range(300):
        prompts = draws.normal(0.0, 0.3, 10)
        arms = {n: sample(np.exp(prompts + draws.normal(0.0, 0.05, 10)).tolist()) for n in range(3)}
        lost += len(losers(arms, 1))
    assert lost / 600 < 0.07


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_round_drops_a_loser_and_keeps_what_it_measured(make_task, make_cell, measure, concurrency) -> None:
    candidates = (Candidate(draft=NGRAM, gamma=4), Candidate(draft=SMALL, gamma=4))
    machine = Machine(by_draft={"alpha.ngram": 0.9, "alpha.small": 0.05, "draft_ms.small": 4.0})
    task = make_task(make_cell(concurrency=concurrency), candidates=candidates, prompt_count=24)
    good, bad = sorted(measure(task, machine).measurements, key=lambda m: -m.metrics.speedup)
    assert good.candidate.draft == NGRAM
    assert good.metrics.units == 24
    assert 8 <= bad.metrics.units < 24
    # as if the round had been that short
    short = replace(task, prompt_count=bad.metrics.units, kind="confirmation_look", candidates=candidates[1:])
    alone = measure(short, replace(machine, noise=0.0)).measurements[0]
    assert bad.metrics.speedup == pytest.approx(alone.metrics.speedup, rel=0.03)
    assert {u.prompt_id for u in bad.unit_sums} == {u.prompt_id for u in alone.unit_sums}
    ratio, error = log_ratio(good, bad)  # over the prompts that both decoded
    assert 0 < error < ratio


def test_what_was_raced_out_is_not_chosen_for_the_easy_prompts_it_was_measured_on(make_task, measure) -> None:
    candidates = (Candidate(draft=NGRAM, gamma=4), Candidate(draft=SMALL, gamma=4))
    machine = Machine(by_draft={"alpha.ngram": 0.9, "alpha.small": 0.05, "draft_ms.small": 4.0})
    good, bad = sorted(
        measure(make_task(candidates=candidates, prompt_count=24), machine).measurements,
        key=lambda m: -m.metrics.speedup,
    )
    assert (good.metrics.raced_out, bad.metrics.raced_out) == (False, True)
    flattered = replace(bad, metrics=replace(bad.metrics, speedup=good.metrics.speedup + 1))
    assert choose([flattered, good]) == good
    fair = fair_speedup(flattered, (good, flattered))
    assert fair < good.metrics.speedup
    assert fair == pytest.approx(bad.metrics.speedup, rel=0.1)
    assert fair_speedup(good, (good, flattered)) == good.metrics.speedup


def test_a_confirmation_drops_nothing(make_task, measure) -> None:
    candidates = (Candidate(draft=NGRAM, gamma=4), Candidate(draft=SMALL, gamma=4))
    machine = Machine(by_draft={"alpha.ngram": 0.9, "alpha.small": 0.05, "draft_ms.small": 4.0})
    task = make_task(candidates=candidates, prompt_count=20, kind="confirmation_look")
    assert {m.metrics.units for m in measure(task, machine).measurements} == {20}


def test_a_search_under_limits_drops_nothing(make_task, measure) -> None:
    candidates = (Candidate(draft=NGRAM, gamma=4), Candidate(draft=SMALL, gamma=4))
    machine = Machine(by_draft={"alpha.ngram": 0.9, "alpha.small": 0.05, "draft_ms.small": 4.0})
    task = make_task(candidates=candidates, prompt_count=20, racing=False)
    assert {m.metrics.units for m in measure(task, machine).measurements} == {20}


def test_pairs_with_too_little_in_common_say_nothing() -> None:
    assert paired(sample([1.0]), sample([1.0]), 1) is None
