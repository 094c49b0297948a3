"""Which proposals a verification accepts, and the token that follows them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.transform import draw


@dataclass(frozen=True)
class Accepted:
    """``count`` int64 [C]: accepted proposals, a prefix; ``next_token`` int64 [C]: the token after them."""

    count: Tensor
    next_token: Tensor


def accept_greedy(logits: Tensor, drafted: Tensor, dlen: Tensor, ragged: Ragged | None = None) -> Accepted:
    """Accept while the proposal is the target's argmax; p and q are never built.

    ``logits`` [C, W, V] of the target at the last committed token and at each proposal; ``drafted`` int64 [C, W−1];
    ``dlen`` int64 [C], how many of a row's proposals are real (0 to W−1; the rest may hold any token id). With
    ``ragged``, which has ``dlen`` + 1 tokens of each row, ``logits`` are [T, V].
    """
    wanted = logits.float().argmax(dim=-1)
    return _accept_matching(wanted if ragged is None else ragged.spread(wanted), drafted, dlen)


def accept_one_hot(p: Tensor, drafted: Tensor, dlen: Tensor, u_plain: Tensor, ragged: Ragged | None = None) -> Accepted:
    """Accept while the proposal is what plain decoding would have drawn at its position.

    For proposals that were not sampled (n-gram, greedy drafts), whose q is one-hot: the acceptance probability is
    p(d), as in speculative sampling, and the text is plain decoding's with the same seed. ``p`` [C, W, V] is the
    target's transformed distribution, ``u_plain`` float64 [C, W] the plain stream at the W positions. With ``ragged``,
    which has ``dlen`` + 1 tokens of each row, ``p`` is [T, V].
    """
    wanted = draw(p, u_plain) if ragged is None else ragged.spread(draw(p, ragged.pack(u_plain)))
    return _accept_matching(wanted, drafted, dlen)


def accept_probabilistic(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023).

    Proposal j is accepted when u_j · q(d_j) < p(d_j) (strict, so that p = 0 never passes, and without a division) and
    all before it were. The next token comes from the normalized (p_a − q_a)₊ after a rejection, and from p_a when
    every proposal was accepted or the residual sums to 0.

    ``p`` [C, W, V] and ``q`` [C, W−1, V] are transformed distributions, q the one that ``drafted`` was drawn from;
    ``u_accept`` float64 [C, W−1], ``u_residual`` and ``u_plain`` float64 [C, W] by position.
    """
    if drafted.shape[1] == 0:
        return Accepted(count=torch.zeros_like(dlen), next_token=draw(p[:, 0], u_plain[:, 0]))
    chosen = drafted[..., None]
    p_drafted = p[:, :-1].gather(-1, chosen).squeeze(-1).double()
    q_drafted = q.gather(-1, chosen).squeeze(-1).double()
    count = _prefix_length(u_accept * q_drafted < p_drafted, dlen)

    p_next = _at(p, count)
    residual = (p_next - _at(q, count.clamp_max(q.shape[1] - 1))).clamp_min_(0.0)
    mass = residual.sum(dim=-1)
    from_residual = (count < dlen) & (mass > 0.0)
    weights = torch.where(from_residual[:, None], residual / mass[:, None], p_next)
    u = torch.where(from_residual, _at(u_residual, count), _at(u_plain, count))
    return Accepted(count=count, next_token=draw(weights, u))


def _accept_matching(wanted: Tensor, drafted: Tensor, dlen: Tensor) -> Accepted:
    """Accept while ``drafted`` [C, W−1] equals ``wanted`` [C, W]; the next token is the first wanted one after that."""
    count = _prefix_length(wanted[:, :-1] == drafted, dlen)
    return Accepted(count=count, next_token=_at(wanted, count))


def _prefix_length(ok: Tensor, dlen: Tensor) -> Tensor:
    """Length [C] of the run of true that starts ``ok`` [C, W−1], within ``dlen``: nothing counts past a rejection."""
    real = torch.arange(ok.shape[1], device=ok.device) < dlen[:, None]
    return (ok & real).long().cumprod(dim=1).sum(dim=1)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """``values[c, index[c]]`` for every row c."""
    return values[torch.arange(values.shape[0], device=values.device), index]
