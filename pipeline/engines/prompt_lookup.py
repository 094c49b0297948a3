"""Prompt lookup: propose what followed an earlier occurrence of the last tokens. On the host; needs no PyTorch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.records.target import Ngram

Ints = npt.NDArray[np.int64]


def lookup(tokens: Ints, n: Ints, dlen: Ints, draft: Ngram) -> tuple[Ints, Ints]:
    """Continuations of the longest earlier match of each row's last tokens.

    ``tokens`` [A, S], of which ``n`` [A] are committed, prompt and output alike. A match of k tokens (``min_n`` ≤ k ≤
    ``max_n``) ends before the last token, so that something follows it; of the longest ones ``draft.match`` chooses.
    Returns tokens [A, max dlen] and how many of each row are real [A]: at most ``dlen`` [A], and no more than follow
    the match; 0 where nothing matches.
    """
    active, reach = len(n), int(n.max()) - 1
    last = tokens[np.arange(active), n - 1]
    rows, ends = np.nonzero((tokens[:, :reach] == last[:, None]) & (np.arange(reach) < n[:, None] - 1))
    length = np.ones(len(rows), dtype=np.int64)
    growing = np.ones(len(rows), dtype=np.bool_)
    for back in range(1, draft.max_n):
        at = ends - back
        growing &= at >= 0
        # before the row's beginning nothing grows any more, whatever the token there
        growing &= tokens[rows, np.maximum(at, 0)] == tokens[rows, np.maximum(n[rows] - 1 - back, 0)]
        length += growing

    enough = length >= draft.min_n
    rows, ends, length = rows[enough], ends[enough], length[enough]
    order = reach - 1 - ends if draft.match == "first" else ends
    best = np.full(active, -1, dtype=np.int64)
    np.maximum.at(best, rows, length * reach + order)
    found = best >= 0
    order = best % reach if reach else best
    start = (reach - 1 - order if draft.match == "first" else order) + 1

    proposed = np.where(found, np.minimum(dlen, n - start), 0)
    columns = np.where(found, start, 0)[:, None] + np.arange(int(dlen.max()))
    return tokens[np.arange(active)[:, None], np.minimum(columns, tokens.shape[1] - 1)], proposed
