"""From logits to the distribution a token is drawn from: one order of filters for baseline, draft and verification."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.engines.decoding.top_mass import least_of_top_mass
from pipeline.records.cell import Sampling

PREFILTER = 1024
"""Top-p looks at this many of the greatest weights, and sorts a whole row only where they do not reach p."""

_RESOLUTION = 2.0**52


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The sampled distribution, fp32 [..., V], of ``logits`` [..., V].

    In this order, in fp32, on weights w = exp(logits/T − max), whose greatest is 1:

    - temperature divides the logits;
    - top-k keeps every token whose weight is at least the k-th greatest weight;
    - top-p keeps, of the distribution after top-k, the smallest set of its most probable tokens whose sum reaches p
      (the token that crosses p is in it), and every token as probable as the least of them;
    - min-p keeps every token at least ``min_p`` times as probable as the most probable one;

    then what is left is normalized. Thresholds are values: tokens that tie with the last one kept are all kept, so that
    the result does not depend on how a sort breaks ties. With top-p and no top-k ≤ ``PREFILTER`` one flag is read
    back on a CPU; on a GPU nothing is. Raises ValueError for temperature 0 and for parameters out of range.
    """
    _check(sampling)
    scaled = logits.float() / sampling.temperature
    vocabulary = scaled.shape[-1]
    top_k = sampling.top_k if 0 < sampling.top_k < vocabulary else 0
    if not top_k and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return torch.softmax(scaled, dim=-1)

    weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
    if top_k:
        greatest = weights.topk(top_k, dim=-1).values
        weights.masked_fill_(weights < greatest[..., -1:], 0.0)
    if sampling.top_p < 1.0:
        least = _top_p_threshold(weights, greatest if 0 < top_k <= PREFILTER else None, sampling.top_p)
        weights.masked_fill_(weights < least, 0.0)
    if sampling.min_p > 0.0:
        weights.masked_fill_(weights < sampling.min_p, 0.0)
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse CDF: int64 [...], the first index whose cumulative probability exceeds u · cdf[−1].

    ``probs`` [..., V], of sum 1; ``u`` float64 [...] in [0, 1). Probabilities are cut to multiples of 2⁻⁵², so that
    sums in fp64 are exact whatever the order of addition: devices agree, and a token of probability 0 has an empty
    interval, at u = 0 and at the end too.
    """
    cdf = _exact_cdf(probs)
    return torch.searchsorted(cdf, u[..., None] * cdf[..., -1:], right=True).squeeze(-1)


def near_tie(logits: Tensor, sampling: Sampling, u: float) -> float:
    """How near to a tie the choice from ``logits`` [V] was: what a difference in rounding must exceed to change it.

    Greedy: the gap between the two greatest fp32 logits. Sampled with uniform ``u``: the least of

    - e, the distance of u · cdf[−1] from the edges of the drawn token's interval (as probability);
    - for top-k and min-p, the least relative change of probability that takes tokens of mass ≥ e across the threshold;
    - for top-p, the least change of p that adds or removes tokens of mass ≥ e.

    (Tokens of less mass than e cannot move an edge past u, however near to the threshold they are.)
    """
    if sampling.greedy:
        best = logits.float().topk(2).values
        return float(best[0] - best[1])
    probs = probabilities(logits, sampling)
    cdf = _exact_cdf(probs)
    total = float(cdf[-1])
    token = int(draw(probs, torch.tensor(u, dtype=torch.float64, device=probs.device)))
    below = float(cdf[token - 1]) if token else 0.0
    edge = min(u * total - below, float(cdf[token]) - u * total) / total
    return min(edge, _filter_margin(logits, sampling, edge))


def _check(sampling: Sampling) -> None:
    if not sampling.temperature > 0.0:
        raise ValueError(f"sampling {sampling.name}: temperature {sampling.temperature} has no distribution")
    if sampling.top_k < 0 or not 0.0 < sampling.top_p <= 1.0 or not 0.0 <= sampling.min_p <= 1.0:
        raise ValueError(f"sampling {sampling.name}: needs top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1")


def _exact_cdf(probs: Tensor) -> Tensor:
    """Cumulative sums in units of 2⁻⁵²: whole numbers below 2⁵³, which fp64 adds without rounding."""
    return probs.double().mul_(_RESOLUTION).floor_().cumsum(dim=-1)


def _top_p_threshold(weights: Tensor, greatest: Tensor | None, top_p: float) -> Tensor:
    """The least weight kept, [..., 1]. ``greatest``: the weights that top-k kept, descending, when they are few."""
    mass = weights.sum(dim=-1, keepdim=True, dtype=torch.float64) * top_p
    if greatest is not None:  # what they lack of the whole are ties with the last of them
        return _crossing(greatest, mass)
    if weights.is_cuda:
        return least_of_top_mass(weights, top_p)
    few = weights.topk(min(PREFILTER, weights.shape[-1]), dim=-1).values
    least = _crossing(few, mass)
    short = few.sum(dim=-1, dtype=torch.float64) < mass.squeeze(-1)
    if few.shape[-1] < weights.shape[-1] and bool(short.any()):
        least[short] = _crossing(weights[short].sort(dim=-1, descending=True).values, mass[short])
    return least


def _crossing(descending: Tensor, mass: Tensor) -> Tensor:
    """The element of ``descending`` [..., n] at which its running sum reaches ``mass`` [..., 1], else the last one."""
    before = descending.double().cumsum(dim=-1).sub_(descending)
    count = (before < mass).sum(dim=-1, keepdim=True)
    return descending.gather(-1, count.clamp_min(1) - 1)


def _filter_margin(logits: Tensor, sampling: Sampling, edge: float) -> float:
    """The part of ``near_tie`` that concerns thresholds; infinite when no filter is active."""
    scaled = logits.double() / sampling.temperature
    probs = torch.softmax(scaled, dim=0).sort(descending=True).values
    margin = math.inf
    if 0 < sampling.top_k < probs.numel():
        kept, cut = probs[: sampling.top_k], probs[sampling.top_k :]
        margin = _first_felt(kept, kept / cut[0] - 1.0, cut, 1.0 - cut / kept[-1], edge)
        probs = probs[probs >= kept[-1]]
        probs = probs / probs.sum()
    if sampling.top_p < 1.0:
        before = probs.cumsum(dim=0) - probs
        count = max(1, int((before < sampling.top_p).sum()))
        change = (before - sampling.top_p).abs()
        margin = min(margin, _first_felt(probs[:count], change[:count], probs[count:], change[count:], edge))
        probs = probs[:count] / probs[:count].sum()
    if sampling.min_p > 0.0:
        ratio = probs / (probs[0] * sampling.min_p)
        count = int((ratio >= 1.0).sum())
        change = (ratio - 1.0).abs()
        margin = min(margin, _first_felt(probs[:count], change[:count], probs[count:], change[count:], edge))
    return margin


def _first_felt(kept: Tensor, to_lose: Tensor, cut: Tensor, to_gain: Tensor, edge: float) -> float:
    """The least change at which the tokens that change sides, nearest to the threshold first, carry mass ``edge``."""
    lost = to_lose.flip(0)[kept.flip(0).cumsum(dim=0) >= edge]
    gained = to_gain[cut.cumsum(dim=0) >= edge]
    return min(math.inf, *map(float, lost[:1]), *map(float, gained[:1]))
