"""Acceptance by where in the output, and after how long a context, a block of tokens begins."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pipeline.records.measurement import AcceptanceBin
from pipeline.records.trace import RequestTrace

OUTPUT_BIN, CONTEXT_BIN = 8, 128
"""Width of the first bin, in tokens: 0–7, 8–15, 16–31, 32–63, … each later one as wide as all before it."""


def by_output_position(requests: Iterable[RequestTrace]) -> tuple[AcceptanceBin, ...]:
    """Row-iterations binned by the index in the output of the first token they gave; prefill's token has index 0."""
    return _binned(((1, request) for request in requests), OUTPUT_BIN)


def by_context(requests: Iterable[RequestTrace]) -> tuple[AcceptanceBin, ...]:
    """Row-iterations binned by the tokens committed before them: the prompt's, and the output's so far."""
    return _binned(((request.prompt_tokens + 1, request) for request in requests), CONTEXT_BIN)


def _binned(starts: Iterable[tuple[int, RequestTrace]], first: int) -> tuple[AcceptanceBin, ...]:
    """``starts``: the place of each request's first row-iteration. Bins that nothing fell into are left out."""
    tables = [_rows(start, request) for start, request in starts if request.emitted]
    if not tables:
        return ()
    table = np.concatenate(tables)
    _, numbers = np.frexp(table[:, 0] // first)  # its exponent, 0 in the first bin, grows by one at every doubling
    bins = []
    for number in np.unique(numbers).tolist():
        rows = table[numbers == number, 1:]
        proposed, tested, accepted, emitted = rows.sum(axis=0).tolist()
        bins.append(
            AcceptanceBin(
                low=first * 2 ** (number - 1) if number else 0,
                high=first * 2**number - 1,
                row_iterations=len(rows),
                proposed=proposed,
                tested=tested,
                accepted=accepted,
                emitted=emitted,
            )
        )
    return tuple(bins)


def _rows(start: int, request: RequestTrace) -> npt.NDArray[np.int64]:
    """[row-iterations, 5]: place, proposed, tested, accepted, emitted."""
    emitted = np.array(request.emitted, dtype=np.int64)
    places = start + np.cumsum(emitted) - emitted
    return np.stack([places, request.proposed, request.tested, request.accepted, emitted], axis=1)
