"""How sure a speedup is: intervals on log S, and the paired difference of two candidates. Pure numerics.

C = 1: the unit is a prompt with all its seeds, blocks and passes; delete-one jackknife of the log ratio of sums, and t
with n − 1 degrees of freedom. C > 1: iteration times are shared by a block's requests, so that prompts say nothing
about them; log S = log E + log(τ0/τ_spec) has the variance of a jackknife over prompts of log E plus that of the mean
over blocks of log(τ0/τ_spec), and t with Welch and Satterthwaite's degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

import numpy as np
import numpy.typing as npt

from pipeline.measurement.student import t_quantile
from pipeline.records.measurement import BlockSums, Measurement, Metrics, Unit

Floats = npt.NDArray[np.float64]

DECISIVE_UNITS = 8
"""Fewer prompts decide nothing."""
DECISIVE_BLOCKS = 2
"""Fewer blocks say nothing about time at C > 1; at C = 1 eight prompts are eight blocks."""

WIDEST = 700.0
"""Beyond this |log S| a bound is no finite number."""


def speedup_interval(
    speedup: float, units: Sequence[Unit], blocks: Sequence[BlockSums], concurrency: int, level: float
) -> tuple[float, float] | None:
    """Bounds of S at confidence ``level``, 0 < level < 1, around ``speedup`` on a log scale.

    None where nothing is known: fewer than 2 units, at C > 1 fewer than 2 blocks, all tokens or time in one unit, or
    bounds that are not finite.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    spread = _spread_alone(units) if concurrency == 1 else _spread_shared(units, blocks)
    if spread is None:
        return None
    variance, df = spread
    half_width = t_quantile(0.5 + 0.5 * level, df) * sqrt(variance) if variance > 0.0 else 0.0
    low, high = log(speedup) - half_width, log(speedup) + half_width
    return (exp(low), exp(high)) if max(-low, high) < WIDEST else None


def decisive(metrics: Metrics) -> bool:
    """Whether there were units enough for the interval to decide anything."""
    return metrics.units >= DECISIVE_UNITS and metrics.blocks >= DECISIVE_BLOCKS and metrics.speedup_low is not None


@dataclass(frozen=True)
class Sample:
    """What an interval is made of: a candidate's units, and its blocks for C > 1."""

    units: Sequence[Unit]
    blocks: Sequence[BlockSums]


@dataclass(frozen=True)
class Ratio:
    """log S_a/S_b over ``common`` prompts, its standard error (inf: not known) and degrees of freedom."""

    log: float
    error: float
    df: float
    common: int


def log_ratio(a: Measurement, b: Measurement) -> tuple[float, float]:
    """(log S_a/S_b, its standard error) of two candidates of one cell: see ``paired``.

    Where nothing is common the ratio is that of the two speedups, and its error inf.
    """
    if a.cell != b.cell:
        raise ValueError(f"{a.cell.label} and {b.cell.label} are two cells")
    ratio = paired(Sample(a.unit_sums, a.block_sums), Sample(b.unit_sums, b.block_sums), a.cell.concurrency)
    if ratio is None:
        return log(a.metrics.speedup) - log(b.metrics.speedup), inf
    return ratio.log, ratio.error


def paired(a: Sample, b: Sample, concurrency: int) -> Ratio | None:
    """log S_a/S_b, paired over the prompts that two candidates of one cell have in common.

    Each S is taken over the common prompts; a baseline that both share cancels. At C > 1 the variance of time is that
    of the common blocks; fewer than 2 of them leave the error unknown. None where fewer than 2 prompts are common.
    """
    of_b = {unit.prompt_id: unit for unit in b.units}
    units_a = [unit for unit in a.units if unit.prompt_id in of_b]
    units_b = [of_b[unit.prompt_id] for unit in units_a]
    left_a, left_b = _left_out_speedups(units_a), _left_out_speedups(units_b)
    if left_a is None or left_b is None:
        return None
    ratio, common = _log_speedup(units_a) - _log_speedup(units_b), len(units_a)
    if concurrency == 1:
        return Ratio(ratio, sqrt(jackknife_variance(left_a - left_b)), common - 1, common)
    expected_a, expected_b = _left_out_expected(units_a), _left_out_expected(units_b)
    logs_b = {block.index: log(block.baseline_tau_ms / block.tau_ms) for block in b.blocks}
    times = [
        log(block.baseline_tau_ms / block.tau_ms) - logs_b[block.index] for block in a.blocks if block.index in logs_b
    ]
    if expected_a is None or expected_b is None or len(times) < 2:
        return Ratio(ratio, inf, 1.0, common)
    of_tokens, of_time = jackknife_variance(expected_a - expected_b), float(np.var(times, ddof=1)) / len(times)
    variance = of_tokens + of_time
    df = _welch(of_tokens, common - 1, of_time, len(times) - 1)
    return Ratio(ratio, sqrt(variance), df, common)


def jackknife_variance(left_out: Floats) -> float:
    """The variance of an estimate from its n delete-one values θ_(i): (n − 1)/n · Σ(θ_(i) − mean)²."""
    n = len(left_out)
    return float((n - 1) / n * np.sum((left_out - left_out.mean()) ** 2))


def _spread_alone(units: Sequence[Unit]) -> tuple[float, float] | None:
    """(variance of log S, degrees of freedom) at C = 1."""
    left = _left_out_speedups(units)
    return None if left is None else (jackknife_variance(left), len(units) - 1)


def _spread_shared(units: Sequence[Unit], blocks: Sequence[BlockSums]) -> tuple[float, float] | None:
    """(variance of log S, degrees of freedom) at C > 1."""
    left = _left_out_expected(units)
    if left is None or len(blocks) < 2:
        return None
    of_tokens = jackknife_variance(left)
    logs = [log(block.baseline_tau_ms / block.tau_ms) for block in blocks]
    of_time = float(np.var(logs, ddof=1)) / len(logs)
    return of_tokens + of_time, _welch(of_tokens, len(units) - 1, of_time, len(logs) - 1)


def _welch(a: float, df_a: float, b: float, df_b: float) -> float:
    """Degrees of freedom of the sum of two estimated variances (Welch and Satterthwaite)."""
    total = a + b
    return 1.0 if total == 0.0 else 1.0 / ((a / total) ** 2 / df_a + (b / total) ** 2 / df_b)


def _log_speedup(units: Sequence[Unit]) -> float:
    return (
        log(sum(u.emitted for u in units) / sum(u.tau_ms for u in units))
        - log(sum(u.baseline_emitted for u in units) / sum(u.baseline_tau_ms for u in units))
    )  # fmt: skip


def _left_out_speedups(units: Sequence[Unit]) -> Floats | None:
    """log S without each unit in turn."""
    return _left_out([(u.emitted, u.tau_ms, u.baseline_emitted, u.baseline_tau_ms) for u in units])


def _left_out_expected(units: Sequence[Unit]) -> Floats | None:
    """log E (over the baseline's, which is 1) without each unit in turn."""
    rows = [(u.emitted, u.row_iterations, u.baseline_emitted, u.baseline_row_iterations) for u in units]
    return _left_out(rows)


def _left_out(rows: Sequence[tuple[float, float, float, float]]) -> Floats | None:
    """log[(Σ₀/Σ₁) / (Σ₂/Σ₃)] over all rows but one, for each; None if any of those sums is not positive."""
    if len(rows) < 2:
        return None
    table = np.array(rows, dtype=np.float64)
    # Summed anew without each row: a difference from the total would lose the digits that the variance is made of.
    keep = 1.0 - np.eye(len(rows))
    sums = keep @ table
    if not np.all(sums > 0.0):
        return None
    return np.asarray(np.log(sums) @ np.array([1.0, -1.0, -1.0, 1.0]), dtype=np.float64)
