"""How much slower than its own figures the simulated machine runs: noise by iteration, by run and across runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.engines.machine import Machine

TAIL_SHAPE, TAIL_LEAST = 2.5, 3.0
"""A hiccup is Pareto: at least three times as long, five times on average, now and then twenty."""


@dataclass(frozen=True)
class RunPace:
    """``run`` holds for the whole of a run; ``iteration`` draws an iteration's factor, ``run`` included."""

    run: float
    iteration: Callable[[], float]


class Pace:
    """The factors of one engine's runs, in order. The same machine gives the same factors again."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._runs = 0
        self._walk = 0.0

    def next_run(self) -> RunPace:
        machine = self._machine
        self._runs += 1
        noise = np.random.default_rng([machine.seed, self._runs])
        own = machine.block_noise * noise.standard_normal()
        self._walk += machine.trend + machine.drift * self._draw(self._runs, 1)
        shared = machine.shared_noise * self._draw((self._runs - 1) // machine.shared_runs, 2)
        run = float(np.exp(own + self._walk + shared))
        hiccups = np.random.default_rng([machine.seed, self._runs, 3])

        def iteration() -> float:
            factor = run * float(np.exp(machine.noise * noise.standard_normal()))
            if machine.tail and hiccups.random() < machine.tail:
                factor *= TAIL_LEAST * (1 + float(hiccups.pareto(TAIL_SHAPE)))
            return factor

        return RunPace(run=run, iteration=iteration)

    def _draw(self, place: int, stream: int) -> float:
        return float(np.random.default_rng([self._machine.seed, place, stream]).standard_normal())
