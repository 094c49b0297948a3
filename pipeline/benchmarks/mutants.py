"""Engines that are wrong in one place: what a test of losslessness would not notice, it does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.decoding import loop, sampler
from pipeline.engines.decoding.accept import Accepted, accept_probabilistic
from pipeline.engines.decoding.penalties import penalize
from pipeline.engines.decoding.proposers import chain
from pipeline.engines.decoding.slots import Committed, Ints, Slots
from pipeline.engines.decoding.transform import draw, probabilities
from pipeline.records.cell import Sampling


def subtract_only_at_the_draft(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    right = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain)
    only = torch.zeros_like(q).scatter(-1, drafted[..., None], q.gather(-1, drafted[..., None]))
    wrong = accept_probabilistic(p, only, drafted, dlen, u_accept, u_residual, u_plain)
    return Accepted(count=right.count, next_token=wrong.next_token)


def draw_from_p_after_a_rejection(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    count = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain).count
    row = torch.arange(len(p))
    return Accepted(count=count, next_token=draw(p[row, count], u_plain[row, count]))


def penalize_by_the_committed_text_alone(logits: Tensor, slots: Slots, rows: slice, drafted: Tensor | None) -> Tensor:
    places = range(logits.shape[1])
    return torch.cat([penalize(logits[:, [place]], slots, rows, None) for place in places], dim=1)


@contextmanager
def begin_at_the_last_proposal() -> Iterator[None]:
    """After a full accept the next block is verified from the last proposal, and not from the token that followed it.

    The first block of a text, and any block after a rejection, is right.
    """
    commit, last_tokens = Slots.commit, Slots.last_tokens
    full: WeakKeyDictionary[Slots, list[int]] = WeakKeyDictionary()

    def remember(self: Slots, drafted: Ints, proposed: Ints, count: Ints, next_token: Ints) -> Committed:
        done = commit(self, drafted, proposed, count, next_token)
        full[self] = self.request[: self.active][(proposed > 0) & (done.accepted == proposed)].tolist()
        return done

    def one_too_early(self: Slots, width: int) -> Ints:
        last = last_tokens(self, width)
        rows = np.flatnonzero(np.isin(self.request[: self.active], full.get(self, [])))
        last[rows, -1] = self.tokens[rows, self.n[rows] - 2]
        return last

    with patch.object(Slots, "commit", remember), patch.object(Slots, "last_tokens", one_too_early):
        yield


_ACCEPTANCE: dict[str, Callable[..., Accepted]] = {
    "residual subtracts q only at the drafted token": subtract_only_at_the_draft,
    "final token from p after a rejection": draw_from_p_after_a_rejection,
}
UNTRANSFORMED = "untransformed q"
PENALTIES = "penalties leave out the accepted prefix"
_TOO_EARLY = "block after a full accept begins at its last proposal"

MUTANTS = (*_ACCEPTANCE, UNTRANSFORMED, PENALTIES, _TOO_EARLY)

SHARP = Sampling(name="t05_k4", temperature=0.5, top_k=4)
"""Raw and transformed distributions differ most here: what uses the wrong one shows in few samples."""
PENALIZED = Sampling(
    name="t07_penalized", temperature=0.7, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.8
)
"""All penalties at once, strong ones."""


def shown_by(mutant: str) -> Sampling:
    """The sampling under which ``mutant`` differs most from a right engine."""
    return PENALIZED if mutant == PENALTIES else SHARP


@contextmanager
def broken(mutant: str, sampling: Sampling) -> Iterator[None]:
    """Within it, every engine of this process that drafts for ``sampling`` is wrong as ``mutant`` says."""
    with ExitStack() as stack:
        if mutant in _ACCEPTANCE:
            stack.enter_context(patch.object(sampler, "accept_probabilistic", _ACCEPTANCE[mutant]))
        elif mutant == UNTRANSFORMED:
            # Proposals are drawn from the transformed distribution, and q is the softmax of the raw logits.
            raw = patch.object(chain, "probabilities", lambda logits, _: torch.softmax(logits, dim=-1))
            right = patch.object(chain, "draw", lambda q, u: draw(probabilities(q.log(), sampling), u))
            stack.enter_context(raw)
            stack.enter_context(right)
        elif mutant == _TOO_EARLY:
            stack.enter_context(begin_at_the_last_proposal())
        elif mutant == PENALTIES:
            stack.enter_context(patch.object(loop, "penalize", penalize_by_the_committed_text_alone))
        else:
            raise ValueError(f"{mutant}: mutants are {', '.join(MUTANTS)}")
        yield
