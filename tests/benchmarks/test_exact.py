"""The enumeration and the test of it: right counts pass, wrong ones do not, impossible ones least of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.benchmarks.exact import count_sequences, joint_distribution, p_value
from pipeline.benchmarks.tiny import VOCABULARY, write_tiny
from pipeline.records.cell import Sampling

EXACT = np.array([[0.5, 0.1], [0.1, 0.3]])


def sampled(exact: np.ndarray, samples: int) -> np.ndarray:
    draws = np.random.default_rng(0).choice(exact.size, samples, p=exact.ravel())
    return np.bincount(draws, minlength=exact.size).reshape(exact.shape).astype(float)


def test_counts_of_the_distribution_itself_pass() -> None:
    assert p_value(sampled(EXACT, 1000), EXACT, (0, 1)) > 0.01


def test_right_marginals_with_a_wrong_joint_do_not_pass() -> None:
    independent = np.outer(EXACT.sum(axis=1), EXACT.sum(axis=0))
    counts = sampled(independent, 1000)
    assert p_value(counts, EXACT, (0,)) > 0.01
    assert p_value(counts, EXACT, (0, 1)) < 1e-6


def test_one_text_of_probability_0_is_enough() -> None:
    exact = np.array([0.5, 0.5, 0.0])
    assert p_value(np.array([500.0, 499.0, 1.0]), exact, (0,)) == 0.0


def test_rare_cells_are_tested_together() -> None:
    """Each of 50 expects half a text; that 1 of 10 texts is one of them is seen all the same."""
    exact = np.append(np.full(50, 0.0005), 0.975)
    assert p_value(np.append(np.full(50, 2.0), 900.0), exact, (0,)) < 1e-6


def test_sequences_are_counted_by_their_tokens() -> None:
    counts = count_sequences(np.array([[0, 1], [0, 1], [1, 1]]), 2)
    assert counts.tolist() == [[0, 2], [0, 1]]


def test_the_joint_distribution_is_a_product_of_conditionals(tmp_path: Path) -> None:
    """The first token's marginal does not depend on how many follow it, and top-k leaves k first tokens."""
    reference = write_tiny(tmp_path).reference()
    sampling = Sampling(name="k3", temperature=1.0, top_k=3)
    one = joint_distribution(reference, (1, 2), 1, sampling, VOCABULARY)
    three = joint_distribution(reference, (1, 2), 3, sampling, VOCABULARY)
    assert three.sum(axis=(1, 2)) == pytest.approx(one, abs=1e-6)
    assert np.count_nonzero(one) == 3
    assert np.count_nonzero(three) == 27
