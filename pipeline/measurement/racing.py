"""Which candidates of a round need not be measured further: what is surely slower than the best."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from pipeline.measurement.statistics import DECISIVE_UNITS, Sample, paired
from pipeline.measurement.student import t_quantile

Arm = TypeVar("Arm", bound=Hashable)

SURE = 0.99


def losers(samples: Mapping[Arm, Sample], concurrency: int) -> frozenset[Arm]:
    """The arms whose S_c/S_best has an upper limit below 1, at 99 % one-sided, over 8 or more common prompts.

    The best is the one that no other is ahead of. Pairing over prompts takes out what the prompts have in common, so
    that a loser is known long before its own speedup is.
    """
    leader: Arm | None = None
    for arm, sample in samples.items():
        ahead = None if leader is None else paired(sample, samples[leader], concurrency)
        if leader is None or (ahead is not None and ahead.log > 0):
            leader = arm
    lost = set()
    for arm, sample in samples.items():
        ratio = None if leader is None or arm == leader else paired(sample, samples[leader], concurrency)
        if ratio is None or ratio.common < DECISIVE_UNITS or ratio.log >= 0:
            continue
        if ratio.log + t_quantile(SURE, ratio.df) * ratio.error < 0:
            lost.add(arm)
    return frozenset(lost)
