"""Attempts at confirming a winner: which looks count, how sure each must be, and when limits judge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from course_driver import Driver, X, cell_of

from pipeline.benchmarks.search.whole import Shelf
from pipeline.confirming import CONFIRMATION_LEVEL, Confirming, look_level
from pipeline.measurement.protocol import LOOKS
from pipeline.records.measurement import Measurement
from pipeline.records.settings import NO_LIMITS, Constraints

MARGIN = 0.03


@pytest.fixture(scope="module")
def told() -> tuple[Shelf, list[Measurement]]:
    """All three looks at a draft that gains too little to be sure of."""
    driver = Driver(cell_of(alpha__x=0.6, draft_ms__x=4.3, alpha__y=0.1), {"x": 3.0, "y": 0.5})
    driver.run()
    looks = [m for m in driver.shelf.measurements() if m.kind == "confirmation_look" and m.candidate.draft == X]
    assert len(looks) == LOOKS
    return driver.shelf, sorted(looks, key=lambda look: look.replicate)


def confirming(told, constraints: Constraints = NO_LIMITS) -> Confirming:
    return Confirming(told[1][0].cell, told[0], MARGIN, constraints)


def test_looks_in_order_are_one_attempt(told) -> None:
    made = confirming(told)
    for place, look in enumerate(told[1]):
        assert (made.replicate, made.level) == (place, CONFIRMATION_LEVEL)
        pooled = made.enter(look)
        assert pooled is not None
        assert pooled.parts == tuple(m.id for m in told[1][: place + 1])
        assert pooled.metrics.interval_level == CONFIRMATION_LEVEL
    assert made.is_complete


def test_looks_whose_first_is_lost_are_one_attempt_that_has_spent_its_share(told) -> None:
    made = confirming(told)
    assert [made.enter(look) for look in told[1][1:]] == [None, None]
    assert (made.attempt, made.looks, made.level) == (1, 0, look_level(1))
    assert made.replicate == LOOKS
    assert made.current is None


def test_limits_judge_a_complete_attempt_and_no_unfinished_one(told) -> None:
    made = confirming(told, Constraints(gap_ms_p95=1.0))
    judged = []
    for look in told[1]:
        made.enter(look)
        judged.append((made.is_complete, made.broke_a_limit))
    assert judged == [(False, False), (False, False), (True, True)]
    candidate = told[1][0].candidate
    assert (made.fit, made.unfit) == (frozenset(), frozenset())
    made.begin_again()
    assert made.unfit == {candidate}
    assert made.settles(candidate)


def test_what_is_confirmed_to_keep_to_the_limits_is_fit(told) -> None:
    kept = confirming(told, Constraints(gap_ms_p95=99.0))
    for look in told[1]:
        kept.enter(look)
    assert kept.fit == {told[1][0].candidate}
    assert not kept.broke_a_limit
    kept.begin_again()
    assert (kept.fit, kept.unfit) == ({told[1][0].candidate}, frozenset())


def test_one_within_the_limits_is_better_evidence_than_a_faster_one_beyond(told) -> None:
    (x,) = {look.candidate for look in told[1]}
    slower = replace(x, gamma=1)
    made = confirming(told, Constraints(gap_ms_p95=30.0))
    for attempt, (candidate, gap_ms, speedup) in enumerate(((x, 40.0, 2.0), (slower, 20.0, 1.5))):
        for place, look in enumerate(told[1]):
            metrics = replace(look.metrics, speedup=speedup)
            made.enter(replace(look, candidate=candidate, metrics=metrics, replicate=attempt * LOOKS + place))
        assert made.current is not None
        made.current = replace(
            made.current, metrics=replace(made.current.metrics, gap_ms_p95=gap_ms, speedup=speedup, speedup_low=1.2)
        )
        made.begin_again()
    assert (made.fit, made.unfit) == ({slower}, {x})
    assert made.best is not None
    assert made.best.candidate == slower
    made.forget(slower)
    assert made.best.candidate == x
