"""The course of one cell: a forecast, rounds of search, then looks of a confirmation, then a decision.

It keeps no truth of its own: made anew from what the store holds, it goes on where a killed driver stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pipeline.confirming import BaselineShelf, Confirming
from pipeline.measurement.constraints import MOST_UNFIT, of_plain_decoding, unfit
from pipeline.measurement.identity import measurement_id
from pipeline.measurement.protocol import LOOKS, Allotment, Span, allot
from pipeline.measurement.round import as_failure
from pipeline.policy.decide import choose, decide, fair_speedup, far_below, off_by_forecast
from pipeline.records.cell import Cell
from pipeline.records.decision import Decision
from pipeline.records.failure import PERMANENT, Failure
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Baseline, Measurement, RoundKind
from pipeline.records.settings import NO_LIMITS, SweepSettings, TargetChoice
from pipeline.records.target import Candidate
from pipeline.records.task import RoundResult, RoundTask
from pipeline.search.study import CellStudy

OFF = Candidate(draft=None, gamma=0)
SEARCH_LEVEL = 0.95
"""Search intervals only rank."""


class Shelf(BaselineShelf, Protocol):
    """The part of the store that a course reads, and where it leaves what cannot be measured."""

    def measurements(self) -> tuple[Measurement, ...]: ...

    def forecasts(self) -> tuple[CellForecast, ...]: ...

    def failures(self) -> dict[str, Failure]: ...

    def save_failure(self, failure_id: str, failure: Failure) -> None: ...


class Course:
    """What to measure next in one cell, until it is decided.

    ``available`` is how many prompts the cell's workload has. Saving what comes back is the sweep's duty, before
    ``take``.
    """

    def __init__(
        self,
        cell: Cell,
        choice: TargetChoice,
        settings: SweepSettings,
        sweep: str,
        study: CellStudy,
        store: Shelf,
        available: int,
    ) -> None:
        self.cell = cell
        self.decision: Decision | None = None
        self._settings = settings
        self._sweep = sweep
        self._drafts = tuple(item.draft for item in choice.drafts)
        self._study = study
        self._store = store
        self._allotment: Allotment = allot(available, cell.concurrency, settings.protocol, cell.workload.name)
        self._searched: dict[Candidate, Measurement] = {}
        self._confirming = Confirming(cell.key, store, settings.policy.margin, settings.constraints)
        self._failures: list[Failure] = []
        self._tries: Counter[Candidate] = Counter()
        self._culprits: set[Candidate] = set()
        self._alone = False
        self._a_a_due = settings.protocol.a_a
        self.forecast: CellForecast | None = None
        self._forecast_tries = 0
        self._search_over = False
        self._only: Candidate | None = None
        self.spent_s = 0.0
        self._resume()

    @property
    def confirmations(self) -> tuple[Measurement, ...]:
        """What the looks so far say of each candidate that was looked at."""
        return self._confirming.confirmations

    def next_task(self) -> RoundTask | None:
        """The next call for a worker; None once the cell is decided."""
        if self.decision is None:
            self._settle()
            if self._over_budget():
                self._decide(out_of_budget=True)
            elif len(self._confirming.unfit) >= MOST_UNFIT:
                self._decide()
        if self.decision is not None:
            return None
        if self._study.awaits_forecast:
            return self._task("forecast", self._study.space.candidates, self._allotment.search, replicate=0)
        if self.forecast is not None and not (self._searched or self._study.unforecast):
            hopeless = far_below(self.forecast)
            if hopeless is not None and not self._a_a_due:
                self.decision = off_by_forecast(self.cell.key, self.forecast, hopeless)
                return None
            if hopeless is not None:
                return self._task("aa", (OFF,), self._allotment.search, replicate=0)
        if not self._search_over and (asked := self._study.ask()):
            if not self._needs_no_ranking(asked):
                return self._search(asked)
            self._only = asked[0]
        self._search_over = True
        if self._a_a_due:
            return self._task("aa", (OFF,), self._allotment.search, replicate=0)
        winner = self._winner()
        if winner is not None and self._confirming.candidate not in (None, winner):
            self._confirming.begin_again()
        if winner is None or self._confirming.settles(winner):
            unranked = winner is not None and winner == self._only and not self._searched
            if unranked and (asked := self._study.ask()):  # it fell so short that others are expected to do better
                self._search_over = False
                return self._search(asked)
            self._decide()
            return None
        span = self._allotment.looks[self._confirming.looks]
        return self._task("confirmation_look", (winner,), span, replicate=self._confirming.replicate)

    def take(self, task: RoundTask, result: RoundResult) -> None:
        """Enter what a round gave; its records are in the store already."""
        for measurement in result.measurements:
            self._enter(measurement)
        for failure in result.failures:
            if task.kind == "forecast" and failure.kind not in PERMANENT:
                if result.forecast is None:
                    self.lost(task, failure)
            elif failure.candidate is not None:
                self._candidate_failed(failure)
            elif failure.kind in PERMANENT:
                self._cell_failed(failure)
            else:
                self.lost(task, failure)
        if result.forecast is not None:
            self._expect(result.forecast)

    def lost(self, task: RoundTask, failure: Failure) -> None:
        """A call came to nothing. Candidates are tried alone from now on, so that the culprit is known by name.

        If no baseline was ever measured and a second candidate fails alone too, the target is to blame.
        """
        if task.kind == "forecast":  # the search can do without
            self._forecast_tries += 1
            if self._forecast_tries > self._settings.cluster.retries:
                self._study.expect(())
            return
        self._alone = True
        if len(task.candidates) > 1:
            return
        self._culprits.add(task.candidates[0])
        if not self._baselines() and len(self._culprits) > 1:
            self._cell_failed(failure)
        else:
            self._candidate_failed(replace(failure, candidate=task.candidates[0]))

    def give_up(self, error: Exception) -> None:
        """End the cell for an error of our own in it: the others go on."""
        self._cell_failed(as_failure(self.cell.key, None, error))

    def stop_for_budget(self) -> None:
        """Decide on what there is: the sweep's worker hours are used up."""
        if self.decision is None:
            self._decide(out_of_budget=True)

    def _search(self, asked: Sequence[Candidate]) -> RoundTask:
        """A round of ``asked``; a candidate that was confirmed without a search is ranked with them."""
        if self._only is not None and self._only not in self._searched:
            asked = (self._only, *asked)
        return self._task("search", asked[:1] if self._alone else asked, self._allotment.search, replicate=0)

    def _needs_no_ranking(self, asked: Sequence[Candidate]) -> bool:
        """Whether one forecast is so far ahead that nothing is left to rank: it goes to its confirmation at once."""
        first = not self._searched and self._only is None and not self._confirming.any_complete
        alone = len(asked) == 1 < self._settings.search.candidates_per_round
        return first and alone and self.forecast is not None and not self._study.unforecast

    def _winner(self) -> Candidate | None:
        """The best candidate that keeps to the limits as far as is known: a confirmation knows better than a search.

        Where nothing else is left, one that broke a limit in the search is confirmed all the same: a search only ranks.
        """
        searched = tuple(self._searched.values())
        seen_to_break = unfit(searched, self._settings.constraints) - self._confirming.fit
        surely = self._confirming.unfit
        best = choose(searched, seen_to_break | surely) or choose(searched, surely)
        return self._only if best is None else best.candidate

    def _settle(self) -> None:
        """Leave a confirmation whose candidate cannot be used: it failed, or is confirmed to break a limit.

        The search then goes on without it.
        """
        if self._confirming.candidate in self._confirming.failed:
            self._confirming.begin_again()
        elif self._confirming.current is not None and self._confirming.broke_a_limit:
            broke = self._confirming.current
            searched = self._searched.get(broke.candidate)
            score = None if searched is None else fair_speedup(searched, tuple(self._searched.values()))
            self._study.tell(broke, score)
            self._confirming.begin_again()
            self._search_over, self._only = False, None

    def _resume(self) -> None:
        key = self.cell.key
        mine = [m for m in self._store.measurements() if m.cell == key]
        for failure in self._store.failures().values():
            if failure.cell == key and failure.candidate is not None:
                self._failures.append(failure)
                self._study.fail(failure.candidate, failure.message)
                self._confirming.forget(failure.candidate)
        for forecast in self._store.forecasts():
            if forecast.cell == key and self._study.awaits_forecast:
                self._expect(forecast)
        for measurement in sorted(mine, key=lambda m: (m.kind != "search", m.metrics.raced_out, m.kind, m.replicate)):
            self._enter(measurement)
        self._settle()
        alone = self._confirming.last
        if not self._searched and alone is not None and alone not in self._confirming.failed | self._confirming.unfit:
            self._search_over, self._only = True, alone  # confirmed without a search
        self.next_task()  # decides, if everything needed is in the store

    def _expect(self, forecast: CellForecast) -> None:
        """Begin the search with ``forecast``."""
        self._study.expect(forecast.forecasts)
        self.forecast = forecast

    def _enter(self, measurement: Measurement) -> None:
        candidate = measurement.candidate
        if measurement.kind == "search" and candidate not in self._confirming.failed:
            self._searched[candidate] = measurement
            self._study.tell(measurement, fair_speedup(measurement, tuple(self._searched.values())))
        elif measurement.kind == "aa":
            self._a_a_due = False
        elif measurement.kind == "confirmation_look":
            if measurement.replicate // LOOKS > self._confirming.attempt:
                self._settle()
            pooled = self._confirming.enter(measurement)
            if pooled is not None and not self._searched and candidate not in self._confirming.failed:
                self._study.tell(pooled)  # it is all that the study knows of this candidate

    def _baselines(self) -> list[Baseline]:
        return [baseline for baseline in self._store.baselines() if baseline.cell == self.cell.key]

    def _candidate_failed(self, failure: Failure) -> None:
        candidate = failure.candidate
        assert candidate is not None
        self._tries[candidate] += 1
        if failure.kind not in PERMANENT and self._tries[candidate] <= self._settings.cluster.retries:
            return
        self._failures.append(failure)
        if candidate == OFF:
            self._a_a_due = False
            return
        if failure.kind in ("out_of_memory", "gate"):  # another try on another day would meet them again
            self._store.save_failure(measurement_id(self._sweep, self.cell.key, candidate, "search", 0), failure)
        self._study.fail(candidate, failure.message)
        self._search_over = False
        self._searched.pop(candidate, None)
        self._only = None if self._only == candidate else self._only
        self._confirming.forget(candidate)

    def _cell_failed(self, failure: Failure) -> None:
        if self.decision is None:
            self._failures.append(failure)
            self._decide()

    def _over_budget(self) -> bool:
        limit = self._settings.budget.cell_s
        return limit is not None and self.spent_s >= limit

    def _decide(self, *, out_of_budget: bool = False) -> None:
        self.decision = decide(
            self.cell.key,
            tuple(self._searched.values()),
            self._confirming.best,
            tuple(self._failures),
            self._settings.policy.margin,
            out_of_budget,
            self._settings.constraints,
            self._confirming.confirmations,
            self._plain(),
        )

    def _plain(self) -> Mapping[str, float | None]:
        """What plain decoding, beside which the best confirmation was made, takes of what a limit bounds."""
        best = self._confirming.best
        if best is None or self._settings.constraints == NO_LIMITS:
            return {}
        return of_plain_decoding(b for b in self._baselines() if b.id in best.baseline_ids)

    def _task(self, kind: RoundKind, candidates: Sequence[Candidate], span: Span, *, replicate: int) -> RoundTask:
        known = () if self.forecast is None else self.forecast.forecasts
        return RoundTask(
            sweep=self._sweep,
            cell=self.cell,
            drafts=self._drafts,
            max_gamma=self._study.space.max_gamma,
            candidates=tuple(candidates),
            kind=kind,
            replicate=replicate,
            first_prompt=span.first,
            prompt_count=span.count,
            distinct_prompts=span.distinct,
            prompt_offset=span.offset,
            level=self._confirming.level if kind == "confirmation_look" else SEARCH_LEVEL,
            protocol=self._settings.protocol,
            forecasts=tuple(f for f in known if f.candidate in candidates),
            baseline_replicate=1 + max((b.replicate for b in self._baselines()), default=-1),
            racing=self._settings.constraints == NO_LIMITS,
        )
