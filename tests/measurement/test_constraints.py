"""Which limits a measurement breaks, and by how much."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.measurement.constraints import THROUGHPUT_RATIO, broken, checks, unfit
from pipeline.records.measurement import Metrics
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.target import Candidate, Ngram

TIMES = [f.name for f in fields(Constraints) if f.name != THROUGHPUT_RATIO]
figures = st.floats(1e-6, 1e6)


@pytest.fixture
def metrics(make_measurement) -> Metrics:
    return make_measurement(output_tokens_per_s=12.0, baseline_output_tokens_per_s=10.0).metrics


def test_a_limit_is_named_as_the_metric_that_it_bounds() -> None:
    assert {f.name for f in fields(Constraints)} <= {f.name for f in fields(Metrics)}
    assert {f.name for f in fields(Constraints)} == {*TIMES, "speedup_e2e"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(TIMES), value=figures, limit=figures)
def test_a_time_is_broken_exactly_above_its_limit(metrics, name, value, limit) -> None:
    (check,) = checks(replace(metrics, **{name: value}), Constraints(**{name: limit}))
    assert (check.name, check.value, check.limit) == (name, value, limit)
    assert check.broken == (value > limit)
    assert check.excess == pytest.approx(value / limit - 1, rel=1e-9, abs=1e-9)
    assert broken(replace(metrics, **{name: value}), Constraints(**{name: limit})) == (
        (check,) if value > limit else ()
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ratio=figures, limit=figures)
def test_a_throughput_is_broken_exactly_below_its_limit(metrics, ratio, limit) -> None:
    (check,) = checks(replace(metrics, speedup_e2e=ratio), Constraints(speedup_e2e=limit))
    assert (check.value, check.broken) == (ratio, ratio < limit)
    assert check.excess == pytest.approx(1 - ratio / limit, rel=1e-9, abs=1e-9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=figures, by=st.integers(1, 3))
def test_no_excess_is_lost_to_rounding(metrics, limit, by) -> None:
    above = below = limit
    for _ in range(by):
        above, below = math.nextafter(above, math.inf), math.nextafter(below, 0.0)
    held = Constraints(tpot_ms_p95=limit)
    for value, breaks in ((above, True), (limit, False), (below, False)):
        assert bool(broken(replace(metrics, tpot_ms_p95=value), held)) is breaks


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.floats(1e-3, 1e6), limit=st.floats(1e-3, 1e6))
def test_what_is_said_tells_the_two_figures_apart(metrics, value, limit) -> None:
    for check in broken(replace(metrics, gap_ms_p99=value), Constraints(gap_ms_p99=limit)):
        name, shown, *_, allowed = check.said().split()
        assert name == "gap_ms_p99"
        assert float(shown) > float(allowed)


def test_what_is_said_is_as_short_as_it_may_be(metrics) -> None:
    def said(plain: float | None = None, **limits: float) -> list[str]:
        return [
            check.said(plain)
            for check in broken(replace(metrics, tpot_ms_p99=61.234, speedup_e2e=1.2), Constraints(**limits))
        ]

    assert said(tpot_ms_p99=50.0) == ["tpot_ms_p99 61.2 is above 50"]
    assert said(tpot_ms_p99=61.21) == ["tpot_ms_p99 61.23 is above 61.21"]
    assert said(tpot_ms_p99=0.001) == ["tpot_ms_p99 61.234 is above 0.001"]
    assert said(70.04, tpot_ms_p99=50.0) == ["tpot_ms_p99 61.2 is above 50 (plain decoding: 70)"]
    assert said(speedup_e2e=1.25) == ["speedup_e2e 1.2 is below 1.25"]


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_undefined_breaks_nothing(metrics, name, value) -> None:
    assert checks(replace(metrics, **{name: value}), Constraints(**{name: 1.0})) == ()
    assert checks(replace(metrics, speedup_e2e=math.nan), Constraints(speedup_e2e=1.0)) == ()
    assert checks(replace(metrics, **{name: 2.0}), Constraints(**{name: math.inf})) == (), "nor is that a limit"


def test_without_limits_nothing_is_checked(metrics) -> None:
    assert checks(replace(metrics, **dict.fromkeys(TIMES, 9e9)), NO_LIMITS) == ()


def test_unfit_is_who_broke_any_limit(make_measurement) -> None:
    slow, quick = (
        make_measurement(candidate=Candidate(draft=Ngram(name="n"), gamma=gamma), tpot_ms_p95=1.0, gap_ms_p99=gap)
        for gamma, gap in ((2, 50.0), (4, 20.0))
    )
    assert unfit([slow, quick], Constraints(tpot_ms_p95=2.0, gap_ms_p99=30.0)) == {slow.candidate}
