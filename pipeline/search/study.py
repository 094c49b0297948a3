"""One cell's Optuna study: a view of what was measured, and the source of what to measure next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import optuna
from optuna.trial import TrialState

from pipeline.measurement.constraints import checks
from pipeline.records.failure import InputError
from pipeline.records.forecast import Forecast
from pipeline.records.measurement import Measurement
from pipeline.records.settings import NO_LIMITS, Constraints, DraftChoice, SearchSettings
from pipeline.records.target import Candidate
from pipeline.search.guided import Guided
from pipeline.search.space import CandidateSpace
from pipeline.search.strategies import Grid, Strategy, Tpe
from pipeline.tracking.lock import waiting_for


def open_storage(path: Path) -> optuna.storages.BaseStorage:
    """The SQLite storage at ``path``, its schema made by this process alone. Raises InputError if it cannot be used."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with waiting_for(path.with_suffix(".lock")):  # two drivers at once would both make the schema
            return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a usable Optuna database ({reason}); move it away or set output_dir") from None


class CellStudy:
    """Ask for a round of candidates, tell what came of them.

    ``name`` is unique to the sweep and the cell. The stored study is brought up to date from what is told, whatever
    state a crash left it in: trials left RUNNING are closed, candidates are known by (draft, γ), none is told twice. A
    trial carries how far it lies beyond each of the ``constraints`` that is set; a study stored under others is made
    anew, for finished trials cannot be judged again.
    """

    def __init__(
        self,
        name: str,
        choices: Sequence[DraftChoice],
        settings: SearchSettings,
        storage: optuna.storages.BaseStorage,
        *,
        constraints: Constraints = NO_LIMITS,
        fresh: bool = False,
    ) -> None:
        self.space = CandidateSpace(choices)
        self._settings = settings
        self._constraints = constraints
        self._scores: dict[Candidate, float] = {}
        self._excesses: dict[Candidate, dict[str, float]] = {}
        self._closed: set[Candidate] = set()
        self._searched: set[Candidate] = set()
        self._alone: set[Candidate] = set()
        self._strategy: Strategy = Grid() if settings.strategy == "grid" else Tpe(self.space, settings.seed)
        self._forecasts: dict[Candidate, Forecast] = {}
        self.awaits_forecast = settings.strategy == "guided"
        if fresh:
            with contextlib.suppress(KeyError):
                optuna.delete_study(study_name=name, storage=storage)
        self._study = self._open(name, storage)
        if self._study.direction != optuna.study.StudyDirection.MAXIMIZE:
            raise InputError(f"Optuna study {name} was stored to minimize; move its database away or rename the sweep")
        limits = {key: limit for key, limit in asdict(constraints).items() if limit is not None}
        if self._study.user_attrs.get("constraints", {}) != limits:
            if self._study.get_trials(deepcopy=False):
                optuna.delete_study(study_name=name, storage=storage)
                self._study = self._open(name, storage)
            self._study.set_user_attr("constraints", limits)
        self._reap()

    def expect(self, forecasts: Sequence[Forecast]) -> None:
        """Enter the cell's forecasts, none if they cannot be had: a guided search begins with them."""
        self.awaits_forecast = False
        self._forecasts = {forecast.candidate: forecast for forecast in forecasts}
        self._strategy = Guided(self.space, self._settings.seed, forecasts)

    @property
    def unforecast(self) -> tuple[Candidate, ...]:
        """Candidates that could be measured and have no forecast."""
        return tuple(c for c in self.space.candidates if c not in self._forecasts and c not in self._closed)

    def ask(self) -> tuple[Candidate, ...]:
        """The next round's candidates; empty when the search is over."""
        used = len(self._scores) + len(self._closed)
        count = min(self._settings.candidates_per_round, self._settings.max_candidates - used)
        if count <= 0:
            return ()
        ended = self._closed.union(self._scores)
        open_candidates = [c for c in self.space.candidates if c not in ended and not self._stays_behind(c)]
        return self._strategy.propose(open_candidates, self._scores, count, self._excesses)

    def tell(self, measurement: Measurement, score: float | None = None) -> None:
        """Enter a measured candidate; telling it again stores nothing anew.

        ``score`` is what it counts in the search, its speedup unless that is of other prompts than its rivals'.
        """
        candidate, metrics = measurement.candidate, measurement.metrics
        if measurement.kind != "search" and candidate not in self._searched and (metrics.speedup_low or 0.0) > 1:
            self._alone.add(candidate)
        else:
            self._alone.discard(candidate)
        if measurement.kind == "search":
            self._searched.add(candidate)
        self._scores[candidate] = metrics.speedup if score is None else score
        self._excesses[candidate] = {check.name: check.excess for check in checks(metrics, self._constraints)}
        if self._stored(candidate, "measurement"):
            return
        attributes: dict[str, object] = {
            "measurement": measurement.id,
            "speedup_low": metrics.speedup_low,
            "speedup_high": metrics.speedup_high,
            "acceptance_rate": metrics.acceptance_rate,
        }
        if forecast := self._forecasts.get(candidate):
            attributes["speedup_forecast"] = forecast.speedup
        with self._trial(candidate, attributes) as trial:
            for name, excess in self._excesses[candidate].items():
                trial.set_constraint(name, excess)
            self._study.tell(trial, self._scores[candidate])

    def fail(self, candidate: Candidate, reason: str) -> None:
        """Enter a candidate that cannot be measured, with the reason; it is not proposed again."""
        self._closed.add(candidate)
        self._scores.pop(candidate, None)
        self._alone.discard(candidate)
        if self._stored(candidate, "infeasible"):
            return
        with self._trial(candidate, {"infeasible": reason}) as trial:
            trial.set_constraint("infeasible", 1.0)
            self._study.tell(trial, state=TrialState.FAIL)

    def _stays_behind(self, candidate: Candidate) -> bool:
        """Whether replay puts ``candidate`` behind one of its draft that was confirmed without a search, and pays.

        What that one fell short by lies in its other prompts, or in times that the γ of a draft share: measured on the
        search's prompts they would rank as replay ranked them. Where it may not pay at all, or broke a limit, another γ
        is worth a search all the same.
        """
        forecast = self._forecasts.get(candidate)
        if forecast is None or forecast.method != "replay":
            return False
        rivals = [c for c in self._alone if c.draft == candidate.draft and c in self._forecasts]
        kept = [c for c in rivals if all(excess <= 0 for excess in self._excesses[c].values())]
        return any(forecast.speedup <= self._forecasts[c].speedup for c in kept)

    def _open(self, name: str, storage: optuna.storages.BaseStorage) -> optuna.Study:
        return optuna.create_study(
            study_name=name,
            storage=storage,
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=self._settings.seed),
        )

    @contextlib.contextmanager
    def _trial(self, candidate: Candidate, attributes: dict[str, object]) -> Iterator[optuna.trial.Trial]:
        """A stored trial of exactly ``candidate``."""
        self._study.enqueue_trial(self.space.parameters(candidate))
        trial = self._study.ask(self.space.distributions)
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        yield trial

    def _stored(self, candidate: Candidate, attribute: str) -> bool:
        """Whether a finished trial of ``candidate`` carries ``attribute``."""
        parameters = self.space.parameters(candidate)
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
        return any(attribute in trial.user_attrs and trial.params == parameters for trial in trials)

    def _reap(self) -> None:
        """Close what a killed driver left RUNNING or WAITING: ask-and-tell writes no heartbeat that would do it."""
        while self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._study.ask(self.space.distributions)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
