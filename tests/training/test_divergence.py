"""The loss by its definition, and its gradient by automatic differentiation of that."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_head_student import KNOWN, VOCABULARY
from torch import nn

from pipeline.training import divergence as room
from pipeline.training.divergence import Vocabulary, Wanted, divergence
from pipeline.training.recorder import Choices

IDS = torch.arange(0, 2 * KNOWN, 2)


def identity() -> nn.Linear:
    output = nn.Linear(KNOWN, KNOWN, bias=False)
    output.weight.data = torch.eye(KNOWN)
    return output


@given(
    logits=st.lists(st.floats(-5, 5, width=32, allow_subnormal=False), min_size=KNOWN, max_size=KNOWN),
    ids=st.lists(st.integers(0, VOCABULARY - 1), min_size=3, max_size=3, unique=True),
    taught=st.lists(st.floats(-4, 4), min_size=3, max_size=3).map(lambda x: sorted(x, reverse=True)),
)
def test_the_loss_is_the_cross_entropy_over_the_tokens_that_both_know(
    logits: list[float], ids: list[int], taught: list[float]
) -> None:
    vocabulary = Vocabulary(IDS, VOCABULARY)
    choices = Choices(torch.tensor([ids], dtype=torch.int32), torch.tensor([taught]))
    found, right = divergence(torch.tensor([logits]), identity(), Wanted.of(choices, vocabulary))
    loss = float(found.detach())
    known = {i: t for i, t in zip(ids, taught, strict=True) if i in set(IDS.tolist())}
    if ids[0] not in known:
        assert loss == 0
        assert not right
        return
    assert bool(right) == (logits[ids[0] // 2] == max(logits))
    total = sum(math.exp(t) for t in known.values())
    normal = math.log(sum(math.exp(x) for x in logits))
    wanted = sum(math.exp(t) / total * (normal - logits[i // 2]) for i, t in known.items())
    assert loss == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("chunk", [3, 256])
def test_the_gradient_is_that_of_the_definition_however_places_are_cut(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_CHUNK", chunk)
    torch.manual_seed(0)
    places, hidden = 10, 6
    vocabulary = Vocabulary(IDS, VOCABULARY)
    ids = torch.stack([torch.randperm(VOCABULARY)[:4] for _ in range(places)])
    wanted = Wanted.of(Choices(ids.int(), torch.randn(places, 4).sort(descending=True).values), vocabulary)
    assert 0 < int(wanted.taught.sum()) < places
    output = nn.Linear(hidden, KNOWN, bias=False)
    normed = torch.randn(places, hidden, requires_grad=True)

    loss, _ = divergence(normed, output, wanted)
    got = torch.autograd.grad(2 * loss, (normed, output.weight))
    logs = torch.log_softmax(output(normed), dim=-1)
    plain = -(wanted.shares * logs.gather(1, wanted.own)).sum() / wanted.taught.sum()
    torch.testing.assert_close(loss, plain)
    for ours, theirs in zip(got, torch.autograd.grad(2 * plain, (normed, output.weight)), strict=True):
        torch.testing.assert_close(ours, theirs)
