"""Replay foretells tokens exactly where nothing is left to chance: a measurement that differs accuses the engine."""

from __future__ import annotations

from pipeline.measurement.gates import text_must_agree
from pipeline.records.cell import Sampling
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Measurement

ROUNDING = 1e-9


def disagreement(measurement: Measurement, forecast: CellForecast | None, sampling: Sampling) -> str | None:
    """What to tell the user of a search's measurement on the forecast's prompts; None where all is well.

    Comparable are candidates whose text is the baseline's whatever they propose, on all of the forecast's prompts and
    without a near-tie, in which texts may part.
    """
    metrics = measurement.metrics
    if forecast is None or measurement.kind != "search" or metrics.near_ties or metrics.units != forecast.prompts:
        return None
    if not text_must_agree(measurement.candidate, sampling):
        return None
    mine = next((f for f in forecast.forecasts if f.candidate == measurement.candidate), None)
    if mine is None or mine.method != "replay" or mine.emitted_per_verification is None:
        return None
    expected, found = mine.emitted_per_verification, metrics.emitted_per_verification
    if found is None or abs(found - expected) <= ROUNDING * expected:
        return None
    return (
        f"{measurement.candidate.label}: a verification gave {found:.3f} tokens, and replay of the same text gives "
        f"{expected:.3f}: the engine and the forecast disagree on what is accepted"
    )
