"""Choosing tokens: from logits and counter random numbers to accepted proposals and the token after them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding.accept import (
    Accepted,
    accept_greedy,
    accept_one_hot,
    accept_probabilistic,
)
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.slots import Ints
from pipeline.engines.decoding.transfer import to_device
from pipeline.engines.decoding.transform import draw, probabilities
from pipeline.engines.decoding.uniform import ACCEPT, PLAIN, RESIDUAL, uniforms
from pipeline.records.cell import Sampling


def choose(logits: Tensor, seeds: Ints, index: Ints, sampling: Sampling) -> Tensor:
    """Plain decoding: the token [A] that will stand at ``index`` [A], from ``logits`` [A, V]."""
    if sampling.greedy:
        return logits.float().argmax(dim=-1)  # on a CPU fifteen times as fast as in bfloat16, and the same token
    return draw(probabilities(logits, sampling), _uniforms(seeds, index, 1, PLAIN, logits.device)[:, 0])


def accept(
    logits: Tensor, proposal: Proposal, seeds: Ints, index: Ints, sampling: Sampling, ragged: Ragged | None = None
) -> Accepted:
    """What stands of ``proposal``, whose first tokens stand at ``index`` [A].

    ``logits`` [A, W, V] follow the last committed token and each proposal; with ``ragged``, only its T tokens, as
    [1, T, V]. Greedy builds neither p nor q.
    """
    dlen = to_device(proposal.proposed, logits.device)
    if ragged is not None:
        logits = logits[0]
    if sampling.greedy:
        return accept_greedy(logits, proposal.tokens, dlen, ragged)
    width = proposal.tokens.shape[1] + 1
    p = probabilities(logits, sampling)
    u_plain = _uniforms(seeds, index, width, PLAIN, logits.device)
    if proposal.q is None:
        return accept_one_hot(p, proposal.tokens, dlen, u_plain, ragged)
    if ragged is not None:
        p = ragged.spread(p)
    u_accept = _uniforms(seeds, index, width - 1, ACCEPT, logits.device)
    u_residual = _uniforms(seeds, index, width, RESIDUAL, logits.device)
    return accept_probabilistic(p, proposal.q, proposal.tokens, dlen, u_accept, u_residual, u_plain)


def _uniforms(seeds: Ints, index: Ints, width: int, stream: int, device: torch.device) -> Tensor:
    """[A, width] for the tokens at ``index`` onwards."""
    positions = to_device(index[:, None] + np.arange(width), device)
    return uniforms(to_device(seeds, device), positions, stream)
