"""Why the speedup is not the ideal one, in a sentence."""

from __future__ import annotations

import math

from pipeline.records.measurement import Metrics

NOTABLE = 0.005
"""A factor nearer to 1 than this would be printed as ×1.00, and is left out."""


def sentence(metrics: Metrics) -> str:
    """From S_ideal through S_geometric to S, with the factors that lead from one to the next.

    Such as: ``at α 0.80 and c 0.05 the ideal is 2.80×; verification of 1.25 steps (×0.83) and overhead (×0.96) make
    that 2.24×; proposals not made (×0.90) make it the measured 2.02×``.
    """
    if metrics.acceptance_rate is None:
        return "no proposal was ever tested, so there is no ideal speedup to compare with"
    known = (metrics.acceptance_rate, metrics.c, metrics.speedup_ideal, metrics.speedup_geometric, metrics.speedup)
    alpha, c, ideal, geometric, measured = (math.nan if figure is None else figure for figure in known)
    if not all(map(math.isfinite, (alpha, c, ideal, geometric, measured))):
        return ""
    times = _named(
        (f"verification of {metrics.v:.2f} steps", metrics.factor_verification),
        ("overhead", metrics.factor_overhead),
        (f"drafting of {metrics.d:.2f} steps", metrics.factor_drafting),
    )
    tokens = _named(
        ("proposals not made", metrics.factor_proposals),
        ("acceptance that is not independent", metrics.factor_independence),
        ("slots unlike the baseline's", metrics.factor_occupancy),
    )
    start = f"at α {alpha:.2f} and c {c:.2f} the ideal is {ideal:.2f}×"
    middle = f"{times} that {geometric:.2f}×" if times else ""
    end = f"{tokens} it the measured {measured:.2f}×" if tokens else f"measured {measured:.2f}×"
    return "; ".join(part for part in (start, middle, end) if part)


def _named(*factors: tuple[str, float | None]) -> str:
    """``a (×0.83) and b (×0.96) make``, of those that matter; empty if none does."""
    said = [f"{what} (×{value:.2f})" for what, value in factors if value is not None and abs(value - 1) >= NOTABLE]
    if not said:
        return ""
    many = len(said) > 1 or said[0].startswith(("proposals", "slots"))
    return f"{_listed(said)} make{'' if many else 's'}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
