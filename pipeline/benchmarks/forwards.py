"""The verification forward, ours and transformers' own, of several widths after the same context."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipeline.benchmarks.interleaved import interleave
from pipeline.benchmarks.peer_transformers import NAME, Tokens, TransformersPeer
from pipeline.benchmarks.rows import Row, Wanted, compared
from pipeline.engines.decoding.forward import CachedModel
from pipeline.records.failure import InputError

WIDTHS = (5, 9)
FORWARDS = 12
"""Timed forwards of each width a repeat."""
WANTED = {"forward_q5": Wanted("ratio", ">=", 1.2), "forward_q9": Wanted("ratio", ">=", 1.4)}


def forwards(
    model: CachedModel, peer: TransformersPeer, text: Tokens, repeats: int, say: Callable[[str], None]
) -> list[Row]:
    """A row for each of ``WIDTHS``, of the last tokens of ``text``. Raises InputError where that is too short."""
    context = text[: -max(WIDTHS)]
    if not context:
        raise InputError(f"prompts of {len(text)} tokens are too short to time forwards of {max(WIDTHS)}")
    model.reserve(1, len(text) + 1)
    with torch.inference_mode():
        model.prefill(0, np.array(context, dtype=np.int64))
    rows = []
    for width in WIDTHS:
        tokens = text[len(context) : len(context) + width]
        theirs, ids, first = peer.forward(context, tokens), torch.tensor([tokens]), np.array([len(context)])

        def ours(_: int, ids: Tensor = ids, first: np.ndarray = first) -> Tensor:
            with torch.inference_mode():
                return model.forward(ids, first)

        passes = interleave(
            {f"our forward of {width}": ours, "theirs": lambda _, theirs=theirs: theirs()},  # type: ignore[misc]
            list(range(FORWARDS)),
            repeats + 1,
            say,
        )
        mine, their = ([p.seconds / FORWARDS * 1e3 for p in arm[1:]] for arm in passes.values())
        metric = f"forward_q{width}"
        rows.append(compared(metric, "ms", "less", mine, f"{NAME} forward", their, WANTED[metric]))
    return rows
