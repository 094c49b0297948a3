"""The simulated machine beside a real cell of the decoding engine: how cost and gain move with γ and concurrency."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.engines.machine import Machine, machine_from
from pipeline.engines.truth import Truth, truth
from pipeline.records.target import Candidate, Ngram

SMOLLM2 = "simulated:?device=cpu&shape=30x576x1536x9x3x64x49152xtied&match_tokens=8&overhead_ms=0.4"
CELL = json.loads((Path(__file__).parent / "data" / "smollm2_code_edit_ngram.json").read_text())["runs"]
GAMMAS = (1, 2, 4, 8)


def real(concurrency: int, gamma: int) -> dict[str, float]:
    (run,) = (r for r in CELL if (r["concurrency"], r["gamma"]) == (concurrency, gamma))
    return {
        "emitted": run["emitted"] / run["row_iterations"],
        "tau_ms": run["tau_ms"] / run["iterations"],
        "positions": (run["row_iterations"] + run["proposed"]) / run["iterations"],
    }


def real_speedup(concurrency: int, gamma: int) -> float:
    spec, plain = real(concurrency, gamma), real(concurrency, 0)
    return spec["emitted"] * plain["tau_ms"] / spec["tau_ms"]


def simulated(concurrency: int, gamma: int, alpha: float = 57 / 96, miss: float = 0.55) -> Truth:
    """α as the run at γ = 1 had it; how often it misses set so that as many blocks of that run propose."""
    machine = machine_from(SMOLLM2, Machine(dtype="float32", alpha=alpha, miss=miss))
    candidate = Candidate(draft=Ngram(name="ngram"), gamma=gamma)
    return truth(machine, candidate, concurrency=concurrency, prompt_tokens=328, output_tokens=32)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_tokens_and_times_of_a_verification_come_near_the_real_ones(concurrency, gamma):
    found, spec = simulated(concurrency, gamma), real(concurrency, gamma)
    assert found.emitted_per_verification == pytest.approx(spec["emitted"], rel=0.1)
    ratio = spec["tau_ms"] / real(concurrency, 0)["tau_ms"]
    assert found.tau_spec_ms / found.tau0_ms == pytest.approx(ratio, rel=0.35)  # it was a busy machine


@pytest.mark.parametrize("concurrency", [1, 4])
def test_verification_costs_more_as_it_widens_but_less_than_its_positions(concurrency):
    runs = [real(concurrency, gamma) for gamma in (0, *GAMMAS)]
    found = [simulated(concurrency, gamma) for gamma in GAMMAS]
    for narrow, wide in pairwise(runs):
        assert narrow["tau_ms"] < wide["tau_ms"]
        assert wide["tau_ms"] / narrow["tau_ms"] < wide["positions"] / narrow["positions"]
    assert found[-1].tau_spec_ms > found[0].tau_spec_ms
    assert found[-1].tau_spec_ms / found[-1].tau0_ms < runs[-1]["positions"] / runs[0]["positions"]


def test_what_gains_alone_gains_less_in_company_in_both():
    for gamma in GAMMAS[2:]:
        assert simulated(4, gamma).speedup < simulated(1, gamma).speedup
        assert real_speedup(4, gamma) < real_speedup(1, gamma)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_gamma_that_the_machine_takes_for_the_best_is_near_the_best_of_the_real_cell(concurrency):
    chosen = max(GAMMAS, key=lambda gamma: simulated(concurrency, gamma).speedup)
    best = max(real_speedup(concurrency, gamma) for gamma in GAMMAS)
    assert real_speedup(concurrency, chosen) > 0.9 * best


def test_wide_proposals_that_are_seldom_accepted_do_not_pay_in_company():
    speedups = [simulated(4, gamma, alpha=0.33, miss=0.0).speedup for gamma in GAMMAS]
    assert speedups[-1] < 0.8 < speedups[1]
