"""Whether the machine moved under a block: its two passes of the baseline against each other.

Both passes decode the same requests, so that iteration j of one does the work of iteration j of the other, and their
times differ by noise alone. A second pass that is faster or slower than that noise explains says that the machine
changed in between, under the candidates: what they were measured against is gone, and the block is measured again.

That choice must not favour an arm. It is made from the difference of the passes alone, never from a candidate, and a
speedup has the mean of the passes in it. Where noise is as likely to slow a pass as to speed it up, the mean of two
alike passes has no correlation with the size of their difference: as often as a block is measured again because its
first pass was slow, another is because it was fast. So log S of what is kept has the mean of what was measured.
Single slow iterations, which are no such noise, hardly move a median. A slow spell as long as a pass does: it is taken
out of the baseline and not of a candidate, so that what is left of an error makes S too small, never too great.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log1p, sqrt

import numpy as np

from pipeline.measurement.robust import ERROR_OF_MEDIAN, sigma
from pipeline.records.settings import Protocol
from pipeline.records.trace import Trace

LEAST_ITERATIONS = 8
"""Fewer matched iterations say nothing of their noise."""
LEAST_BLOCKS = 2
"""Fewer blocks say nothing of how far passes usually lie apart."""

_STRONGEST = 0.9
_CLIPPED = 3.0


@dataclass(frozen=True)
class Shift:
    """log of the second pass's iteration times over the first's, and the standard error of that, from within them."""

    log_ratio: float
    error: float


def shift(first: Trace, second: Trace) -> Shift | None:
    """The median log ratio of matched iterations; None where there are too few of them.

    Its error is that of a median whose scale is the MAD, with as many independent values as a first-order
    autocorrelation leaves: on a real machine slow iterations come in runs.
    """
    n = min(len(first.iterations), len(second.iterations))
    if n < LEAST_ITERATIONS:
        return None
    times = np.array(
        [(a.tau_ms, b.tau_ms) for a, b in zip(first.iterations[:n], second.iterations[:n], strict=True)],
        dtype=np.float64,
    )
    ratios = np.log(times[:, 1] / times[:, 0])
    middle = float(np.median(ratios))
    spread = sigma(ratios)  # heavy tails leave it small and the median's error too great, on the calm side
    if spread == 0.0:
        return Shift(middle, 0.0)
    rest = np.clip(ratios - middle, -_CLIPPED * spread, _CLIPPED * spread)
    correlation = float(rest[1:] @ rest[:-1] / (rest @ rest))
    correlation = min(max(correlation, 0.0), _STRONGEST)
    independent = n * (1.0 - correlation) / (1.0 + correlation)
    return Shift(middle, ERROR_OF_MEDIAN * spread / sqrt(independent))


def moved(seen: Shift | None, kept: Sequence[Shift], protocol: Protocol) -> bool:
    """Whether the baseline moved by more than ``drift_least`` and beyond ``drift_z`` times its noise.

    The noise has two parts: what iterations within the passes show, and how far apart the passes of the round's
    earlier blocks lay, ``kept``. Some machines run a whole pass faster or slower; that is what blocks are repeated for.
    """
    if seen is None:
        return False
    between = 0.0
    if len(kept) >= LEAST_BLOCKS:
        between = sigma([one.log_ratio for one in kept], middle=0.0)
    noise = sqrt(seen.error**2 + between**2)
    return abs(seen.log_ratio) > max(log1p(protocol.drift_least), protocol.drift_z * noise)


def calmest(seen: Sequence[Shift | None]) -> int:
    """Which attempt at a block to keep where all of them moved."""
    return min(range(len(seen)), key=lambda place: abs(_log_ratio(seen[place])))


def relative(seen: Shift | None) -> float:
    """By what share the second pass was slower than the first."""
    return expm1(_log_ratio(seen))


def _log_ratio(seen: Shift | None) -> float:
    return 0.0 if seen is None else seen.log_ratio
