"""A measurement that differs from an exact replay is told of; one that may differ is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_forecast import CANDIDATES, GREEDY, QUIET, SAMPLED, forecast, opened, prepared, task_of

from pipeline.measurement.round import measure_round
from pipeline.records.measurement import Measurement
from pipeline.search.agreement import disagreement


@pytest.fixture(scope="module")
def measured() -> tuple[Measurement, ...]:
    task = replace(task_of(CANDIDATES), kind="confirmation_look")  # no candidate dropped half way
    found = measure_round(opened(task, QUIET), task, prepared(), lambda line: None).measurements
    return tuple(replace(m, kind="search") for m in found)


def off_by_one(measurement: Measurement, **changes: object) -> Measurement:
    counted = (measurement.metrics.emitted_per_verification or 0) + 0.01
    metrics = replace(measurement.metrics, emitted_per_verification=counted, **changes)  # type: ignore[arg-type]
    return replace(measurement, metrics=metrics)


def test_a_right_engine_agrees_and_one_that_counts_wrongly_is_told_of(measured) -> None:
    known = forecast(task_of(CANDIDATES), QUIET)
    for m in measured:
        assert disagreement(m, known, GREEDY) is None
        said = disagreement(off_by_one(m), known, GREEDY)
        assert said is not None
        assert m.candidate.label in said


def test_what_may_differ_is_not_told_of(measured) -> None:
    known = forecast(task_of(CANDIDATES), QUIET)
    wrong = off_by_one(measured[-1])
    assert disagreement(wrong, None, GREEDY) is None
    assert disagreement(wrong, known, SAMPLED) is None  # a draft model's proposals are drawn
    assert disagreement(replace(wrong, kind="confirmation_look"), known, GREEDY) is None
    assert disagreement(off_by_one(measured[-1], near_ties=1), known, GREEDY) is None
    assert disagreement(off_by_one(measured[-1], units=5), known, GREEDY) is None
