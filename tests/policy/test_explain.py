"""The sentence that answers: why is it not the ideal speedup?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeline.policy.decide import decide
from pipeline.policy.explain import sentence


@pytest.fixture
def metrics(make_measurement):
    """The design's worked example, of which a tenth was lost to proposals that were not made."""
    return make_measurement(
        speedup=2.02,
        acceptance_rate=0.8,
        c=0.05,
        d=0.2,
        v=1.25,
        h=0.05,
        speedup_ideal=2.80,
        speedup_geometric=2.24,
        factor_drafting=1.0,
        factor_verification=0.83,
        factor_overhead=0.963,
        factor_proposals=0.9,
        factor_independence=1.002,
        factor_occupancy=1.0,
    ).metrics


def test_the_worked_example_is_answered(metrics) -> None:
    assert sentence(metrics) == (
        "at α 0.80 and c 0.05 the ideal is 2.80×; verification of 1.25 steps (×0.83) and overhead (×0.96) make that "
        "2.24×; proposals not made (×0.90) make it the measured 2.02×"
    )


def test_what_changes_nothing_is_not_named(metrics) -> None:
    ideal = replace(
        metrics, speedup=2.8, speedup_geometric=2.8, factor_verification=1.0, factor_overhead=1.0, factor_proposals=1.0
    )
    assert sentence(ideal) == "at α 0.80 and c 0.05 the ideal is 2.80×; measured 2.80×"


def test_every_factor_that_matters_is_named_a_gain_as_well(metrics) -> None:
    text = sentence(replace(metrics, factor_drafting=1.1, factor_independence=0.95, factor_occupancy=0.98))
    for part in ("drafting of 0.20 steps (×1.10)", "not independent (×0.95)", "slots unlike the baseline's (×0.98)"):
        assert part in text


def test_without_a_tested_proposal_there_is_no_ideal(make_measurement) -> None:
    assert "no proposal was ever tested" in sentence(make_measurement(acceptance_rate=None).metrics)


@pytest.mark.parametrize("broken", [{"c": None}, {"speedup_ideal": math.nan}, {"speedup": math.inf}])
def test_figures_that_are_no_numbers_are_not_explained(metrics, broken) -> None:
    assert sentence(replace(metrics, **broken)) == ""


def test_every_decision_with_evidence_carries_it(make_measurement, metrics) -> None:
    measured = replace(make_measurement("conf", kind="confirmation"), metrics=metrics)
    for search, confirmation in (([], measured), ([measured], None)):
        assert decide(measured.cell, search, confirmation, [], 0.03).why == sentence(metrics)
    assert decide(measured.cell, [], None, [], 0.03, out_of_budget=True).why == ""
