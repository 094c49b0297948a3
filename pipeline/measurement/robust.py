"""Spread and error that a few wild values hardly move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ERROR_OF_MEDIAN = 1.2533
"""√(π/2): the standard error of a median over that of a mean, for normal noise."""
_SIGMA_OF_MAD = 1.4826


def sigma(values: npt.ArrayLike, middle: float | None = None) -> float:
    """σ of normal noise from the median absolute deviation, from ``middle`` (None: from the median)."""
    array = np.asarray(values, dtype=np.float64)
    return _SIGMA_OF_MAD * float(np.median(np.abs(array - (np.median(array) if middle is None else middle))))
