"""Which limits a measurement breaks, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pipeline.measurement.latency import latency
from pipeline.records.measurement import Baseline, Measurement, Metrics
from pipeline.records.settings import Constraints
from pipeline.records.target import Candidate

THROUGHPUT_RATIO = "speedup_e2e"
"""The one limit that bounds from below."""
MOST_UNFIT = 3
"""So many candidates that are confirmed to break a limit end a cell: the levels of more would turn nothing on."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """``value`` of the metric ``name`` beside its ``limit``.

    ``excess`` is how far the value lies beyond the limit, relative to it: at most 0 where the limit is kept, as Optuna
    wants a constraint.
    """

    name: str
    value: float
    limit: float
    excess: float

    @property
    def broken(self) -> bool:
        return self.excess > 0

    def said(self, plain: float | None = None) -> str:
        """``tpot_ms_p99 61.2 is above 50 (plain decoding: 41)``, in as many digits as tell the two apart."""
        value, limit = _apart(self.value, self.limit)
        beside = "" if plain is None else f" (plain decoding: {_apart(plain, self.limit)[0]})"
        return f"{self.name} {value} is {'below' if self.name == THROUGHPUT_RATIO else 'above'} {limit}{beside}"


def checks(metrics: Metrics, constraints: Constraints) -> tuple[Check, ...]:
    """Every limit that is set beside what was measured.

    A metric that is undefined, None or no finite number, is held to no limit and so breaks none: outputs of one token
    have no time per further token.
    """
    found = []
    for name, limit in asdict(constraints).items():
        value: float | None = getattr(metrics, name)
        if limit is None or not math.isfinite(limit) or value is None or not math.isfinite(value):
            continue
        beyond = limit - value if name == THROUGHPUT_RATIO else value - limit
        found.append(Check(name=name, value=value, limit=limit, excess=beyond / limit))
    return tuple(found)


def broken(metrics: Metrics, constraints: Constraints) -> tuple[Check, ...]:
    """The limits that ``metrics`` break."""
    return tuple(check for check in checks(metrics, constraints) if check.broken)


def unfit(measurements: Iterable[Measurement], constraints: Constraints) -> frozenset[Candidate]:
    """The candidates whose measurement breaks a limit."""
    return frozenset(m.candidate for m in measurements if broken(m.metrics, constraints))


def of_plain_decoding(baselines: Iterable[Baseline]) -> dict[str, float | None]:
    """By limit that bounds a latency, what the requests of ``baselines`` took, ms; None where there is no such time."""
    found = latency(block for baseline in baselines for block in baseline.trace_blocks)
    return {
        f"{kind}_ms_{percentile}": getattr(getattr(found, kind), percentile)
        for kind in ("tpot", "gap", "ttft")
        for percentile in ("p95", "p99")
    }


def _apart(value: float, limit: float) -> tuple[str, str]:
    fewest = max(1, 2 - math.floor(math.log10(limit)))
    for places in range(fewest, fewest + 12):
        shown = tuple(f"{figure:.{places}f}".rstrip("0").rstrip(".") for figure in (value, limit))
        if shown[0] != shown[1]:
            return shown[0], shown[1]
    return repr(value), repr(limit)
