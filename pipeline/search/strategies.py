"""Which open candidates to measure next: the references that a guided search is judged against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import optuna

from pipeline.records.target import Candidate
from pipeline.search.space import CandidateSpace

Excesses = Mapping[Candidate, Mapping[str, float]]
"""By candidate and limit, how far what was measured lies beyond the limit: at most 0 where it is kept."""
NOTHING_BROKEN: Excesses = MappingProxyType({})


class Strategy(Protocol):
    """Proposes candidates from what was measured."""

    def propose(
        self,
        open_candidates: Sequence[Candidate],
        scores: Mapping[Candidate, float],
        count: int,
        excesses: Excesses = NOTHING_BROKEN,
    ) -> tuple[Candidate, ...]:
        """At most ``count`` of ``open_candidates``; ``scores`` are the measured speedups so far."""


class Grid:
    """Every candidate, in order. Optuna's own grid sampler raises from ``tell`` near exhaustion, so we enumerate."""

    def propose(
        self,
        open_candidates: Sequence[Candidate],
        scores: Mapping[Candidate, float],
        count: int,
        excesses: Excesses = NOTHING_BROKEN,
    ) -> tuple[Candidate, ...]:
        return tuple(open_candidates[:count])


class Tpe:
    """Tree-structured Parzen estimator over draft and γ jointly, a batch at a time.

    What breaks a limit counts as worse than all that breaks none. TPE may suggest a pair that is not a candidate or was
    measured already; the nearest open one is taken in its place. The modelling study lives in memory and is made anew
    from the scores each time, so that the stored study holds nothing but candidates that were really measured.
    """

    def __init__(self, space: CandidateSpace, seed: int) -> None:
        self._space = space
        self._seed = seed

    def propose(
        self,
        open_candidates: Sequence[Candidate],
        scores: Mapping[Candidate, float],
        count: int,
        excesses: Excesses = NOTHING_BROKEN,
    ) -> tuple[Candidate, ...]:
        sampler = optuna.samplers.TPESampler(
            seed=self._seed + len(scores), n_startup_trials=5, multivariate=True, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for candidate, score in scores.items():
            study.add_trial(
                optuna.trial.create_trial(
                    params=self._space.parameters(candidate),
                    distributions=self._space.distributions,
                    value=score,
                    constraints=dict(excesses.get(candidate, {})),
                )
            )
        left = list(open_candidates)
        chosen: list[Candidate] = []
        while left and len(chosen) < count:
            trial = study.ask(self._space.distributions)
            candidate = self._space.nearest(trial.params, left)
            if candidate != self._space.exact(trial.params):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(self._space.parameters(candidate))
                study.ask(self._space.distributions)  # stays RUNNING: the liar keeps the batch apart
            left.remove(candidate)
            chosen.append(candidate)
        return tuple(chosen)
