"""The noise of a simulated machine: by iteration, by run, shared by neighbours, drifting, and now and then a hiccup."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.engines.machine import Machine
from pipeline.engines.pace import TAIL_LEAST, Pace

QUIET = Machine(noise=0.0)


def runs(machine: Machine, count: int) -> np.ndarray:
    pace = Pace(machine)
    return np.log([pace.next_run().run for _ in range(count)])


def test_a_quiet_machine_runs_at_its_own_pace_and_any_machine_at_the_same_again():
    assert set(runs(QUIET, 20)) == {0.0}
    assert Pace(QUIET).next_run().iteration() == 1.0
    loud = Machine(block_noise=0.1, shared_noise=0.1, drift=0.1, tail=0.1)
    assert list(runs(loud, 20)) == list(runs(loud, 20))
    assert list(runs(loud, 20)) != list(runs(replace(loud, seed=1), 20))


def test_noise_has_the_spread_that_was_asked_for():
    pace = Pace(Machine(noise=0.1)).next_run()
    assert np.std(np.log([pace.iteration() for _ in range(4000)])) == pytest.approx(0.1, rel=0.05)
    assert np.std(runs(replace(QUIET, block_noise=0.1), 2000)) == pytest.approx(0.1, rel=0.08)


def test_shared_noise_hits_the_runs_of_a_window_alike():
    factors = runs(replace(QUIET, shared_noise=0.1, shared_runs=5), 2000).reshape(-1, 5)
    assert np.ptp(factors, axis=1).max() == 0
    assert np.std(factors[:, 0]) == pytest.approx(0.1, rel=0.12)
    assert len(set(factors[:, 0])) == 400


def test_drift_walks_and_a_trend_climbs():
    steps = np.diff(runs(replace(QUIET, drift=0.02), 2000))
    assert np.std(steps) == pytest.approx(0.02, rel=0.08)
    assert abs(np.corrcoef(steps[:-1], steps[1:])[0, 1]) < 0.1
    assert runs(replace(QUIET, trend=0.01), 10) == pytest.approx(0.01 * np.arange(1, 11))


def test_hiccups_are_rare_long_and_now_and_then_very_long():
    pace = Pace(replace(QUIET, tail=0.02)).next_run()
    factors = np.array([pace.iteration() for _ in range(20_000)])
    hiccups = factors[factors > 1]
    assert len(hiccups) / len(factors) == pytest.approx(0.02, rel=0.2)
    assert hiccups.min() >= TAIL_LEAST
    assert np.median(hiccups) < 5 < 12 < hiccups.max()
