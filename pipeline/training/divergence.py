"""The loss: how far the head's distribution is from the target's, without ever holding all logits at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.training.recorder import Choices

_NO_TOKEN = -1
_CHUNK = 256
"""Places whose logits are held at once: what of them is worked on stays in the processor's cache."""


class Vocabulary:
    """The head's own numbers of the target's tokens: ``ids`` int64 [V'] of them, ascending, out of ``size``."""

    def __init__(self, ids: Tensor, size: int) -> None:
        self.ids = ids
        self.size = size
        self._own = torch.full((size,), _NO_TOKEN, dtype=torch.int64)
        self._own[ids] = torch.arange(len(ids))

    def own(self, tokens: Tensor) -> Tensor:
        """Int64, −1 for tokens that the head does not know."""
        return self._own[tokens.long()]


@dataclass(frozen=True)
class Wanted:
    """What a head should say at M places.

    ``own`` int64 [M, k]: the target's choices by the head's own numbers, ``shares`` [M, k] of them, 0 for those it does
    not know; they sum to 1 where ``taught`` bool [M]. A place whose likeliest token the head does not know teaches
    nothing: a draft there cannot be right.
    """

    own: Tensor
    shares: Tensor
    taught: Tensor

    @classmethod
    def of(cls, choices: Choices, vocabulary: Vocabulary) -> Wanted:
        """The target's distribution over those of its likeliest tokens that the head knows."""
        own = vocabulary.own(choices.ids)
        known = own >= 0
        taught = known[:, 0]
        shares = torch.softmax(choices.logits.float().masked_fill(~known, -math.inf), dim=-1)
        return cls(own.clamp_min(0), torch.where(taught[:, None] & known, shares, 0.0), taught)


def divergence(normed: Tensor, output: nn.Linear, wanted: Wanted) -> tuple[Tensor, Tensor]:
    """The mean cross entropy over the M places taught, and bool [M] where the likeliest token is the target's.

    ``normed`` [M, H] is what the ``output`` layer reads. Logits are made anew for the gradient nowhere: it is found in
    the same pass, a few places at a time, for a vocabulary times a batch does not fit in any cache.
    """
    loss, right = _Divergence.apply(normed, output.weight, wanted.own, wanted.shares, wanted.taught)  # type: ignore[no-untyped-call]
    return loss, right


class _Divergence(torch.autograd.Function):
    """Σ over places of logsumexp(z) − Σ_k share_k z_k, over their number; its gradient in z is softmax(z) − shares."""

    @staticmethod
    def forward(
        context: Any, normed: Tensor, weight: Tensor, own: Tensor, shares: Tensor, taught: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
        with torch.autocast("cpu", enabled=False):
            table, read = weight.to(dtype), normed.to(dtype)
            learns = any(context.needs_input_grad[:2])
            of_normed = torch.empty_like(read) if learns else read
            of_weight = torch.zeros_like(weight) if context.needs_input_grad[1] else None
            count = taught.sum().clamp_min(1)
            loss = torch.zeros((), dtype=torch.float32, device=weight.device)
            right = torch.empty(len(read), dtype=torch.bool, device=weight.device)
            for first in range(0, len(read), _CHUNK):
                part = slice(first, first + _CHUNK)
                logits = (read[part] @ table.T).float()
                chosen = torch.gather(logits, 1, own[part])
                greatest = logits.amax(-1, keepdim=True)
                # ties go to whichever argmax takes; equal logits of two tokens do not happen but by rounding
                right[part] = taught[part] & (chosen[:, 0] >= greatest[:, 0])
                logs = torch.log_softmax(logits, dim=-1)
                each = -(shares[part] * torch.gather(logs, 1, own[part])).sum(-1)
                loss += each.sum()
                if not learns:
                    continue
                slope = torch.softmax(logits, dim=-1)  # a tenth of the time that exp of the logs takes
                slope.scatter_add_(1, own[part], -shares[part])
                slope *= taught[part, None] / count
                slope = slope.to(dtype)
                torch.mm(slope, table, out=of_normed[part])
                if of_weight is not None:
                    of_weight += slope.T @ read[part]
        context.save_for_backward(of_normed.to(normed.dtype), of_weight)
        context.mark_non_differentiable(right)
        return loss / count, right

    @staticmethod
    def backward(context: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        of_normed, of_weight = context.saved_tensors
        return of_normed * slope, None if of_weight is None else of_weight * slope, None, None, None
