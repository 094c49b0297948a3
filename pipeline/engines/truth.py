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
    independent (they begin together, and fillers never end early), and times are taken at the mean context. Raises
    ValueError for outputs of one token, which no iteration writes, and for texts that all end at their first.
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
    miss, kept = machine.of("miss", draft), (machine.alpha_spread, machine.alpha_trend, machine.alpha_decay)
    begins = goes_on * _block_starts(machine.of("alpha", draft), miss, gamma, output_tokens, kept)
    context = prompt_tokens + float(begins @ plain) / float(begins.sum())
    proposed = np.zeros(gamma + 1)
    np.add.at(proposed, np.minimum(gamma, output_tokens - 1 - plain), begins * (1 - miss))
    proposed[0] += float(begins.sum()) * miss
    widest = np.cumsum(proposed / proposed.sum()) ** rows  # P(no row of the iteration proposes more than i)
    share = np.diff(widest, prepend=0.0)
    tau = sum(
        float(part) * _tau_ms(machine, candidate, 1 + steps, rows, context) for steps, part in enumerate(share) if part
    )
    return Truth(emitted_per_verification=written / float(begins.sum()), tau0_ms=tau0, tau_spec_ms=tau)


@lru_cache(maxsize=4096)
def _block_starts(alpha: float, miss: float, gamma: int, output_tokens: int, kept: tuple[float, float, float]) -> Array:
    """Expected blocks that begin at places 1 … N − 1 of an output of N tokens, mean over prompts: [N − 1].

    Place 0 is prefill's token. A block that begins at s and has a proposals accepted is followed by one at s + a + 1;
    no place is tested twice, so that the chances multiply.
    """
    spread, trend, decay = kept
    offsets = spread * (2 * (np.arange(_PROMPTS) + 0.5) / _PROMPTS - 1)
    stands = np.stack([chances(alpha + offset, trend, output_tokens) for offset in offsets])  # [prompts, N]
    begins = np.zeros((_PROMPTS, output_tokens + gamma + 2))
    begins[:, 1] = 1.0
    for start in range(1, output_tokens):
        here = begins[:, start]
        begins[:, start + 1] += here * miss
        run = here * (1 - miss)  # proposes, and all so far were accepted
        for step in range(min(gamma, output_tokens - 1 - start)):
            chance = stands[:, start + step] * decay**step * (1 - miss if step else 1)
            begins[:, start + step + 1] += run * (1 - chance)
            run = run * chance
        begins[:, start + min(gamma, output_tokens - 1 - start) + 1] += run
    return np.asarray(begins[:, 1:output_tokens].mean(axis=0))


def _tau_ms(machine: Machine, candidate: Candidate, width: int, rows: int, context: float) -> float:
    """An iteration of ``rows`` rows whose widest verifies ``width`` positions."""
    draft = candidate.draft
    drafting = machine.drafting_ms(draft, width - 1, rows=rows, context=context) if draft and width > 1 else 0.0
    return drafting + machine.forward_ms(rows * width, rows=rows, context=context) + machine.overhead_ms
