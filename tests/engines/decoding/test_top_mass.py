"""The threshold found by bits is the one that a sort finds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.decoding import transform
from pipeline.engines.decoding.top_mass import least_of_top_mass
from pipeline.engines.decoding.transform import _crossing, probabilities
from pipeline.records.cell import Sampling


def by_sorting(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    mass = weights.sum(dim=-1, keepdim=True, dtype=torch.float64) * top_p
    return _crossing(weights.sort(dim=-1, descending=True).values, mass)


@given(
    eighths=st.lists(st.integers(-160, 0), min_size=1, max_size=60),
    top_p=st.sampled_from([0.01, 0.3, 0.5, 0.77, 0.9, 0.999]),
)
def test_it_is_that_of_a_sort_on_rows_full_of_ties(eighths: list[int], top_p: float) -> None:
    weights = torch.tensor([0, *eighths]).div(8.0).exp()
    least, expected = least_of_top_mass(weights, top_p), by_sorting(weights, top_p)
    if not torch.equal(least, expected):  # only where the sum reaches the share to within what sums are rounded to
        between = weights[(weights >= torch.minimum(least, expected)) & (weights < torch.maximum(least, expected))]
        reached = float(weights[weights >= torch.maximum(least, expected)].double().sum())
        assert abs(reached - top_p * float(weights.double().sum())) < 1e-9, (least, expected, between)


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0, 40.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.99])
def test_it_is_that_of_a_sort_on_random_rows(scale: float, top_p: float) -> None:
    logits = torch.randn(3, 4, 5000, generator=torch.Generator().manual_seed(7)) * scale
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    least = least_of_top_mass(weights, top_p)
    assert least.shape == (3, 4, 1)
    assert torch.equal(least, by_sorting(weights, top_p))


def test_one_weight_is_its_own_threshold() -> None:
    weights = torch.zeros(2, 9)
    weights[0, 3] = weights[1, 8] = 1.0
    assert least_of_top_mass(weights, 0.5).tolist() == [[1.0], [1.0]]


@given(top_p=st.floats(0.05, 0.99), seed=st.integers(0, 99))
def test_a_share_of_it_is_kept_and_no_token_more(top_p: float, seed: int) -> None:
    weights = torch.rand(300, generator=torch.Generator().manual_seed(seed)) ** 6
    weights = weights / weights.max()
    least = float(least_of_top_mass(weights, top_p))
    share = weights.double().sum() * top_p
    assert weights[weights >= least].double().sum() >= share * (1 - 1e-9)
    assert weights[weights > least].double().sum() < share * (1 + 1e-9)


def test_probabilities_are_the_same_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(3)) * 3
    for sampling in (
        Sampling(name="p", temperature=0.7, top_p=0.9),
        Sampling(name="m", temperature=1.0, top_p=0.8, min_p=0.01),
    ):
        by_sort = probabilities(logits, sampling)
        with monkeypatch.context() as patched:
            patched.setattr(transform, "_top_p_threshold", lambda weights, _, top_p: least_of_top_mass(weights, top_p))
            assert torch.equal(probabilities(logits, sampling), by_sort)
