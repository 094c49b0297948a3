"""The course of one cell on the simulated machine: what a wrong forecast costs it, and what failures do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from course_driver import Driver, X, Y, cell_of

from pipeline.confirming import CONFIRMATION_LEVEL, look_level
from pipeline.measurement.protocol import LOOKS
from pipeline.measurement.student import t_quantile
from pipeline.records.task import RoundResult, RoundTask

ABOUT_1_04 = {"alpha__x": 0.35, "draft_ms__x": 2.1}
SLOW = {"alpha__y": 0.2, "draft_ms__y": 2.0}
FAST = {"alpha__y": 0.9, "draft_ms__y": 0.5}


def test_a_disappointing_first_choice_is_not_forgotten_for_a_worse_second() -> None:
    driver = Driver(cell_of(**ABOUT_1_04, **SLOW), {"x": 1.6, "y": 1.3})
    decision = driver.run()
    assert decision.draft == X
    assert driver.rounds()[:2] == ["forecast x+y", "confirmation_look x"]
    assert "search x+y" in driver.rounds()
    assert not any(said == "confirmation_look y" for said in driver.rounds()), "it was ranked behind"


def test_a_better_second_choice_is_searched_and_confirmed_at_a_stricter_level() -> None:
    driver = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", Y)
    assert driver.rounds().count("search x+y") == 1
    levels = {task.candidates[0].draft: task.level for task in driver.tasks if task.kind == "confirmation_look"}
    assert levels == {X: CONFIRMATION_LEVEL, Y: look_level(1)}


def test_a_first_choice_that_is_on_still_gives_way_to_what_should_beat_it() -> None:
    good = {"alpha__x": 0.6, "draft_ms__x": 0.5}
    driver = Driver(cell_of(**good, **FAST), {"x": 3.5, "y": 2.3})
    assert driver.run().draft == Y


def test_a_first_choice_as_forecast_needs_nothing_else() -> None:
    driver = Driver(cell_of(**FAST, alpha__x=0.3), {})
    assert driver.run().draft == Y
    assert set(driver.rounds()) == {"forecast x+y", "confirmation_look y"}


@pytest.mark.parametrize("done", range(1, 8))
def test_a_course_taken_up_anywhere_ends_as_it_would_have(done: int) -> None:
    whole = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    expected = whole.run()
    first = Driver(cell_of(**ABOUT_1_04, **FAST), {"x": 3.5, "y": 2.3})
    again = first.taken_up_after(done)
    decision = again.run()
    assert (decision.status, decision.draft) == (expected.status, expected.draft)
    assert len(first.tasks) + len(again.tasks) <= len(whole.tasks) + 1


class OnceBroken(Driver):
    """The first scoring of draft y fails as a busy worker might."""

    def measure(self, task: RoundTask) -> RoundResult:
        result = super().measure(task)
        if task.kind != "forecast" or result.forecast is None:
            return result
        kept = tuple(f for f in result.forecast.forecasts if f.candidate.draft == X)
        return replace(result, forecast=replace(result.forecast, forecasts=kept))


def test_a_draft_without_a_forecast_is_measured_all_the_same() -> None:
    driver = OnceBroken(cell_of(**FAST, alpha__x=0.6), {})
    assert driver.run().draft == Y
    assert any("search" in said and "y" in said for said in driver.rounds())


def test_a_timing_pass_that_does_not_fit_fails_no_cell() -> None:
    driver = Driver(cell_of(**FAST, alpha__x=0.6), {})

    def too_wide(*_: object, **__: object) -> None:
        raise MemoryError("no room for such a width")

    driver.engine.time_widths = too_wide  # type: ignore[assignment]
    assert (driver.run().status, driver.course.decision.draft) == ("on", Y)  # type: ignore[union-attr]


class FailingLook(Driver):
    """Draft x writes wrong text in look ``at`` of its confirmation, which the gate for text meets."""

    at = 1

    def measure(self, task: RoundTask) -> RoundResult:
        looked_at = task.candidates[0].draft if task.kind == "confirmation_look" else None
        fails = looked_at == X and task.replicate % LOOKS == self.at
        self.engine._machine = replace(self.engine._machine, fail={"x": "wrong_text"} if fails else {})
        return super().measure(task)


class FailingAtOnce(FailingLook):
    at = 0


UNSURE = {"alpha__x": 0.6, "draft_ms__x": 4.0, "alpha__y": 0.6, "draft_ms__y": 1.0}
"""x gains a tenth: one look cannot tell."""


def test_a_confirmation_that_failed_after_a_look_has_spent_its_share_of_the_error() -> None:
    driver = FailingLook(cell_of(**UNSURE), {"x": 3.0})
    assert driver.run().draft == Y
    assert driver.levels() == [("x", CONFIRMATION_LEVEL), ("x", CONFIRMATION_LEVEL), ("y", look_level(1))]


def test_a_confirmation_that_failed_before_any_look_has_spent_nothing() -> None:
    driver = FailingAtOnce(cell_of(**UNSURE), {"x": 3.0})
    assert driver.run().draft == Y
    assert driver.levels() == [("x", CONFIRMATION_LEVEL), ("y", CONFIRMATION_LEVEL)]


@pytest.mark.parametrize(
    ("searched", "y_costs_ms", "told"),
    [(False, 1.0, {"x": 3.0}), (False, 1.0, {"x": 3.0, "y": 1.05}), (True, 4.3, {"x": 1.3, "y": 1.28})],
)
def test_what_failed_in_its_confirmation_is_neither_tried_again_nor_forgotten_on_resume(
    searched: bool, y_costs_ms: float, told: dict[str, float]
) -> None:
    first = FailingLook(cell_of(**UNSURE | {"draft_ms__y": y_costs_ms}), told)
    while not first.course._failures:
        assert first.step()
    assert first.levels() == [("x", CONFIRMATION_LEVEL)] * 2
    assert ("search x+y" in first.rounds()) is searched
    again = first.again()
    decision = again.run()
    assert decision.draft == Y
    assert set(again.levels()) == {("y", look_level(1))}
    assert not any("x" in said for said in again.rounds())


class FailingLater(Driver):
    """Draft y is confirmed, and writes wrong text in the search after that."""

    def measure(self, task: RoundTask) -> RoundResult:
        fails = task.kind == "search"
        self.engine._machine = replace(self.engine._machine, fail={"y": "wrong_text"} if fails else {})
        return super().measure(task)


def test_what_fails_after_its_confirmation_is_on_neither_now_nor_after_a_resume() -> None:
    fast = {"alpha__y": 0.9, "draft_ms__y": 0.5, "alpha__x": 0.1}
    driver = FailingLater(cell_of(**fast), {"y": 6.0, "x": 5.0})
    decision = driver.run()
    assert (
        driver.rounds()[:3] == ["forecast x+y", "confirmation_look y", "search x+y"] or "search x+y" in driver.rounds()
    )
    assert driver.shelf.failures()
    assert decision.draft != Y
    again = driver.again().course.decision
    assert again is not None
    assert (again.status, again.draft) == (decision.status, decision.draft)


class Moving(Driver):
    """Its second look at a candidate is made on another device."""

    def measure(self, task: RoundTask) -> RoundResult:
        result = super().measure(task)
        if task.kind != "confirmation_look" or task.replicate != 1:
            return result
        moved = [replace(m, provenance=replace(m.provenance, device="another")) for m in result.measurements]
        return replace(result, measurements=tuple(moved))


@pytest.mark.parametrize("done", range(1, 7))
def test_a_course_that_moves_to_another_device_is_taken_up_where_it_was(done: int) -> None:
    whole = Moving(cell_of(**UNSURE), {"x": 3.0})
    expected = whole.run()
    assert len(whole.levels()) > LOOKS
    first = Moving(cell_of(**UNSURE), {"x": 3.0})
    again = first.taken_up_after(done)
    decision = again.run()
    assert (decision.status, decision.draft) == (expected.status, expected.draft)
    assert first.rounds() + again.rounds() == whole.rounds()


@pytest.mark.parametrize("attempts", [1, 2, 3, 10, 40])
def test_all_attempts_together_err_in_at_most_one_cell_in_twenty(attempts: int) -> None:
    spent = [(1 - look_level(earlier)) * LOOKS for earlier in range(attempts)]
    assert sum(spent) <= 0.05
    assert spent[:2] == pytest.approx([0.04, 0.005][:attempts])
    assert spent == sorted(set(spent), reverse=True)


def test_a_level_after_however_many_attempts_is_one_that_an_interval_can_have() -> None:
    assert 0.99 < look_level(1000) < 1 - 1e-16
    t_quantile((1 + look_level(1000)) / 2, 20)
