"""What is true of a candidate on a simulated machine: what measurements of it estimate, without their noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline.engines.machine import Machine
from pipeline.engines.simulated_row import chances
from pipeline.records.target import Candidate
from pipeline.speedup import actual_speedup

_PROMPTS = 33
"""Prompts whose spread of α stands for every prompt's: the midpoints of so many equal parts."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Means over row-iterations, as measurements have them: all of them, those with too little room for γ included."""

    emitted_per_verification: float
    tau0_ms: float
    tau_spec_ms: float

    @property
    def speedup(self) -> float:
        return float(actual_speedup(self.emitted_per_verification, self.tau0_ms, self.tau_spec_ms))


def true_speedup(
    machine: Machine, candidate: Candidate, *, concurrency: int, prompt_tokens: float, output_tokens: int
) -> float:
    """S of ``candidate`` over plain decoding, in expectation over prompts and luck."""
    return truth(
        machine, candidate, concurrency=concurrency, prompt_tokens=prompt_tokens, output_tokens=output_tokens
    ).speedup


def truth(
    machine: Machine, candidate: Candidate, *, concurrency: int, prompt_tokens: float, output_tokens: int
) -> Truth:
    """E exactly, by the chance that a block begins at each place of an output; times by the widths that follow.

    A text that ends early only cuts blocks short: where they begin does not depend on it. Noise multiplies both arms'
    times alike and drops out. Two things are approximate, both small: the C rows of an iteration are taken to be
    independent (they begin together, and fillers never end early), and times are taken at the mean context and, where
    rows are packed, the mean of their positions. Raises ValueError for outputs of one token, which no iteration writes,
    and for texts that all end at their first.
    """
    if machine.eos_rate >= 1.0:
        raise ValueError(f"eos_rate must be less than 1, got {machine.eos_rate}: no iteration would write anything")
    if output_tokens < 2:
        raise ValueError(f"output_tokens must be at least 2, got {output_tokens}")
    draft, gamma = candidate.draft, candidate.gamma
    rows = concurrency
    plain = np.arange(1, output_tokens)
    goes_on = (1.0 - machine.eos_rate) ** plain  # P(no token before this place ended the text)
    written = float(goes_on.sum())
    tau0 = _tau_ms(machine, candidate, 1, rows, prompt_tokens + float(goes_on @ plain) / written)
    if draft is None or gamma == 0:
        return Truth(emitted_per_verification=1.0, tau0_ms=tau0, tau_spec_ms=tau0)
    begins, lengths = _blocks(
        _Acceptance(
            machine.of("alpha", draft),
            machine.alpha_spread,
            machine.alpha_trend,
            machine.alpha_decay,
            machine.of("miss", draft),
            machine.match_tokens,
        ),
        gamma,
        output_tokens,
    )
    begins, proposed = begins * goes_on, goes_on @ lengths
    context = prompt_tokens + float(begins @ plain) / float(begins.sum())
    widest = np.cumsum(proposed / proposed.sum()) ** rows  # P(no row of the iteration proposes more than i)
    share = np.diff(widest, prepend=0.0)
    mean = rows * (1 + float(proposed @ np.arange(gamma + 1)) / float(proposed.sum()))
    tau = sum(
        float(part)
        * _tau_ms(machine, candidate, 1 + steps, rows, context, mean if machine.packed and rows > 1 else None)
        for steps, part in enumerate(share)
        if part
    )
    return Truth(emitted_per_verification=written / float(begins.sum()), tau0_ms=tau0, tau_spec_ms=tau)


@dataclass(frozen=True)
class _Acceptance:
    """What decides where blocks begin, and how long they are."""

    alpha: float
    spread: float
    trend: float
    decay: float
    miss: float
    match_tokens: int


@lru_cache(maxsize=4096)
def _blocks(how: _Acceptance, gamma: int, output_tokens: int) -> tuple[Array, Array]:
    """Expected blocks that begin at places 1 … N − 1 of an output of N tokens, and those with 0 … γ proposals.

    Means over prompts: [N − 1], [N − 1, γ + 1]. Place 0 is prefill's token. A block that begins at s and has a
    proposals accepted is followed by one at s + a + 1; no place is tested twice, so that the chances multiply.
    ``begins[s, r]`` begin where a match goes on for r more places, at r = 0 where the next is asked whether it misses.
    """
    miss, match = how.miss, how.match_tokens if how.miss else 1
    offsets = how.spread * (2 * (np.arange(_PROMPTS) + 0.5) / _PROMPTS - 1)
    stands = np.stack([chances(how.alpha + offset, how.trend, output_tokens) for offset in offsets], axis=1)
    begins = np.zeros((output_tokens + gamma + 2, match, _PROMPTS))
    proposed = np.zeros((output_tokens, gamma + 1))
    begins[1, 0] = 1.0
    for start in range(1, output_tokens):
        most = min(gamma, output_tokens - 1 - start)
        for left in range(match):
            run = begins[start, left]
            asked = match
            if left == 0:
                begins[start + 1, 0] += run * miss
                proposed[start, 0] += run.mean() * miss
                run = run * (1 - miss)
            else:
                asked = left
            open_ended = run.mean()  # of the blocks that still propose
            for step in range(most):
                if asked == 0:
                    proposed[start, step] += open_ended * miss
                    open_ended *= 1 - miss
                    begins[start + step + 1, 0] += run * miss
                    run, asked = run * (1 - miss), match
                asked -= 1
                chance = stands[start + step] * how.decay**step
                begins[start + step + 1, asked] += run * (1 - chance)
                run = run * chance
            proposed[start, most] += open_ended
            if asked == 0:  # the target's own token after them stands at a place that is asked
                begins[start + most + 1, 0] += run * miss
                begins[start + most + 1, match - 1] += run * (1 - miss)
            else:
                begins[start + most + 1, asked - 1] += run
    return np.asarray(begins[1:output_tokens].sum(axis=1).mean(axis=1)), proposed[1:]


def _tau_ms(
    machine: Machine, candidate: Candidate, width: int, rows: int, context: float, positions: float | None = None
) -> float:
    """An iteration of ``rows`` rows whose widest verifies ``width`` positions, all together ``positions`` if packed."""
    draft = candidate.draft
    drafting = machine.drafting_ms(draft, width - 1, rows=rows, context=context) if draft and width > 1 else 0.0
    return drafting + machine.forward_ms(positions or rows * width, rows=rows, context=context) + machine.overhead_ms
