"""Student's t without scipy, which a bare GPU box need not have."""

from __future__ import annotations

from math import exp, inf, lgamma, log, log1p, sqrt


def t_quantile(probability: float, df: float) -> float:
    """The ``probability`` quantile of Student's t with ``df`` > 0 degrees of freedom, to about 1e-9 relative.

    By bisection on the regularized incomplete beta function: P(|T| > t) = I_x(df/2, 1/2), x = df/(df + t²).
    """
    if not (0.0 < probability < 1.0 and df > 0.0):
        raise ValueError(f"needs 0 < probability < 1 and df > 0, got {probability}, {df}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, df)
    tails = 2.0 * (1.0 - probability)
    low, high = 0.0, 1.0
    while _two_tails(high, df) > tails:
        low, high = high, 2.0 * high
        if high == inf:
            raise OverflowError(f"the {probability} quantile of t with {df} degrees of freedom is not finite")
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if _two_tails(middle, df) > tails:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _two_tails(t: float, df: float) -> float:
    """P(|T| > t)."""
    return 1.0 if t == 0.0 else _incomplete_beta(0.5 * df, 0.5, df / (df + t * t), t * t / (df + t * t))


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b) with y = 1 − x given apart, for precision near x = 1."""
    if x <= 0.0 or y <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    log_x = log(x) if x < 0.5 else log1p(-y)
    log_y = log(y) if y < 0.5 else log1p(-x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log_x + b * log_y)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, y) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b) by Lentz's method (DLMF 8.17.22)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 1000 + int(10 * sqrt(max(a, b)))):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + factor * d
            c = 1.0 + factor / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return value
