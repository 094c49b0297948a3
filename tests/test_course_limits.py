"""The course of one cell under limits of latency and throughput: who breaks one gives way to the next best."""

from __future__ import annotations

from dataclasses import replace

import pytest
from course_driver import Driver, X, Y, cell_of

from pipeline.confirming import CONFIRMATION_LEVEL, look_level
from pipeline.measurement.protocol import LOOKS
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.target import Candidate, DraftModel
from pipeline.records.task import RoundResult, RoundTask

BURSTY = {"alpha__x": 0.5, "draft_ms__x": 0.1, "alpha__y": 0.95, "draft_ms__y": 2.0}
"""y is the faster, and its iterations take 14 ms, x's 10.3."""
GAPS = Constraints(gap_ms_p95=12.0)
LOOKS_AT_X, LOOKS_AT_Y = ([f"confirmation_look {draft}"] * LOOKS for draft in "xy")
"""Under limits a confirmation has all its looks."""


def test_without_a_limit_the_fastest_is_on() -> None:
    driver = Driver(cell_of(**BURSTY), {})
    assert (driver.run().draft, set(driver.rounds())) == (Y, {"forecast x+y", "confirmation_look y"})


def test_where_the_fastest_breaks_a_limit_in_its_confirmation_the_next_best_is_on() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", *LOOKS_AT_Y, "search x", *LOOKS_AT_X]
    assert driver.levels() == [("y", CONFIRMATION_LEVEL)] * LOOKS + [("x", look_level(1))] * LOOKS
    assert "; y γ2 is faster at " in decision.reason
    assert decision.reason.endswith("but gap_ms_p95 14.2 is above 12")


def test_where_the_fastest_breaks_a_limit_in_the_search_it_is_never_confirmed() -> None:
    driver = Driver(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", "search x+y", *LOOKS_AT_X]
    assert driver.levels() == [("x", CONFIRMATION_LEVEL)] * LOOKS
    assert not any(task.racing for task in driver.tasks), "the one ahead may break a limit"


class Stalling(Driver):
    """Draft y is slower in its confirmation than it was in the search: still the faster, but in too long steps."""

    searched_ms, confirmed_ms = 0.8, 2.0

    def measure(self, task: RoundTask) -> RoundResult:
        cost = self.confirmed_ms if task.kind == "confirmation_look" else self.searched_ms
        self.engine._machine = replace(
            self.engine._machine, by_draft={**self.engine._machine.by_draft, "draft_ms.y": cost}
        )
        return super().measure(task)


def test_where_the_search_saw_no_harm_in_it_the_next_best_of_the_search_is_confirmed() -> None:
    driver = Stalling(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=GAPS)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("on", X)
    assert driver.rounds() == ["forecast x+y", "search x+y", *LOOKS_AT_Y, *LOOKS_AT_X]


class Easing(Stalling):
    """Draft y takes long steps in the search, and shorter ones in its confirmation."""

    searched_ms, confirmed_ms = 2.0, 0.8


def test_a_confirmation_knows_better_than_a_search_who_keeps_to_the_limits() -> None:
    driver = Easing(cell_of(**BURSTY), {"y": 3.5, "x": 2.8}, limits=GAPS)
    decision = driver.run()
    assert driver.rounds() == ["forecast x+y", *LOOKS_AT_Y, "search x+y"]
    assert (decision.status, decision.draft) == ("on", Y)
    searched = {m.candidate.draft: m.metrics.gap_ms_p95 for m in driver.shelf.measurements() if m.kind == "search"}
    assert searched[Y] > 12.0


def test_where_all_break_a_limit_the_cell_is_off_and_says_what_was_best() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=Constraints(gap_ms_p95=10.0))
    decision = driver.run()
    assert (decision.status, decision.speculate, decision.draft) == ("off", False, Y)
    assert driver.rounds() == ["forecast x+y", *LOOKS_AT_Y, "search x", *LOOKS_AT_X], "a search only ranks"
    assert decision.measurement in {m.id for m in driver.course.confirmations}
    assert decision.reason.startswith("y γ2 was best at 2.")
    said = "98.7 %) on 24 fresh prompts, but gap_ms_p95 14.2 is above 10 (plain decoding: 10.2)"
    assert decision.reason.endswith(f"{said}; none of the 2 that were confirmed keeps to the limits")


def test_a_gain_below_the_least_throughput_is_off() -> None:
    driver = Driver(cell_of(**BURSTY), {}, limits=Constraints(speedup_e2e=5.0))
    decision = driver.run()
    assert decision.status == "off"
    assert "but speedup_e2e 2.01 is below 5;" in decision.reason


def test_a_limit_that_nothing_breaks_changes_nothing() -> None:
    free, held = (Driver(cell_of(**BURSTY), {}, limits=limits) for limits in (NO_LIMITS, Constraints(gap_ms_p95=99.0)))
    one, other = free.run(), held.run()
    assert (one.status, one.draft, one.gamma) == (other.status, other.draft, other.gamma)
    assert [r for r in free.rounds() if "look" not in r] == [r for r in held.rounds() if "look" not in r]


class Collapsing(Stalling):
    """Draft y, fast in the search, loses in its confirmation."""

    confirmed_ms = 14.0


@pytest.mark.parametrize("limits", [NO_LIMITS, GAPS])
def test_a_sure_loss_is_off_with_or_without_a_limit_that_it_breaks(limits: Constraints) -> None:
    driver = Collapsing(cell_of(**BURSTY), {"x": 2.0, "y": 2.0}, limits=limits)
    decision = driver.run()
    assert (decision.status, decision.draft) == ("off", Y)
    assert decision.reason.startswith("y γ2 was best at 0.")
    assert "gap_ms_p95" not in decision.reason
    assert {draft for draft, _ in driver.levels()} == {"y"}


@pytest.mark.parametrize("gap_ms", [10.0, 12.0])
@pytest.mark.parametrize("told", [{}, {"x": 2.0, "y": 2.0}], ids=["fast track", "searched"])
@pytest.mark.parametrize("kind", [Driver, Stalling])
@pytest.mark.parametrize("done", range(1, 5))
def test_a_course_under_limits_taken_up_anywhere_ends_as_it_would_have(
    kind: type[Driver], told: dict[str, float], gap_ms: float, done: int
) -> None:
    limits = Constraints(gap_ms_p95=gap_ms)
    whole = kind(cell_of(**BURSTY), told, limits=limits)
    expected = whole.run()
    first = kind(cell_of(**BURSTY), told, limits=limits)
    again = first.taken_up_after(done)
    decision = again.run()
    assert (decision.status, decision.draft) == (expected.status, expected.draft)
    assert first.rounds() + again.rounds() == whole.rounds()
    assert first.levels() + again.levels() == whole.levels()


def test_other_limits_judge_what_was_measured_before() -> None:
    free = Driver(cell_of(**BURSTY), {}, limits=Constraints(gap_ms_p95=99.0))
    assert free.run().draft == Y
    held = Driver(free.cell, {}, free.shelf, GAPS)
    assert (held.run().status, held.course.decision.draft) == ("on", X)  # type: ignore[union-attr]
    assert held.rounds() == ["search x", *LOOKS_AT_X]
    assert held.levels() == [("x", look_level(1))] * LOOKS
    freed = Driver(free.cell, {}, free.shelf, free.limits)
    assert freed.run().draft == Y
    assert freed.rounds() == ["search y"], "to be ranked beside x"


class ManyBreak(Driver):
    """Drafts keep to the limits in the search and break them in every confirmation."""

    def measure(self, task: RoundTask) -> RoundResult:
        slow = 2.0 if task.kind == "confirmation_look" else 0.1
        changed = {f"draft_ms.{draft.name}": slow for draft in self.cell.drafts}
        self.engine._machine = replace(self.engine._machine, by_draft={**self.engine._machine.by_draft, **changed})
        return super().measure(task)


def test_a_cell_ends_after_three_that_are_confirmed_to_break_a_limit() -> None:
    names = "abcde"
    cell = cell_of(**{f"alpha__{name}": 0.9 for name in names}, **{f"draft_ms__{name}": 0.1 for name in names})
    drafts = [DraftModel(name=name, source="simulated") for name in names]
    cell = replace(cell, candidates=tuple(Candidate(draft=draft, gamma=2) for draft in drafts))
    driver = ManyBreak(cell, dict.fromkeys(names, 2.5), limits=GAPS)
    decision = driver.run()
    assert decision.status == "off"
    assert decision.reason.endswith("none of the 3 that were confirmed keeps to the limits")
    assert len(driver.levels()) == 3 * LOOKS
