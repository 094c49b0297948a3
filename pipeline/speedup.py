"""The equations of speculative decoding. Pure functions of numbers or numpy arrays; no other module repeats them.

Notation: α acceptance rate of one proposal; γ proposals per iteration; E expected emitted tokens per iteration;
c one draft step's time over one baseline step's; T the baseline's time per token; τ0 the baseline's time per iteration,
τ_spec the speculative one's; d, v, h drafting, verification and overhead time over τ0.
Source: Leviathan et al. 2023, arXiv 2211.17192; for the split of a ratio of sums Ang 2005, Energy Policy 33, 867–871.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Number = float | npt.NDArray[np.float64]


def expected_tokens(alpha: Number, gamma: Number) -> Number:
    """E(α, γ) = 1 + α + … + α^γ, tokens per iteration when acceptances are independent (Leviathan eq. 1).

    Evaluated as expm1((γ+1)·ln α) / expm1(ln α), which stays exact near α = 1; γ+1 at α = 1, 1 at α = 0.
    Arrays broadcast. Raises ValueError unless 0 ≤ α ≤ 1 and γ ≥ 0.
    """
    a, g = np.broadcast_arrays(np.asarray(alpha, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
    if not (np.all((a >= 0) & (a <= 1)) and np.all(g >= 0)):
        raise ValueError(f"needs 0 <= alpha <= 1 and gamma >= 0, got alpha={alpha}, gamma={gamma}")
    inner = (a > 0) & (a < 1)
    log_a = np.log(np.where(inner, a, 0.5))
    return _plain(np.where(inner, np.expm1((g + 1) * log_a) / np.expm1(log_a), np.where(a == 1, g + 1, 1.0)))


def expected_tokens_from_marginals(marginals: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """E(γ) = 1 + Σ_{i≤γ} m_i with m_i = P(first i proposals all accepted). No independence assumed."""
    return 1.0 + float(np.sum(np.asarray(marginals, dtype=np.float64)))


def ideal_speedup(expected: Number, gamma: Number, c: Number) -> Number:
    """S_ideal = E / (1 + γc): verification as cheap as one baseline step, no overhead (Leviathan theorem 3.8)."""
    return _plain(np.asarray(expected) / (1.0 + np.asarray(gamma) * np.asarray(c)))


def ideal_inter_token_latency(expected: Number, gamma: Number, c: Number, baseline: Number) -> Number:
    """ITL_spec = (1 + γc)·T / E, in the unit of ``baseline`` T."""
    return _plain(np.asarray(baseline) / np.asarray(ideal_speedup(expected, gamma, c)))


def actual_speedup(expected: Number, tau0: Number, tau_spec: Number) -> Number:
    """S_actual = τ0·E / τ_spec, from measured times in one unit; τ_spec is the critical path where phases overlap."""
    return _plain(np.asarray(tau0) * np.asarray(expected) / np.asarray(tau_spec))


def serial_speedup(expected: Number, d: Number, v: Number, h: Number) -> Number:
    """S_actual = E / (d + v + h) for phases that follow one another."""
    return _plain(np.asarray(expected) / (np.asarray(d) + np.asarray(v) + np.asarray(h)))


def break_even_margin(expected: Number, d: Number, v: Number, h: Number) -> Number:
    """E − (d + v + h): speculation pays exactly when it is positive."""
    return _plain(np.asarray(expected) - (np.asarray(d) + np.asarray(v) + np.asarray(h)))


class Factors(NamedTuple):
    """What became of S_ideal: S = S_ideal · the product of all six. Below 1 costs speed, above 1 gains it.

    The first three lead from S_ideal to S_geometric = E(α, γ) / (d + v + h), the others from there to S.
    ``drafting``: γc became d. ``verification``: one step became v. ``overhead``: 0 became h. ``proposals``: some of γ
    were not made, or lay past the end of the text. ``independence``: acceptances at one rate α, each by itself, became
    those that were. ``occupancy``: rows per iteration differed from the baseline's; 1 with all slots busy.
    """

    drafting: float
    verification: float
    overhead: float
    proposals: float
    independence: float
    occupancy: float


def explain(
    speedup: float,
    *,
    alpha: float,
    gamma: int,
    c: float,
    d: float,
    v: float,
    h: float,
    reaches: npt.NDArray[np.int64],
    emitted: float,
) -> Factors:
    """The measured ``speedup`` S as S_ideal = E(α, γ) / (1 + γc) times its factors; the product is exact.

    ``reaches`` (one per row-iteration) are the proposals that could have been accepted, ``emitted`` the mean tokens of
    a row-iteration. log (1 + γc)/(d + v + h) is split by the logarithmic mean L(x, y) = (x − y)/ln(x/y) of the two sums
    (LMDI): a term that grew from y_k to x_k gives −(x_k − y_k)/L, so that no order of the terms is preferred and a term
    that did not change gives nothing.
    """
    ideal_steps, steps = 1.0 + gamma * c, d + v + h
    mean = logarithmic_mean(steps, ideal_steps)
    independent = float(np.mean(expected_tokens(alpha, reaches.astype(np.float64))))
    return Factors(
        drafting=exp(-(d - gamma * c) / mean),
        verification=exp(-(v - 1.0) / mean),
        overhead=exp(-h / mean),
        proposals=independent / float(expected_tokens(alpha, gamma)),
        independence=emitted / independent,
        occupancy=speedup * steps / emitted,
    )


def logarithmic_mean(x: float, y: float) -> float:
    """(x − y) / ln(x/y) of positive numbers, x where they are equal; between the two, and exact when they are near."""
    excess = (x - y) / y
    return y * (excess / log1p(excess)) if excess else y


def best_gamma(alpha: float, c: float, gammas: Iterable[int]) -> int:
    """The γ of ``gammas`` with the greatest S_ideal (the smallest of equals); 0 stands for off, S = 1."""
    choices = sorted(set(gammas))
    if not choices:
        raise ValueError("gammas must name at least one gamma")
    return max(choices, key=lambda gamma: (ideal_speedup(expected_tokens(alpha, gamma), gamma, c), -gamma))


def _plain(values: npt.NDArray[np.float64] | np.float64) -> Number:
    """A float for scalar input, the array otherwise."""
    return float(values) if np.ndim(values) == 0 else np.asarray(values)
