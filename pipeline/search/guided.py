"""Measure what the forecast says is best, until nothing unmeasured can be expected to beat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, log

import numpy as np

from pipeline.records.forecast import Forecast
from pipeline.records.target import Candidate, has_extra_weights
from pipeline.search.forecast import MODEL_ERROR
from pipeline.search.space import CandidateSpace
from pipeline.search.strategies import NOTHING_BROKEN, Excesses, Tpe

LARGE = 30
"""Above so many candidates TPE has a say too."""
APART = 2.0
"""Drafts whose best forecasts lie within so many of their errors are measured side by side."""
CORRECTED = MODEL_ERROR["replay"]
"""The error of a forecast that is corrected by two measurements of its draft."""
IMPROVED = log(1.01)
"""A round of candidates without a forecast that gains less is the last."""


class Guided:
    """``forecasts`` of the candidates that have one; those without are left to TPE.

    First round: the best forecast, and the best of every other draft that is near it. Other γ of a draft are left out:
    replay ranks them by the same text and the same times, so that most of a forecast's error is common to them, and
    those that it puts close together are. A probe promises the more too much the longer the block, for a head's guesses
    worsen down it: so a probed draft is measured at half its best γ too, and what both were off by corrects the rest.
    Later rounds: what should beat the best measured by more than the forecast's own error, a draft's forecasts
    corrected by what its measured candidates turned out to be. What broke a limit is not the best measured, but
    corrects its draft's forecasts all the same; while everything measured broke one, the most promising of what should
    gain at all is next. Where the space is large, TPE then proposes once, from measurements and forecasts together.
    """

    def __init__(self, space: CandidateSpace, seed: int, forecasts: Sequence[Forecast]) -> None:
        self._space = space
        self._forecasts = {forecast.candidate: forecast for forecast in forecasts}
        self._tpe = Tpe(space, seed)
        self._tpe_had_its_say = len(space.candidates) <= LARGE
        self._best_before: float | None = None
        self._excesses = NOTHING_BROKEN

    def propose(
        self,
        open_candidates: Sequence[Candidate],
        scores: Mapping[Candidate, float],
        count: int,
        excesses: Excesses = NOTHING_BROKEN,
    ) -> tuple[Candidate, ...]:
        self._excesses = excesses
        forecast = [c for c in open_candidates if c in self._forecasts]
        measured = {c: score for c, score in scores.items() if c in self._forecasts}
        chosen = self._later(forecast, measured) if measured else self._first(forecast)
        if not chosen and measured and not self._tpe_had_its_say:
            self._tpe_had_its_say = True
            chosen = self._by_tpe(forecast, measured, count)
        if not chosen:
            return self._unforecast([c for c in open_candidates if c not in self._forecasts], scores, count)
        return tuple(chosen[:count])

    def _best(self, measured: Mapping[Candidate, float]) -> float | None:
        """log S of the best measured that broke no limit; None if there is none."""
        kept = [s for c, s in measured.items() if all(by <= 0 for by in self._excesses.get(c, {}).values())]
        return log(max(kept)) if kept else None

    def _first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The best of each draft, ranked, but for drafts that are surely behind."""
        if not candidates:
            return []
        ranked = sorted(candidates, key=self._rank)
        best = self._forecasts[ranked[0]]
        behind = {c: log(best.speedup / self._forecasts[c].speedup) for c in ranked}
        leaders = {draft: next(c for c in ranked if c.draft == draft) for draft in {c.draft for c in ranked}}
        near = [c for c in ranked if c in leaders.values() and behind[c] <= APART * self._error(c, ranked[0])]
        return near + [half for c in near if (half := self._half(c, ranked)) is not None]

    def _half(self, best: Candidate, candidates: Sequence[Candidate]) -> Candidate | None:
        """The candidate of a probed draft with about half the γ of its best one."""
        if self._forecasts[best].method != "probe":
            return None
        shorter = [c for c in candidates if c.draft == best.draft and c.gamma < best.gamma]
        return min(shorter, key=lambda c: abs(2 * c.gamma - best.gamma), default=None)

    def _later(self, candidates: Sequence[Candidate], measured: Mapping[Candidate, float]) -> list[Candidate]:
        """What should beat the best measured by more than its forecast's error, the most promising first.

        Nothing but plain decoding is to be beaten while there is no best.
        """
        best = self._best(measured)
        expected = {c: self._expected(c, measured) for c in candidates}
        better = [
            c
            for c in candidates
            if (expected[c] > 0 if best is None else expected[c] - best > self._left_error(c, measured))
        ]
        return sorted(better, key=lambda c: (-expected[c], self._rank(c)))

    def _by_tpe(
        self, candidates: Sequence[Candidate], measured: Mapping[Candidate, float], count: int
    ) -> list[Candidate]:
        """TPE's proposals from measurements and forecasts together, but for those that are far behind."""
        known = {c: self._forecasts[c].speedup for c in candidates} | dict(measured)
        best = self._best(measured) or 0.0
        proposed = self._tpe.propose(candidates, known, count, self._excesses) if candidates else ()
        return [c for c in proposed if best - self._expected(c, measured) <= self._forecasts[c].error]

    def _unforecast(
        self, candidates: Sequence[Candidate], scores: Mapping[Candidate, float], count: int
    ) -> tuple[Candidate, ...]:
        """TPE's proposals, until a round of them no longer improves on the best."""
        tried = [c for c in scores if c not in self._forecasts]
        best = self._best(scores)
        before, self._best_before = self._best_before, best
        stalled = best is not None and before is not None and 0 <= best - before < IMPROVED  # one may break a limit
        if not candidates or (len(tried) > count and stalled):
            return ()
        return self._tpe.propose(candidates, scores, count, self._excesses)

    def _expected(self, candidate: Candidate, measured: Mapping[Candidate, float]) -> float:
        """log S as forecast, moved by what this draft's measured candidates were off by.

        By half of it where one was measured, which may be noise; between two or more linearly in γ.
        """
        off = sorted(
            (c.gamma, log(score / self._forecasts[c].speedup))
            for c, score in measured.items()
            if c.draft == candidate.draft
        )
        moved = 0.0
        if len(off) == 1:
            moved = off[0][1] / 2
        elif off:
            moved = float(np.interp(candidate.gamma, [gamma for gamma, _ in off], [by for _, by in off]))
        return log(self._forecasts[candidate].speedup) + moved

    def _left_error(self, candidate: Candidate, measured: Mapping[Candidate, float]) -> float:
        """What a forecast may still be off by: that of a replay once two of its draft are measured."""
        known = sum(c.draft == candidate.draft for c in measured)
        own = self._forecasts[candidate].error
        return own if known < 2 else min(own, CORRECTED)

    def _error(self, a: Candidate, b: Candidate) -> float:
        return hypot(self._forecasts[a].error, self._forecasts[b].error)

    def _rank(self, candidate: Candidate) -> tuple[float, bool, int, str]:
        """The best forecast first; of equals what costs a server least."""
        draft = candidate.draft
        heavy = draft is not None and has_extra_weights(draft)
        return -self._forecasts[candidate].speedup, heavy, candidate.gamma, candidate.label
