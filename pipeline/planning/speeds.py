"""What a candidate would gain on a device, from a roofline and an assumed acceptance."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engines import roofline
from pipeline.engines.devices import Device
from pipeline.records.plan import PlannedCandidate
from pipeline.records.shape import ModelShape
from pipeline.records.target import Candidate, DType
from pipeline.speedup import actual_speedup, expected_tokens

ALPHAS = (0.3, 0.5, 0.7, 0.9)
"""At which S is shown beside the assumed α."""
_BISECTIONS = 40


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where candidates are weighed: a target on a device, ``rows`` at once, ``context`` tokens each (a mean).

    ``overhead`` is the loop's own time in plain forwards.
    """

    target: ModelShape
    device: Device
    dtype: DType
    rows: int
    context: float
    overhead: float

    @property
    def tau0_ms(self) -> float:
        return self._forward_ms(1) * (1 + self.overhead)

    def weigh(self, candidate: Candidate, own: ModelShape | None, alpha: float) -> PlannedCandidate:
        """``candidate`` at the assumed ``alpha``, at others, and where it breaks even; ``own`` is its shape."""
        draft, gamma = candidate.draft, candidate.gamma
        assert draft is not None
        drafting = roofline.drafting_ms(
            draft, gamma, self.target, own, self.device, self.dtype, rows=self.rows, context=self.context
        )
        verifying = self._forward_ms(1 + gamma)
        tau = drafting + verifying + self.overhead * self._forward_ms(1)

        def speedup(chance: float) -> float:
            return float(actual_speedup(expected_tokens(chance, gamma), self.tau0_ms, tau))

        return PlannedCandidate(
            candidate=candidate,
            acceptance_rate=alpha,
            speedup=speedup(alpha),
            break_even=break_even(gamma, tau / self.tau0_ms),
            by_alpha={chance: speedup(chance) for chance in ALPHAS},
            emitted_per_verification=float(expected_tokens(alpha, gamma)),
            tau_draft_ms=drafting,
            tau_verify_ms=verifying,
            tau_spec_ms=tau,
        )

    def _forward_ms(self, width: int) -> float:
        return roofline.forward_ms(
            self.target, self.device, self.dtype, rows=self.rows, width=width, context=self.context
        )


def break_even(gamma: int, steps: float) -> float | None:
    """The α at which γ proposals emit as many tokens as their iteration takes plain steps; None where no α does."""
    if expected_tokens(1.0, gamma) < steps:
        return None
    low, high = 0.0, 1.0
    if steps <= 1.0:
        return low
    for _ in range(_BISECTIONS):  # E rises with α
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < steps else (low, middle)
    return high
