"""What an iteration costs by the proposals in it, in plain steps: from a short pass over widths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from pipeline.measurement.robust import ERROR_OF_MEDIAN, sigma
from pipeline.records.trace import Iteration

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A time over ``at`` (ascending), linear between; ``error`` is a relative standard error of it.

    Beyond its ends it is level, or goes on as it rose between the last two where it ``rises``.
    """

    at: Floats
    value: Floats
    error: float
    rises: bool = False

    def __call__(self, x: npt.ArrayLike) -> Floats:
        where = np.asarray(x, dtype=np.float64)
        within = np.interp(where, self.at, self.value)
        if self.rises and len(self.at) > 1:
            slope = (self.value[-1] - self.value[-2]) / (self.at[-1] - self.at[-2])
            within = within + slope * np.maximum(where - self.at[-1], 0.0)
        return np.asarray(within, dtype=np.float64)


@dataclass(frozen=True)
class Verification:
    """Times of verifying over that of a plain step of ``rows`` rows.

    ``even`` is by positions where every row has as many, padding included; ``uneven`` by positions laid end to end,
    None where rows are padded to the widest; ``overhead`` by width.
    """

    rows: int
    even: Curve
    uneven: Curve | None
    overhead: Curve


@dataclass(frozen=True)
class Costs:
    """Times of an iteration over that of a plain step; drafting is by the most that a row proposes."""

    verification: Verification
    draft: Curve

    @property
    def rows(self) -> int:
        return self.verification.rows

    def phases(self, most: Floats, total: Floats) -> tuple[Floats, Floats, Floats]:
        """(drafting, verification, overhead) of iterations whose rows propose ``most`` at most and ``total`` together.

        An iteration in which nobody proposes anything is a plain step, and what looking for proposals took.
        """
        even, uneven = self.verification.even, self.verification.uneven
        verify = even(self.rows * (1.0 + most))
        if uneven is not None:
            verify = np.where(total < self.rows * most, uneven(self.rows + total), verify)
        return self.draft(most), verify, self.verification.overhead(1.0 + most)

    def error(self, draft: float, verify: float, overhead: float) -> float:
        """One relative standard error of an iteration that takes so much in its phases."""
        whole = draft + verify + overhead
        return sqrt((self.verification.even.error * (verify + overhead)) ** 2 + (self.draft.error * draft) ** 2) / whole


def verification_costs(even: Iterable[Iteration], uneven: Iterable[Iteration], rows: int) -> Verification:
    """From a pass whose γ ran round in every row, and one (or nothing) in which only some rows proposed.

    Each over its own plain steps. Only iterations of ``rows`` rows in which what was due was proposed count: requests
    that near their limit propose less. Raises ValueError where no step was plain or none proposed anything.
    """
    full = [i for i in even if i.active == rows and i.proposed == rows * i.gamma]
    verify, error = _by_positions(full, rows)
    gammas = sorted({i.gamma for i in full})
    plain = _median([i.tau_ms for i in full if i.gamma == 0])
    over = [_median([i.tau_overhead_ms for i in full if i.gamma == gamma]) / plain for gamma in gammas]
    some = _often([i for i in uneven if i.active == rows and i.width in (1, i.gamma + 1)])
    return Verification(
        rows=rows,
        even=Curve(*verify, error),
        uneven=Curve(*_by_positions(some, rows)[0], error) if some else None,
        overhead=Curve(1.0 + np.array(gammas, dtype=np.float64), np.array(over), 0.0),
    )


def _often(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Without totals that came up by chance, where some rows were near their limit: they are too few for a median."""
    counts = Counter(i.proposed for i in iterations)
    most = max(counts.values(), default=0)
    return [i for i in iterations if 2 * counts[i.proposed] >= most]


def _by_positions(iterations: Sequence[Iteration], rows: int) -> tuple[tuple[Floats, Floats], float]:
    """((positions, verification over a plain step), relative error) of iterations grouped by what they propose."""
    by_total = {
        total: [i for i in iterations if i.proposed == total] for total in sorted({i.proposed for i in iterations})
    }
    if len(by_total) < 2 or 0 not in by_total:
        raise ValueError("a pass over widths needs plain steps and steps with proposals")
    plain = _median([i.tau_ms for i in by_total[0]])
    value = np.array([_median([i.tau_verify_ms for i in mine]) for mine in by_total.values()]) / plain
    errors = [_error([i.tau_ms for i in mine]) for mine in by_total.values()]
    # Noise apart, more positions never take less time; a curve that fell would make the search prefer its dips.
    at = rows + np.array(list(by_total), dtype=np.float64)
    return (at, np.maximum.accumulate(value)), sqrt(errors[0] ** 2 + float(np.mean(np.square(errors[1:]))))


def drafting_costs(iterations: Iterable[Iteration]) -> Curve:
    """Drafting time by proposals in a row over that of a plain step, from a pass with plain steps and others.

    Between the lengths seen it is linear: what it costs to begin, and a step for each token. Raises ValueError where
    the pass has no plain step or nothing was proposed in it.
    """
    seen = list(iterations)
    plain = _plain_ms(seen)
    by_length: dict[int, list[float]] = {}
    for i in seen:
        if i.width > 1:
            by_length.setdefault(i.width - 1, []).append(i.tau_draft_ms)
    if not by_length:
        raise ValueError("the draft proposed nothing in its pass")
    most = max(map(len, by_length.values()))
    lengths = sorted(length for length, mine in by_length.items() if 2 * len(mine) >= most)  # near a limit it is cut
    value = np.array([0.0, *(_median(by_length[length]) / plain for length in lengths)])
    errors = [_error(by_length[length]) for length in lengths]
    error = sqrt(float(np.mean(np.square(errors))))
    return Curve(np.array([0.0, *lengths], dtype=np.float64), value, error, rises=True)


def looking_cost(iterations: Iterable[Iteration]) -> Curve:
    """The same for a draft whose looking takes as long whatever it finds. Raises ValueError as above."""
    seen = list(iterations)
    plain = _plain_ms(seen)
    looking = [i.tau_draft_ms for i in seen if i.gamma > 0 and i.tau_draft_ms > 0]
    if not looking:
        raise ValueError("the draft was never asked in its pass")
    return Curve(np.array([0.0]), np.array([_median(looking) / plain]), _error(looking))


def _plain_ms(iterations: Sequence[Iteration]) -> float:
    plain = [i.tau_ms for i in iterations if i.gamma == 0]
    if not plain:
        raise ValueError("a drafting pass needs plain steps")
    return _median(plain)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _error(values: Sequence[float]) -> float:
    """The relative standard error of the median of ``values``, by their median absolute deviation; 0 of one value."""
    logs = np.log([value for value in values if value > 0.0] or [1.0])  # what takes no time at all has no noise
    return ERROR_OF_MEDIAN * sigma(logs) / sqrt(len(logs))
