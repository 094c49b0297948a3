"""Repetition, presence and frequency penalties, exact at every position: a block's accepted prefix counts like text.

A verification's position j follows the committed tokens and the proposals d_1 … d_j, whatever becomes of them: if d_j
falls, nothing after it is used. So each position's logits are what plain decoding would have had there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.records.cell import Sampling


@dataclass(frozen=True)
class Written:
    """What A rows hold. ``tokens`` int64 [A, N]: prompt and output, and beyond a row's end its first token again.

    ``counts`` fp32 [A, V]: how often each token is in the output; None where only repetition is penalized.
    """

    tokens: Tensor
    counts: Tensor | None


def written(tokens: Ints, prompt: Ints, n: Ints, sampling: Sampling, vocabulary: int, device: torch.device) -> Written:
    """Of host state: ``tokens`` [A, ≥ N], of which ``prompt`` [A] ≥ 1 are the prompt's and ``n`` [A] committed."""
    longest = int(n.max())
    columns = np.arange(longest)
    held = columns < n[:, None]
    ids = to_device(np.where(held, tokens[:, :longest], tokens[:, :1]), device)
    if sampling.presence_penalty == sampling.frequency_penalty == 0.0:
        return Written(ids, None)
    output = to_device((held & (columns >= prompt[:, None])).astype(np.int64), device)
    return Written(ids, torch.zeros(len(n), vocabulary, device=device).scatter_add_(1, ids, output.float()))


def penalize(logits: Tensor, slots: Slots, rows: slice, drafted: Tensor | None) -> Tensor:
    """``penalized`` for ``rows`` of ``slots``, by the sampling of a run that penalizes."""
    assert slots.penalizing is not None
    before = _written_in(slots, rows, slots.penalizing, logits.shape[-1], logits.device)
    return penalized(logits, before, drafted, slots.penalizing)


def drafting(
    slots: Slots, device: torch.device, vocabulary: int
) -> Callable[[Tensor, Sequence[Tensor]], Tensor] | None:
    """For one proposal: from a draft's logits [A, V] and the proposals [A] before them to its penalized logits [A, V].

    None for a run that penalizes nothing.
    """
    sampling = slots.penalizing
    if sampling is None:
        return None
    before = _written_in(slots, slice(slots.active), sampling, vocabulary, device)

    def step(logits: Tensor, drafted: Sequence[Tensor]) -> Tensor:
        proposals = torch.stack(tuple(drafted), dim=1) if drafted else None
        return penalized(logits[:, None], before, proposals, sampling)[:, 0]

    return step


def _written_in(slots: Slots, rows: slice, sampling: Sampling, vocabulary: int, device: torch.device) -> Written:
    return written(slots.tokens[rows], slots.prompt[rows], slots.n[rows], sampling, vocabulary, device)


def penalized(logits: Tensor, before: Written, drafted: Tensor | None, sampling: Sampling) -> Tensor:
    """``logits`` [A, W, V] with the penalties of ``sampling`` on the tokens before each position: new, fp32.

    Position W − 1 follows ``before`` and all of ``drafted`` [A, D] (None: D = 0), each one before it a proposal less:
    W = D + 1 for a verification, W = 1 for a draft's step. As in vLLM and transformers: the logit of a token of prompt
    or output is divided by the repetition penalty if positive, else multiplied; then an output token loses the presence
    penalty and, times its count, the frequency penalty. Work is by token held, not by vocabulary. Raises ValueError for
    a repetition penalty that is not positive.
    """
    if not sampling.repetition_penalty > 0.0:
        raise ValueError(f"sampling {sampling.name}: repetition_penalty {sampling.repetition_penalty} is not positive")
    rows, width = logits.shape[:2]
    if drafted is None:
        drafted = before.tokens.new_zeros(rows, 0)
    count = drafted.shape[1]
    places = torch.arange(count, device=drafted.device)
    seen = places < count - width + 1 + torch.arange(width, device=drafted.device)[:, None]  # [W, D]
    # What a position does not follow becomes a token that it does: the same value is then written twice.
    proposals = torch.where(seen, drafted[:, None], before.tokens[:, None, :1])
    ids = torch.cat((before.tokens[:, None].expand(-1, width, -1), proposals), dim=-1)  # [A, W, N + D]

    logits = logits.float()
    values = logits.gather(-1, ids)
    if sampling.repetition_penalty != 1.0:
        penalty = sampling.repetition_penalty
        values = torch.where(values > 0.0, values / penalty, values * penalty)
    if before.counts is not None:
        counts = before.counts[:, None].expand(-1, width, -1).gather(-1, ids)
        for place in range(count):  # at most γ
            counts = counts + ((ids == drafted[:, place, None, None]) & seen[:, place, None])
        values = values - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0.0)
    return logits.scatter(-1, ids, values)
