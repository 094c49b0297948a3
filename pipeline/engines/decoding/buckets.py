"""The few shapes that forwards are recorded for."""

from __future__ import annotations

LEAST_COLUMNS = 256


def row_bucket(rows: int, slots: int) -> int:
    """The least power of two from ``rows`` on, but no more than ``slots``."""
    return min(1 << (rows - 1).bit_length(), slots)


def column_bucket(columns: int, most: int) -> int:
    """The least of 256, 384, 512, 768, 1024, … that holds ``columns``, but no more than ``most``.

    Attention reads all of a bucket, at most half as many columns again as are live; few lengths make few recordings.
    """
    power = LEAST_COLUMNS
    while power < columns:
        power *= 2
    between = power // 4 * 3
    return min(between if columns <= between and between >= LEAST_COLUMNS else power, most)
