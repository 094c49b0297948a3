"""The exact distribution of the first tokens a target writes, by enumeration, and the chi-square test against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.decoding.transform import probabilities
from pipeline.records.cell import Sampling

Joint = NDArray[np.float64]
"""A number for each sequence of T tokens of a vocabulary of V: an array of T axes of V each."""

_LEAST_EXPECTED = 5


def joint_distribution(
    target: PreTrainedModel, prompt: Sequence[int], tokens: int, sampling: Sampling, vocabulary: int
) -> Joint:
    """The probability of every sequence of ``tokens`` tokens after ``prompt``.

    From the target's logits after every possible prefix, through transformers' own attention and no cache: up to
    V^(tokens − 1) rows at once, so both must be small.
    """
    rows, joint = torch.tensor([list(prompt)]), torch.ones(1, dtype=torch.float64)
    for _ in range(tokens):
        possible = joint > 0.0
        with torch.inference_mode():
            logits = target(input_ids=rows[possible], use_cache=False).logits[:, -1]
        logits = penalized_plainly(logits, rows[possible], len(prompt), sampling)
        following = torch.zeros(len(rows), vocabulary, dtype=torch.float64)
        following[possible] = probabilities(logits, sampling).double()
        joint = (joint[:, None] * following).flatten()
        rows = torch.cat(
            (rows.repeat_interleave(vocabulary, dim=0), torch.arange(vocabulary).repeat(len(rows))[:, None]), dim=1
        )
    total = float(joint.sum())
    if abs(total - 1.0) > 1e-5:
        raise ArithmeticError(f"the enumerated probabilities sum to {total}")
    exact: Joint = (joint / total).reshape([vocabulary] * tokens).numpy()
    return exact


def penalized_plainly(logits: Tensor, rows: Tensor, prompt: int, sampling: Sampling) -> Tensor:
    """``logits`` [N, V] after ``rows`` [N, T], ``prompt`` of which are the prompt, with the penalties of ``sampling``.

    Written over the whole vocabulary, as vLLM does it: not the engine's own way.
    """
    held = torch.zeros_like(logits).scatter_(1, rows, 1.0) > 0
    counts = torch.zeros_like(logits).scatter_add_(1, rows[:, prompt:], torch.ones_like(rows[:, prompt:]).to(logits))
    repetition = torch.where(logits > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
    logits = torch.where(held, logits * repetition, logits)
    return logits - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)


def count_sequences(texts: NDArray[np.integer], vocabulary: int) -> Joint:
    """How often each sequence is among ``texts`` [N, T]."""
    counts: Joint = np.zeros([vocabulary] * texts.shape[1])
    np.add.at(counts, tuple(texts.T), 1)
    return counts


def p_value(counts: Joint, exact: Joint, places: Sequence[int]) -> float:
    """Pearson's chi-square of ``counts`` against ``exact``, on the joint distribution of the tokens at ``places``.

    Cells that expect less than 5 are tested together. 0 where something was drawn that has probability 0.
    """
    others = tuple(place for place in range(exact.ndim) if place not in places)
    observed, expected = counts.sum(axis=others).ravel(), exact.sum(axis=others).ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    few = expected < _LEAST_EXPECTED
    observed = np.append(observed[~few], observed[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    if expected[-1] < _LEAST_EXPECTED:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    return chi_square_p(float(((observed - expected) ** 2 / expected).sum()), len(observed) - 1)


def chi_square_p(statistic: float, degrees: int) -> float:
    """P(χ² ≥ ``statistic``), 1 where there is but one cell. Needs no scipy: a bare machine may lack it."""
    if degrees < 1:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
