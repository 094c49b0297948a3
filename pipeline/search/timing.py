"""What an iteration costs by the proposals in it, in plain steps: from a short pass over widths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from pipeline.records.trace import Iteration

Floats = npt.NDArray[np.float64]

TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution is σ / 1.4826."""
OF_MEDIAN = 1.2533
"""√(π/2): the standard error of a median over that of a mean."""


@dataclass(frozen=True)
class Curve:
    """A time over ``at`` (ascending), linear between and level beyond; ``error`` is its relative standard error."""

    at: Floats
    value: Floats
    error: float

    def __call__(self, x: npt.ArrayLike) -> Floats:
        return np.asarray(np.interp(np.asarray(x, dtype=np.float64), self.at, self.value), dtype=np.float64)


@dataclass(frozen=True)
class Costs:
    """Times of an iteration of C rows over that of a plain step, by what the rows propose.

    ``verify`` is by positions run, ``overhead`` by width, ``draft`` by the most that a row proposes. ``end_to_end``:
    positions are C + Σ proposed; else each row runs as many as the widest.
    """

    rows: int
    end_to_end: bool
    verify: Curve
    overhead: Curve
    draft: Curve

    def phases(self, most: Floats, total: Floats) -> tuple[Floats, Floats, Floats]:
        """(drafting, verification, overhead) of iterations whose rows propose ``most`` at most and ``total`` together.

        An iteration in which nobody proposes anything is a plain step, and what looking for proposals took.
        """
        positions = self.rows + total if self.end_to_end else self.rows * (1.0 + most)
        return self.draft(most), self.verify(positions), self.overhead(1.0 + most)

    @property
    def error(self) -> float:
        """One relative standard error of an iteration's cost."""
        return sqrt(self.verify.error**2 + self.draft.error**2)


def verification_costs(iterations: Iterable[Iteration], rows: int) -> tuple[Curve, Curve]:
    """(verify by positions, overhead by width) from a pass whose γ ran round; over the time of its plain steps.

    Only iterations of ``rows`` rows in which each proposed what was due count: requests that near their limit propose
    less. Raises ValueError where none was plain or none proposed anything.
    """
    full = [i for i in iterations if i.active == rows and i.proposed == rows * i.gamma]
    by_gamma = {gamma: [i for i in full if i.gamma == gamma] for gamma in sorted({i.gamma for i in full})}
    if len(by_gamma) < 2 or 0 not in by_gamma:
        raise ValueError("a pass over widths needs plain steps and steps with proposals")
    plain = _median([i.tau_ms for i in by_gamma[0]])
    gammas = np.array(list(by_gamma), dtype=np.float64)
    verify = np.array([_median([i.tau_verify_ms for i in mine]) for mine in by_gamma.values()]) / plain
    overhead = np.array([_median([i.tau_overhead_ms for i in mine]) for mine in by_gamma.values()]) / plain
    errors = [_error([i.tau_ms for i in mine]) for mine in by_gamma.values()]
    error = sqrt(errors[0] ** 2 + float(np.mean(np.square(errors[1:]))))
    # Noise apart, more positions never take less time; a curve that fell would make the search prefer its dips.
    verify = np.maximum.accumulate(verify)
    return Curve(rows * (1.0 + gammas), verify, error), Curve(1.0 + gammas, overhead, 0.0)


def drafting_costs(iterations: Iterable[Iteration]) -> Curve:
    """Drafting time by γ over that of a plain step, from a pass with plain steps and steps that proposed γ in a row.

    Between the γ tried it is linear: what it costs to begin, and a step for each token. Raises ValueError where the
    pass has no plain step or no step in which as many as were due were proposed.
    """
    seen = list(iterations)
    plain = _plain_ms(seen)
    full = [i for i in seen if i.gamma > 0 and i.width == i.gamma + 1]
    if not full:
        raise ValueError("the draft proposed nothing in its pass")
    gammas = sorted({i.gamma for i in full})
    by_gamma = [[i.tau_draft_ms for i in full if i.gamma == gamma] for gamma in gammas]
    value = np.array([0.0, *(_median(mine) / plain for mine in by_gamma)])
    errors = [_error(mine) * share for mine, share in zip(by_gamma, value[1:], strict=True)]
    return Curve(np.array([0.0, *gammas]), value, sqrt(float(np.mean(np.square(errors)))))


def looking_cost(iterations: Iterable[Iteration]) -> Curve:
    """The same for a draft whose looking takes as long whatever it finds. Raises ValueError as above."""
    seen = list(iterations)
    plain = _plain_ms(seen)
    looking = [i.tau_draft_ms for i in seen if i.gamma > 0]
    if not looking:
        raise ValueError("the draft was never asked in its pass")
    value = _median(looking) / plain
    return Curve(np.array([0.0]), np.array([value]), _error(looking) * value if value > 0.0 else 0.0)


def _plain_ms(iterations: Sequence[Iteration]) -> float:
    plain = [i.tau_ms for i in iterations if i.gamma == 0]
    if not plain:
        raise ValueError("a drafting pass needs plain steps")
    return _median(plain)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _error(values: Sequence[float]) -> float:
    """The relative standard error of the median of ``values``, by their median absolute deviation; 0 of one value."""
    logs = np.log(np.asarray(values))
    deviation = float(np.median(np.abs(logs - np.median(logs))))
    return OF_MEDIAN * TO_SIGMA * deviation / sqrt(len(logs))
