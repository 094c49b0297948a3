"""The sampled distribution: filters in order, ties kept, and draws that never leave it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pipeline.engines.decoding import transform
from pipeline.engines.decoding.transform import draw, near_tie, probabilities
from pipeline.records.cell import Sampling

JUST_BELOW_1 = 1.0 - 2.0**-53

SAMPLINGS = [
    Sampling(name="plain", temperature=1.0),
    Sampling(name="cool", temperature=0.7),
    Sampling(name="top_k", temperature=1.3, top_k=5),
    Sampling(name="top_p", temperature=0.7, top_p=0.8),
    Sampling(name="min_p", temperature=1.0, min_p=0.2),
    Sampling(name="top_k_top_p", temperature=0.9, top_k=8, top_p=0.7),
    Sampling(name="all", temperature=1.5, top_k=20, top_p=0.9, min_p=0.1),
]
named = pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.name)


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def u64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_definition(logits: list[float], sampling: Sampling) -> list[float]:
    """The documented semantics in plain Python, ties kept."""
    greatest = max(logits)
    weights = [math.exp((value - greatest) / sampling.temperature) for value in logits]
    if 0 < sampling.top_k < len(weights):
        least = sorted(weights, reverse=True)[sampling.top_k - 1]
        weights = [w if w >= least else 0.0 for w in weights]
    if sampling.top_p < 1.0:
        total, so_far, least = sum(weights), 0.0, 0.0
        for w in sorted(weights, reverse=True):
            if so_far < sampling.top_p * total:
                least = w
            so_far += w
        weights = [w if w >= least else 0.0 for w in weights]
    weights = [w if w >= sampling.min_p * max(weights) else 0.0 for w in weights]
    return [w / sum(weights) for w in weights]


@named
def test_agrees_with_the_warpers_of_transformers_where_nothing_ties(sampling: Sampling) -> None:
    logits = random_logits(50, 300)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    theirs = torch.softmax(warpers(torch.zeros(50, 1, dtype=torch.long), logits.clone()), dim=-1)
    ours = probabilities(logits, sampling)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs)


@named
@given(eighths=st.lists(st.integers(-20, 20), min_size=2, max_size=40))
def test_agrees_with_its_definition_on_rows_full_of_ties(sampling: Sampling, eighths: list[int]) -> None:
    logits = [value / 8 for value in eighths]
    ours = probabilities(torch.tensor(logits), sampling)
    torch.testing.assert_close(ours, torch.tensor(by_definition(logits, sampling)), rtol=1e-5, atol=1e-7)


def test_every_token_that_ties_with_the_last_one_kept_is_kept() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    for sampling in (
        Sampling(name="k", temperature=1.0, top_k=2),
        Sampling(name="p", temperature=1.0, top_p=0.5),
        Sampling(name="m", temperature=1.0, min_p=math.exp(-1.0) - 1e-6),
    ):
        assert (probabilities(logits, sampling) > 0).tolist() == [True, True, True, True, False]


def test_top_p_keeps_the_token_that_crosses_and_none_after_it() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    kept = {
        p: int((probabilities(logits, Sampling(name="p", temperature=1.0, top_p=p)) > 0).sum())
        for p in (0.01, 0.49, 0.51, 0.74, 0.76, 0.91, 0.999)
    }
    assert kept == {0.01: 1, 0.49: 1, 0.51: 2, 0.74: 2, 0.76: 3, 0.91: 4, 0.999: 4}


def test_min_p_is_relative_to_what_the_earlier_filters_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    sampling = Sampling(name="m", temperature=1.0, top_k=3, min_p=0.6)
    torch.testing.assert_close(probabilities(logits, sampling), torch.tensor([4 / 7, 3 / 7, 0.0, 0.0]))


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_k", [0, 40, 900])
def test_the_prefilter_changes_nothing_whether_it_reaches_p_or_not(
    monkeypatch: pytest.MonkeyPatch, scale: float, top_k: int
) -> None:
    logits = torch.cat([random_logits(6, 1000, scale=scale), random_logits(6, 1000, seed=1, scale=4.0)])
    sampling = Sampling(name="p", temperature=1.0, top_k=top_k, top_p=0.9)
    whole = probabilities(logits, sampling)
    monkeypatch.setattr(transform, "PREFILTER", 64)
    assert torch.equal(probabilities(logits, sampling), whole)
    assert torch.equal(probabilities(logits[3], sampling), whole[3])


@named
def test_a_row_does_not_depend_on_its_neighbours(sampling: Sampling) -> None:
    logits = random_logits(4, 3, 200)
    together = probabilities(logits, sampling)
    alone = torch.stack([probabilities(row, sampling) for row in logits.flatten(0, 1)])
    torch.testing.assert_close(together.flatten(0, 1), alone, rtol=1e-6, atol=0.0)


@named
def test_input_is_left_alone_and_any_precision_is_read_as_fp32(sampling: Sampling) -> None:
    logits = random_logits(2, 30).to(torch.bfloat16)
    before = logits.clone()
    probs = probabilities(logits, sampling)
    assert probs.dtype == torch.float32
    assert torch.equal(logits, before)
    assert torch.equal(probs, probabilities(logits.float(), sampling))
    wide = random_logits(2, 30)
    kept = wide.clone()
    probabilities(wide, Sampling(name="one", temperature=1.0, top_k=3))
    assert torch.equal(wide, kept)


def test_masked_logits_have_no_probability() -> None:
    logits = torch.tensor([0.0, -math.inf, 1.0, -math.inf])
    for sampling in SAMPLINGS:
        assert (probabilities(logits, sampling)[[1, 3]] == 0).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(name="greedy"),
        Sampling(name="x", temperature=-1.0),
        Sampling(name="x", temperature=math.nan),
        Sampling(name="x", temperature=1.0, top_k=-1),
        Sampling(name="x", temperature=1.0, top_p=0.0),
        Sampling(name="x", temperature=1.0, min_p=1.5),
    ],
)
def test_what_has_no_distribution_is_refused(sampling: Sampling) -> None:
    with pytest.raises(ValueError, match="sampling"):
        probabilities(torch.zeros(4), sampling)


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(6, -1)
    assert draw(probs, u64(0.0, 0.2499, 0.25, 0.7499, 0.75, JUST_BELOW_1)).tolist() == [0, 0, 2, 2, 3, 3]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-9, 1e-3, 0.3, 1.0, 7.0]), min_size=1, max_size=30).filter(
        lambda weights: sum(weights) > 1e-8
    ),
    u=st.floats(0.0, JUST_BELOW_1) | st.sampled_from([0.0, JUST_BELOW_1, 5e-324]),
)
def test_draw_never_returns_a_token_of_probability_zero(weights: list[float], u: float) -> None:
    probs = torch.tensor(weights) / sum(weights)
    assert float(probs[draw(probs, torch.tensor(u, dtype=torch.float64))]) > 0.0


def test_draw_keeps_any_batch_shape() -> None:
    probs = probabilities(random_logits(2, 3, 7), SAMPLINGS[0])
    assert draw(probs, torch.rand(2, 3, dtype=torch.float64)).shape == (2, 3)
    assert draw(probs[:0], torch.rand(0, 3, dtype=torch.float64)).shape == (0, 3)


def test_a_draw_does_not_depend_on_the_order_in_which_probabilities_are_added() -> None:
    # Devices add in different orders: with u · total just at a boundary, a rounded sum would fall on either side.
    probs = probabilities(random_logits(20000), SAMPLINGS[0])
    forwards, backwards = transform._exact_cdf(probs), transform._exact_cdf(probs.flip(0))
    assert torch.equal(forwards[:-1], (backwards[-1] - backwards[:-1]).flip(0))


def test_draws_over_a_grid_of_u_have_the_distribution() -> None:
    probs = probabilities(random_logits(9), Sampling(name="k", temperature=0.8, top_k=6))
    grid = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    counts = torch.bincount(draw(probs.expand(20000, -1), grid), minlength=9)
    torch.testing.assert_close(counts / 20000, probs, atol=1e-4, rtol=0.0)


def test_greedy_tie_is_the_gap_of_the_two_greatest_logits() -> None:
    assert near_tie(torch.tensor([1.0, 3.0, -2.0, 2.75]), Sampling(name="greedy"), 0.5) == 0.25


@given(u=st.floats(0.0, JUST_BELOW_1), seed=st.integers(0, 50))
def test_a_draw_moves_exactly_when_u_moves_beyond_the_tie_distance(u: float, seed: int) -> None:
    sampling = Sampling(name="plain", temperature=1.0)
    logits = random_logits(8, seed=seed)
    probs, distance = probabilities(logits, sampling), near_tie(logits, sampling, u)
    token = draw(probs, torch.tensor(u, dtype=torch.float64))
    inside = u64(u - distance * 0.999, u + distance * 0.999).clamp(0.0, JUST_BELOW_1)
    assert (draw(probs.expand(2, -1), inside) == token).all()
    outside = u64(u - distance - 1e-9, u + distance + 1e-9)
    reachable = outside[(outside >= 0.0) & (outside < 1.0)]
    if len(reachable) == 2:
        assert (draw(probs.expand(2, -1), reachable) != token).any()


def test_a_near_tie_at_a_threshold_counts_when_it_could_move_the_draw() -> None:
    near = torch.tensor([0.5, 0.25001, 0.24999]).log()
    far = torch.tensor([0.5, 0.4, 0.1]).log()
    top_k = Sampling(name="k", temperature=1.0, top_k=2)
    assert near_tie(near, top_k, 0.8) == pytest.approx(8e-5, rel=0.01)
    assert near_tie(far, top_k, 0.8) > 0.1

    min_p = Sampling(name="m", temperature=1.0, min_p=0.4999)
    assert near_tie(torch.tensor([0.5, 0.25, 0.25]).log(), min_p, 0.2) == pytest.approx(2e-4, rel=0.01)

    top_p = Sampling(name="p", temperature=1.0, top_p=0.749)
    assert near_tie(torch.tensor([0.5, 0.25, 0.25]).log(), top_p, 0.4) == pytest.approx(0.001, rel=0.01)


def test_a_near_tie_at_a_threshold_of_tokens_too_small_to_move_the_draw_does_not_count() -> None:
    tail = torch.full((100,), 1e-5)
    logits = torch.cat([torch.tensor([0.6, 0.399]), tail]).log()
    top_p = Sampling(name="p", temperature=1.0, top_p=0.9995)
    assert near_tie(logits, top_p, 0.3) > 0.1
    assert near_tie(logits, Sampling(name="k", temperature=1.0, top_k=50), 0.3) > 0.1
