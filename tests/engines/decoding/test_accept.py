"""Acceptance keeps the target's distribution exactly, row by row, whatever was proposed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from pipeline.benchmarks.mutants import draw_from_p_after_a_rejection, subtract_only_at_the_draft
from pipeline.engines.decoding.accept import Accepted, accept_greedy, accept_one_hot, accept_probabilistic
from pipeline.engines.decoding.transform import draw

V = 4
JUST_BELOW_1 = 1.0 - 2.0**-53

distributions = (
    st.lists(st.integers(0, 8), min_size=V, max_size=V)
    .filter(any)
    .map(lambda weights: torch.tensor(weights, dtype=torch.float32) / sum(weights))
)


def grid(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def u64(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


Acceptor = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Accepted]


def one_step(
    p: Tensor,
    q: Tensor,
    drafted: Tensor,
    u_accept: Tensor,
    u_residual: Tensor,
    accept: Acceptor = accept_probabilistic,
) -> Tensor:
    """The first emitted token of rows that propose one token each: the proposal, or what replaced it."""
    rows = len(drafted)
    result = accept(
        p.expand(rows, 2, V),
        q.expand(rows, 1, V),
        drafted[:, None],
        torch.ones(rows, dtype=torch.long),
        u_accept[:, None],
        u_residual[:, None].expand(rows, 2),
        torch.zeros(rows, 2, dtype=torch.float64),
    )
    return torch.where(result.count == 1, drafted, result.next_token)


@given(p=distributions, q=distributions)
def test_the_emitted_token_has_exactly_the_distribution_p(p: Tensor, q: Tensor) -> None:
    # Σ_d q(d)·min(1, p(d)/q(d)) + P(rejected)·residual = p, with each factor read off the code on a grid of uniforms.
    n = 1680
    emitted = torch.zeros(V, dtype=torch.float64)
    for token in range(V):
        if q[token] == 0:
            continue
        drafted = torch.full((n,), token)
        ok = accept_probabilistic(
            p.expand(n, 2, V),
            q.expand(n, 1, V),
            drafted[:, None],
            torch.ones(n, dtype=torch.long),
            grid(n)[:, None],
            torch.zeros(n, 2, dtype=torch.float64),
            torch.zeros(n, 2, dtype=torch.float64),
        ).count
        accepted = float(ok.double().mean())
        emitted[token] += float(q[token]) * accepted
        if accepted < 1.0:
            replaced = one_step(p, q, drafted, torch.full((n,), JUST_BELOW_1, dtype=torch.float64), grid(n))
            emitted += float(q[token]) * (1.0 - accepted) * torch.bincount(replaced, minlength=V) / n
    torch.testing.assert_close(emitted, p.double(), atol=4.0 / n, rtol=0.0)


@given(p=distributions, q=distributions, token=st.integers(0, V - 1))
def test_acceptance_probability_is_min_1_p_over_q(p: Tensor, q: Tensor, token: int) -> None:
    if q[token] == 0:
        return
    n = 4000
    emitted = accept_probabilistic(
        p.expand(n, 2, V),
        q.expand(n, 1, V),
        torch.full((n, 1), token),
        torch.ones(n, dtype=torch.long),
        grid(n)[:, None],
        torch.zeros(n, 2, dtype=torch.float64),
        torch.zeros(n, 2, dtype=torch.float64),
    )
    assert float(emitted.count.double().mean()) == pytest.approx(min(1.0, float(p[token] / q[token])), abs=1.0 / n)


def check_that_probability_zero_is_never_accepted(accept: Acceptor) -> None:
    """Not at u = 0 either."""
    p, q = torch.tensor([0.5, 0.5, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 0.0])
    zero = torch.zeros(1, dtype=torch.float64)
    assert one_step(p, q, torch.tensor([2]), zero, zero, accept).tolist() == [0], "what cannot be was accepted"


def check_that_an_empty_residual_falls_back_to_p(accept: Acceptor) -> None:
    # A rejection with p = q cannot happen at u < 1; the residual is still 0 when rounding brings one about.
    p = torch.tensor([0.25, 0.75, 0.0, 0.0])
    result = accept(
        p.expand(3, 2, V),
        p.expand(3, 1, V),
        torch.tensor([[0], [2], [3]]),
        torch.ones(3, dtype=torch.long),
        u64([1.0], [0.0], [0.5]),
        u64([0.9, 0.9], [0.9, 0.9], [0.9, 0.9]),
        u64([0.1, 0.1], [0.3, 0.3], [0.9, 0.9]),
    )
    assert result.count.tolist() == [0, 0, 0]
    assert result.next_token.tolist() == [0, 1, 1], "not drawn from p"


def check_that_the_residual_is_p_minus_the_whole_of_q(accept: Acceptor) -> None:
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.7, 0.1, 0.2, 0.0])
    rejected = torch.full((3000,), 0.999).double()
    replaced = one_step(p, q, torch.zeros(3000, dtype=torch.long), rejected, grid(3000), accept)
    got = torch.bincount(replaced, minlength=V) / 3000
    assert got.tolist() == pytest.approx([0.0, 2 / 3, 0.0, 1 / 3], abs=1e-3), "another residual"


def not_strict(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    """u · q ≤ p where u is 0, and all else right."""
    return accept_probabilistic(p, q, drafted, dlen, u_accept - 1e-300, u_residual, u_plain)


def always_from_the_residual(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    count = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain).count
    residual = (p[:, 0] - q[:, 0]).clamp_min(0.0)
    return Accepted(count=count, next_token=draw(residual / residual.sum(dim=-1, keepdim=True), u_residual[:, 0]))


@pytest.mark.parametrize(
    ("check", "wrong", "said"),
    [
        (check_that_probability_zero_is_never_accepted, not_strict, "what cannot be"),
        (check_that_an_empty_residual_falls_back_to_p, always_from_the_residual, "not drawn from p"),
        (check_that_the_residual_is_p_minus_the_whole_of_q, subtract_only_at_the_draft, "another residual"),
    ],
)
def test_rejection_and_residual_are_exact(check: Callable[[Acceptor], None], wrong: Acceptor, said: str) -> None:
    """Case 9, and what is broken in each way."""
    check(accept_probabilistic)
    with pytest.raises(AssertionError, match=said):
        check(wrong)


def test_a_residual_however_small_is_drawn_from() -> None:
    p, q = torch.tensor([1.0, 1e-20, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
    u = torch.ones(1, dtype=torch.float64)
    assert one_step(p, q, torch.tensor([0]), u, u * 0.5).tolist() == [1]


def test_rows_of_different_length_end_where_their_own_proposals_end() -> None:
    logits = torch.eye(V)[[0, 1, 2]].expand(4, 3, V)
    drafted = torch.tensor([[0, 1]]).expand(4, 2)
    result = accept_greedy(logits, drafted, torch.tensor([0, 1, 2, 2]))
    assert result.count.tolist() == [0, 1, 2, 2]
    assert result.next_token.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_width_one_is_a_plain_step(rows: int) -> None:
    p = torch.softmax(torch.randn(rows, 1, V, generator=torch.Generator().manual_seed(0)), dim=-1)
    u = torch.rand(rows, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    none, dlen = torch.zeros(rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    plain = draw(p[:, 0], u[:, 0])
    results = [
        accept_one_hot(p, none, dlen, u),
        accept_probabilistic(p, torch.zeros(rows, 0, V), none, dlen, u[:, :0], torch.zeros_like(u), u),
    ]
    for result in results:
        assert result.count.tolist() == [0] * rows
        assert torch.equal(result.next_token, plain)
    assert torch.equal(accept_greedy(p, none, dlen).next_token, p[:, 0].argmax(dim=-1))


def test_a_row_without_proposals_is_a_plain_step_beside_rows_with_some() -> None:
    p, q, drafted, u_accept, u_residual, u_plain = random_block(rows=200, width=4)
    dlen = torch.arange(200) % 4
    result = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain)
    without = dlen == 0
    assert torch.equal(result.next_token[without], draw(p[without, 0], u_plain[without, 0]))
    assert (result.count <= dlen).all()
    full = (result.count == dlen) & (dlen > 0)
    assert full.any()
    at = result.count[full]
    assert torch.equal(result.next_token[full], draw(p[full, at], u_plain[full, at]))


def test_a_row_does_not_depend_on_its_neighbours_nor_on_padding() -> None:
    p, q, drafted, u_accept, u_residual, u_plain = random_block(rows=60, width=5)
    dlen = torch.arange(60) % 5
    together = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain)
    for row in range(60):
        w = int(dlen[row])
        one = slice(row, row + 1)
        alone = accept_probabilistic(
            p[one, : w + 1],
            q[one, :w],
            drafted[one, :w],
            dlen[one],
            u_accept[one, :w],
            u_residual[one, : w + 1],
            u_plain[one, : w + 1],
        )
        assert (int(alone.count), int(alone.next_token)) == (
            int(together.count[row]),
            int(together.next_token[row]),
        )


def random_block(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows * width)
    p = torch.softmax(torch.randn(rows, width, V, generator=generator), dim=-1)
    q = torch.softmax(torch.randn(rows, width - 1, V, generator=generator), dim=-1)
    u = torch.rand(4, rows, width, generator=generator, dtype=torch.float64)
    return p, q, draw(q, u[0, :, :-1]), u[1, :, :-1], u[2], u[3]


def test_one_hot_text_is_plain_decodings_text_with_the_same_uniforms() -> None:
    p, _, drafted, _, _, u_plain = random_block(rows=500, width=4)
    plain = draw(p, u_plain)
    drafted = torch.where(torch.rand(500, 3, generator=torch.Generator().manual_seed(9)) < 0.6, plain[:, :3], drafted)
    result = accept_one_hot(p, drafted, torch.full((500,), 3), u_plain)
    assert set(result.count.tolist()) == {0, 1, 2, 3}
    for row in range(500):
        a = int(result.count[row])
        assert [*drafted[row, :a].tolist(), int(result.next_token[row])] == plain[row, : a + 1].tolist()


# Joint distributions over whole blocks, against exact enumeration.

Markov = NDArray[np.float64]


def markov(seed: int) -> Markov:
    """Next-token probabilities [V, V] by current token, some of them zero."""
    weights = np.random.default_rng(seed).gamma(0.6, size=(V, V)) + 1e-3
    weights[weights < 0.05] = 0.0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def exact_joint(target: Markov, length: int) -> NDArray[np.float64]:
    joint = np.ones([V] * length)
    for tokens in itertools.product(range(V), repeat=length):
        for previous, token in zip((0, *tokens), tokens, strict=False):
            joint[tokens] *= target[previous, token]
    return joint


def sampled_joint(accept: Acceptor, length: int = 3, gamma: int = 2, rows: int = 60000) -> NDArray[np.float64]:
    """Counts of the first ``length`` tokens of ``rows`` independent requests, decoded in blocks from token 0."""
    target, draft = torch.tensor(markov(1)).float(), torch.tensor(markov(2)).float()
    generator = torch.Generator().manual_seed(0)
    text = torch.zeros(rows, length + gamma + 2, dtype=torch.long)
    n = torch.ones(rows, dtype=torch.long)
    each = torch.arange(rows)
    while int(n.min()) <= length:
        u = torch.rand(4, rows, gamma + 1, generator=generator, dtype=torch.float64)
        dlen = (length + 1 - n).clamp(0, gamma)
        block = [text[each, n - 1]]
        for step in range(gamma):
            block.append(draw(draft[block[-1]], u[0, :, step]))
        tokens = torch.stack(block, dim=1)
        q, p = draft[tokens[:, :-1]], target[tokens]
        result = accept(p, q, tokens[:, 1:], dlen, u[1, :, :gamma], u[2], u[3])
        for step in range(gamma + 1):
            emitted = torch.where(step < result.count, tokens[:, min(step + 1, gamma)], result.next_token)
            live = (step <= result.count) & (n + step < text.shape[1])
            text[each[live], (n + step)[live]] = emitted[live]
        n = torch.minimum(n + result.count + 1, torch.tensor(text.shape[1] - gamma - 1).clamp_min(length + 1))
    counts = np.zeros([V] * length)
    np.add.at(counts, tuple(text[:, 1 : length + 1].T.numpy()), 1)
    return counts


def p_value(counts: NDArray[np.float64]) -> float:
    expected = exact_joint(markov(1), counts.ndim) * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    seen = expected > 0
    few = seen & (expected < 5)
    observed = np.append(counts[seen & ~few], counts[few].sum())
    wanted = np.append(expected[seen & ~few], expected[few].sum())
    keep = wanted > 0
    return float(stats.chisquare(observed[keep], wanted[keep]).pvalue)


def one_hot(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    return accept_one_hot(p, drafted, dlen, u_plain)


@pytest.mark.parametrize("accept", [accept_probabilistic, one_hot])
def test_the_joint_distribution_of_a_text_is_the_targets(accept: Acceptor) -> None:
    assert p_value(sampled_joint(accept)) > 1e-4


def with_a_sharper_q(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    sharper = q.square() / q.square().sum(dim=-1, keepdim=True)
    return accept_probabilistic(p, sharper, drafted, dlen, u_accept, u_residual, u_plain)


@pytest.mark.parametrize("broken", [subtract_only_at_the_draft, draw_from_p_after_a_rejection, with_a_sharper_q])
def test_the_joint_test_rejects_acceptance_that_is_not_lossless(broken: Acceptor) -> None:
    assert p_value(sampled_joint(broken)) < 1e-6
