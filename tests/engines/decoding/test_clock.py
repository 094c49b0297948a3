"""Where time goes, on a clock under control."""

from __future__ import annotations

import pytest
import torch

from pipeline.engines.decoding import clock as clock_module
from pipeline.engines.decoding.clock import Clock
from pipeline.engines.decoding.recordings import Pauses


class Hands:
    """A perf_counter moved by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1e3


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clock_module, "time", hands)
    return hands


def test_phases_are_apportioned_by_the_marks(hands: Hands) -> None:
    clock = Clock(torch.device("cpu"))
    hands.pass_ms(1)  # bookkeeping before drafting
    clock.draft_begins()
    hands.pass_ms(5)
    clock.verify_begins()
    hands.pass_ms(20)
    clock.verify_ends()
    hands.pass_ms(3)
    lap = clock.end_iteration()
    assert (lap.tau_draft_ms, lap.tau_verify_ms) == pytest.approx((5, 20))
    assert lap.tau_overhead_ms == pytest.approx(4)
    assert lap.tau_ms == lap.tau_draft_ms + lap.tau_verify_ms + lap.tau_overhead_ms


def test_a_plain_iteration_after_a_speculative_one_has_no_drafting_time(hands: Hands) -> None:
    clock = Clock(torch.device("cpu"))
    for drafts in (True, False):
        if drafts:
            clock.draft_begins()
        hands.pass_ms(2)
        clock.verify_begins()
        hands.pass_ms(7)
        clock.verify_ends()
        lap = clock.end_iteration()
    assert lap.tau_draft_ms == 0.0
    assert (lap.tau_verify_ms, lap.tau_overhead_ms) == pytest.approx((7, 2))


def test_time_between_iterations_is_counted_and_refills_are_not(hands: Hands) -> None:
    clock = Clock(torch.device("cpu"))
    clock.start_run()
    laps = []
    for refill_ms in (0, 0, 400):
        if refill_ms:
            hands.pass_ms(refill_ms)
            clock.resume()
        hands.pass_ms(1)
        clock.verify_begins()
        hands.pass_ms(9)
        clock.verify_ends()
        laps.append(clock.end_iteration())
    assert [lap.tau_ms for lap in laps] == pytest.approx([10, 10, 10])
    assert [lap.start_s for lap in laps] == pytest.approx([0.0, 0.010, 0.420])
    assert clock.now_s() == pytest.approx(0.430)


def test_pauses_pass_in_no_phase_and_in_no_run(hands: Hands) -> None:
    pauses = Pauses()

    def pause_ms(ms: float) -> None:
        hands.pass_ms(ms)
        pauses.seconds += ms / 1e3

    clock = Clock(torch.device("cpu"), pauses)
    pause_ms(700)
    clock.start_run()
    clock.draft_begins()
    hands.pass_ms(2)
    pause_ms(500)
    clock.verify_begins()
    pause_ms(300)
    hands.pass_ms(7)
    clock.verify_ends()
    hands.pass_ms(1)
    lap = clock.end_iteration()
    assert (lap.tau_draft_ms, lap.tau_verify_ms, lap.tau_overhead_ms) == pytest.approx((2, 7, 1))
    assert clock.now_s() == pytest.approx(0.010)
