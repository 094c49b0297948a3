"""The attempts at confirming a cell's winner: which looks belong together, how sure each must be, what they say."""

from __future__ import annotations

from typing import Protocol

from pipeline.measurement.constraints import broken
from pipeline.measurement.pool import pool
from pipeline.measurement.protocol import LOOKS
from pipeline.policy.decide import verdict
from pipeline.records.cell import CellKey
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.target import Candidate

FIRST_SPENDS, LATER_SPEND = 0.04, 0.01
SURE_AFTER = 40


def look_level(earlier: int) -> float:
    """The confidence of a look at a candidate, after looks at ``earlier`` candidates (or of as many broken attempts).

    Any look may turn a cell on, so that all share one allowance (Bonferroni): the first attempt errs in at most 4 % of
    cells, those after it in ½ %, ¼ % and so on, together in less than 5 %. A level this near to 1 turns nothing on, so
    that it may as well stay there after ``SURE_AFTER`` of them, where a float can still tell it from 1. What it leaves
    out: after a candidate that was confirmed without a search, how it did moves its draft's forecasts, and so has a say
    in who is searched next and confirmed on the same prompts.
    """
    spent = LATER_SPEND / 2 ** min(earlier, SURE_AFTER) if earlier else FIRST_SPENDS
    return 1 - spent / LOOKS


CONFIRMATION_LEVEL = look_level(0)
"""Of the only confirmation that most cells have."""


class BaselineShelf(Protocol):
    """The part of the store that looks are pooled from."""

    def baselines(self) -> tuple[Baseline, ...]: ...

    def has(self, record_id: str) -> bool: ...


class Confirming:
    """One cell's confirmations, attempt by attempt: looks at one candidate under one set of conditions.

    ``margin`` and ``constraints`` judge them. ``attempt`` counts those before it of which a look was taken: each has
    spent its share of the error, whatever became of it. The looks themselves carry the number, so that the level
    follows from the store alone. ``current`` is what the looks of the attempt under way say together, ``last`` whom
    the latest look of all was at. A candidate that failed (``forget``) has no confirmation, however complete it was.
    """

    def __init__(self, cell: CellKey, store: BaselineShelf, margin: float, constraints: Constraints) -> None:
        self.current: Measurement | None = None
        self.attempt = 0
        self._cell = cell
        self._store = store
        self._margin = margin
        self._constraints = constraints
        self.last: Candidate | None = None
        self._looks: list[Measurement] = []
        self._complete: dict[Candidate, Measurement] = {}
        self.failed: set[Candidate] = set()

    @property
    def candidate(self) -> Candidate | None:
        """The one that the attempt under way looks at; None before its first look."""
        return self._looks[0].candidate if self._looks else None

    @property
    def looks(self) -> int:
        """How many the attempt under way has."""
        return len(self._looks)

    @property
    def replicate(self) -> int:
        """Of the next look."""
        return self.attempt * LOOKS + len(self._looks)

    @property
    def level(self) -> float:
        return look_level(self.attempt)

    @property
    def confirmations(self) -> tuple[Measurement, ...]:
        """The latest confirmation of each candidate that an earlier attempt completed, and the one under way."""
        current = {} if self.current is None else {self.current.candidate: self.current}
        return tuple(m for m in (self._complete | current).values() if m.candidate not in self.failed)

    @property
    def any_complete(self) -> bool:
        """Whether an earlier attempt was."""
        return bool(self._complete)

    @property
    def unfit(self) -> frozenset[Candidate]:
        """Candidates of earlier attempts that were complete, but broke a limit."""
        return frozenset(m.candidate for m in self._complete.values() if self._broke(m))

    @property
    def fit(self) -> frozenset[Candidate]:
        """Candidates whose confirmation is complete and within the limits."""
        complete = [*self._complete.values(), *([self.current] if self.current and self.is_complete else [])]
        return frozenset(m.candidate for m in complete if not broken(m.metrics, self._constraints))

    @property
    def best(self) -> Measurement | None:
        """One within the limits before others, then one that is on, then the fastest."""

        def rank(m: Measurement) -> tuple[bool, bool, float]:
            return not broken(m.metrics, self._constraints), verdict(m, self._margin) == "on", m.metrics.speedup

        return max(self.confirmations, key=rank, default=None)

    def enter(self, look: Measurement) -> Measurement | None:
        """Add ``look``; what the attempt's looks say now, None if it belongs to none with them."""
        attempt, place = divmod(look.replicate, LOOKS)
        if attempt < self.attempt:
            return None
        if attempt > self.attempt:
            self.begin_again(attempt)
        if place != len(self._looks) or not self._may_pool(look):
            # Another device, version or winner, or a look lost: looks never mix, so it begins anew.
            self.begin_again()
            return None
        self._looks.append(look)
        self.last = look.candidate
        baselines = [baseline for baseline in self._store.baselines() if baseline.cell == self._cell]
        self.current = pool(self._looks, baselines, self.level)
        return self.current

    def begin_again(self, attempt: int | None = None) -> None:
        """After a look, start another attempt. One that was complete still says what it said."""
        if self.current is not None and self.is_complete and self.current.candidate not in self.failed:
            self._complete[self.current.candidate] = self.current
        self.attempt = self.attempt + 1 if attempt is None else attempt
        self._looks, self.current = [], None

    def forget(self, candidate: Candidate) -> None:
        """``candidate`` failed, then or later: nothing that was said of it counts any longer."""
        self.failed.add(candidate)
        self._complete.pop(candidate, None)
        if self.candidate == candidate:
            self.begin_again()

    def settles(self, candidate: Candidate) -> bool:
        """Whether no more looks at ``candidate`` are to come."""
        return candidate in self._complete or (self.candidate == candidate and self.is_complete)

    @property
    def is_complete(self) -> bool:
        """Whether the looks so far decide, or there are no more to come.

        Any look may turn the cell on, but where limits are set only the last: a third of the requests has a smaller p99
        than all of them. None is taken that could hardly turn it on: after two that found no gain that would pay, or
        after one that found none at all where the forecast, made on other prompts, promised none either. That makes no
        cell falsely on. Nor does it rest on few prompts: where some gain much, a handful may hold none of
        them, and a jackknife sees no spread in what it did not meet.
        """
        if self.current is None:
            return False
        metrics = self.current.metrics
        if len(self._looks) == LOOKS:
            return True
        if verdict(self.current, self._margin) == "on":
            return self._constraints == NO_LIMITS
        if len(self._looks) == LOOKS - 1:
            return metrics.speedup <= 1 + self._margin
        promised = metrics.speedup_forecast
        return metrics.speedup <= 1 and promised is not None and promised <= 1

    @property
    def broke_a_limit(self) -> bool:
        """Whether the attempt under way is complete, and its candidate cannot be used for a limit that it broke.

        Limits are judged only then. A candidate that is surely not worth it needs no other reason, and the slower ones
        after it are worth less.
        """
        return self.current is not None and self.is_complete and self._broke(self.current)

    def _broke(self, confirmation: Measurement) -> bool:
        surely_slow = verdict(confirmation, self._margin) == "off"
        return not surely_slow and bool(broken(confirmation.metrics, self._constraints))

    def _may_pool(self, look: Measurement) -> bool:
        """Whether ``look`` has its baselines still, and was made of the same candidate in the same conditions."""
        if not all(self._store.has(baseline) for baseline in look.baseline_ids):
            return False
        first = self._looks[0] if self._looks else look
        same_draft = (first.candidate, first.provenance.draft_revision) == (
            look.candidate,
            look.provenance.draft_revision,
        )
        return same_draft and first.provenance.same_conditions(look.provenance)
