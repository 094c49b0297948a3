"""The one loop that ties the rooms: wait for a worker, tell its cell, ask for the next round, or decide and go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from optuna.storages import BaseStorage

from pipeline.cells import cells_of
from pipeline.cluster.fleet import Fleet, Outcome, connect, stop_ray
from pipeline.config import resolved_yaml, sweep_id
from pipeline.course import Course
from pipeline.interrupt import Interrupt
from pipeline.policy.document import fingerprint, write_policy
from pipeline.preflight import check
from pipeline.records.decision import Decision
from pipeline.records.failure import Failure, InputError
from pipeline.records.measurement import Measurement
from pipeline.records.settings import SweepSettings
from pipeline.records.task import Identification, RoundResult, RoundTask
from pipeline.report.console import Progress
from pipeline.report.why import write_why
from pipeline.search.agreement import disagreement
from pipeline.search.study import CellStudy, open_storage
from pipeline.tracking.atomic import write_atomically
from pipeline.tracking.lock import is_held
from pipeline.tracking.mlflow_view import MlflowView
from pipeline.tracking.parquet import VIEWS, write_views
from pipeline.tracking.reuse import adopt
from pipeline.tracking.store import Store, find_reusable

T = TypeVar("T")

WAIT_S = 0.5
"""How long the loop may sleep before it looks at signals, budgets and notes again."""


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """What a sweep leaves. ``measured`` counts the measurements made now, ``kept`` those that were there before."""

    sweep: str
    decisions: tuple[Decision, ...]
    policy: Path
    ui_command: str
    measured: int
    kept: int
    interrupted: bool


def run_sweep(settings: SweepSettings, progress: Progress, interrupt: Interrupt) -> SweepOutcome:
    """Measure and decide every cell of ``settings``; the same settings again go on where the last run stopped.

    Raises InputError for what cannot work, before any model is loaded where it can be known.
    """
    preflight = check(settings)
    sweep = sweep_id(settings, preflight.content)
    folder = Path(settings.output_dir) / sweep
    if settings.fresh:
        _set_aside(folder)
    with Store(folder, warn=progress.warn) as store:
        write_atomically(folder / "config.yaml", resolved_yaml(settings).encode())
        storage = open_storage(Path(settings.output_dir) / "optuna.db")
        view = MlflowView.open(
            settings.tracking,
            Path(settings.output_dir),
            sweep,
            settings.name,
            {"strategy": settings.search.strategy},
            progress.warn,
            fresh=settings.fresh,
        )
        run = _Run(settings, sweep, store, view, progress, interrupt)
        status: Literal["FINISHED", "KILLED", "FAILED"] = "FAILED"
        try:
            run.begin(preflight.prompts, storage)
            run.loop()
            status = "FINISHED" if run.over else "KILLED"
        finally:
            interrupt.closing = True
            _close(run, folder, status)
        return SweepOutcome(
            sweep=sweep,
            decisions=run.decisions(),
            policy=folder / "policy.json",
            ui_command=view.ui_command,
            measured=run.measured,
            kept=run.kept,
            interrupted=not run.over,
        )


def _close(run: _Run, folder: Path, status: Literal["FINISHED", "KILLED", "FAILED"]) -> None:
    """Stop the workers and bring every view up to date, whatever one of them meets; the first error is raised."""
    decisions, created = run.decisions(), datetime.now(UTC).isoformat(timespec="seconds")
    config, policy, why = (folder / name for name in ("config.yaml", "policy.json", "why.html"))
    with contextlib.ExitStack() as steps:  # left in reverse: the last one registered is the first to run
        artifacts = (config, policy, why, *(folder / f"{name}.parquet" for name in VIEWS))
        steps.callback(lambda: run.view.finish(status, decisions, [path for path in artifacts if path.exists()]))
        steps.callback(write_views, run.store, folder)
        steps.callback(lambda: write_why(why, run.sweep, decisions, run.store.measurements(), run.store.forecasts()))
        judged = run.settings.policy.margin, run.settings.constraints
        steps.callback(write_policy, policy, run.sweep, fingerprint(decisions), decisions, created, *judged)
        steps.callback(run.close)


class _Run:
    """One run of a sweep: the courses of its cells, and which worker leases which."""

    def __init__(
        self,
        settings: SweepSettings,
        sweep: str,
        store: Store,
        view: MlflowView,
        progress: Progress,
        interrupt: Interrupt,
    ) -> None:
        self.sweep = sweep
        self.store = store
        self.view = view
        self.settings = settings
        self._progress = progress
        self._interrupt = interrupt
        self._fleet: Fleet | None = None
        self._started_ray = False
        self._courses: tuple[Course, ...] = ()
        self._waiting: list[Course] = []
        self._leases: dict[str, Course] = {}
        self._held: dict[str, str] = {}
        self._worker_s = 0.0
        self.measured = 0
        self.kept = len(store.measurements())

    def begin(self, prompts: Mapping[str, int], storage: BaseStorage) -> None:
        """Make the courses, as far as the store has them already, and bring the views up to date with it."""
        # With GPUs the accelerator's name is part of every cell, and only the cluster knows it.
        accelerator = self._start_fleet().accelerator if self.settings.cluster.gpus_per_worker else "cpu"
        self._courses = self._make_courses(accelerator, prompts, storage)
        self._progress.expect(len(self._courses))
        self._waiting = [course for course in self._courses if course.decision is None]
        for course in self._courses:
            self._save_confirmation(course)
            if course.decision is not None:
                self._announce(course)
        for measurement in self.store.measurements():
            self._record(measurement)

    @property
    def over(self) -> bool:
        """Whether every cell is decided."""
        return not (self._waiting or self._leases)

    def loop(self) -> None:
        """Until every cell is decided, a signal came, or the budget is spent."""
        while not (self.over or self._interrupt.requested):
            fleet = self._start_fleet()
            for worker in fleet.idle():
                self._give_work(fleet, worker)
            for outcome in fleet.wait(WAIT_S):
                self._worker_s += outcome.wall_s
                self._take(fleet, outcome)
            for worker, note in fleet.notes().items():
                self._progress.note(worker, note)
            if self._budget_spent():
                self._end_for_budget()

    def close(self) -> None:
        """Stop the workers, whatever they do, and Ray if it was started here."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None
        if self._started_ray:
            stop_ray()

    def decisions(self) -> tuple[Decision, ...]:
        """The decisions made so far, in the order of the cells."""
        return tuple(course.decision for course in self._courses if course.decision is not None)

    def _give_work(self, fleet: Fleet, worker: str) -> None:
        """The worker's next call: of the cell it leases, or of one it takes now."""
        while True:
            course = self._leases.get(worker) or self._lease(worker)
            if course is None:
                return
            task = self._guarded(course, course.next_task)
            if task is not None:
                known = self.settings.reuse and task.kind != "forecast"  # a forecast is made anew: it costs little
                fleet.submit(worker, task, "identify" if known else "measure")
                return
            self._leases.pop(worker, None)
            self._announce(course)

    def _lease(self, worker: str) -> Course | None:
        """A waiting cell, of the target that the worker holds if there is one."""
        if not self._waiting:
            return None
        held = self._held.get(worker)
        course = next((c for c in self._waiting if c.cell.target.name == held), self._waiting[0])
        self._waiting.remove(course)
        self._leases[worker] = course
        self._held[worker] = course.cell.target.name
        self._progress.cell_started(course.cell.key, worker)
        return course

    def _take(self, fleet: Fleet, outcome: Outcome) -> None:
        worker, task, result = outcome.worker, outcome.task, outcome.result
        course = self._leases[worker]
        course.spent_s += outcome.wall_s
        if isinstance(result, Identification):
            if rest := self._adopt(course, task, result):
                fleet.submit(worker, rest)
            return
        if isinstance(result, Failure):
            self._warn(result)
            course.lost(task, result)
            self._leases.pop(worker)
            self._held.pop(worker, None)
            if course.decision is None:
                self._waiting.append(course)  # another worker takes the cell over
            else:
                self._announce(course)
            return
        self._save(result)
        self._guarded(course, lambda: course.take(task, result))
        for failure in result.failures:
            self._warn(failure)
        for measurement in result.measurements:
            self._record(measurement)
            self._progress.measured(measurement)
            if said := disagreement(measurement, course.forecast, course.cell.sampling):
                self._progress.warn(f"{course.cell.key.label}: {said}")
        self._save_confirmation(course)

    def _guarded(self, course: Course, step: Callable[[], T]) -> T | None:
        """An error of our own in one cell ends that cell, never the sweep."""
        try:
            return step()
        except Exception as error:
            course.give_up(error)
            return None

    def _save_confirmation(self, course: Course) -> None:
        """Pooled anew from the looks: written where the store has none, or an earlier one."""
        for pooled in course.confirmations:
            if not (self.store.has(pooled.id) and self.store.get(pooled.id) == pooled):
                self.store.save(pooled)
                self._record(pooled)

    def _save(self, result: RoundResult) -> None:
        """The truth first, the baseline before what refers to it; only then anybody is told."""
        if result.baseline is not None:
            self.store.save(result.baseline)
        if result.forecast is not None:
            self.store.save(result.forecast)
        for measurement in result.measurements:
            self.store.save(measurement)
        self.measured += len(result.measurements)

    def _adopt(self, course: Course, task: RoundTask, identified: Identification) -> RoundTask | None:
        """Take from earlier sweeps what is known; the task narrowed to the rest, None if nothing is left of it."""
        known = find_reusable(Path(self.settings.output_dir), identified.content_ids, but_not=self.sweep)
        left = []
        for candidate, content in zip(task.candidates, identified.content_ids, strict=True):
            if content not in known:
                left.append(candidate)
                continue
            measurement, baselines = adopt(task, *known[content])
            for baseline in baselines:
                self.store.save(baseline)
            self.store.save(measurement)
            self.kept += 1
            result = RoundResult(baseline=baselines[0], measurements=(measurement,), failures=())
            self._guarded(course, lambda result=result: course.take(task, result))  # type: ignore[misc]
            self._record(measurement)
            self._progress.measured(measurement)
        self._save_confirmation(course)
        return replace(task, candidates=tuple(left)) if left else None

    def _record(self, measurement: Measurement) -> None:
        cell = next((c.cell for c in self._courses if c.cell.key == measurement.cell), None)
        if cell is not None:
            self.view.record(measurement, cell)

    def _announce(self, course: Course) -> None:
        assert course.decision is not None
        self.view.decision(course.decision)
        self._progress.decided(course.decision)

    def _warn(self, failure: Failure) -> None:
        what = failure.candidate.label if failure.candidate is not None else "round"
        self._progress.warn(f"{failure.cell.label}: {what}: {failure.kind.replace('_', ' ')}: {failure.message}")
        self.view.failure(failure)

    def _budget_spent(self) -> bool:
        limit = self.settings.budget.worker_hours
        return limit is not None and self._worker_s >= limit * 3600

    def _end_for_budget(self) -> None:
        for course in (*self._leases.values(), *self._waiting):
            course.stop_for_budget()
            self._announce(course)
        self._leases.clear()
        self._waiting.clear()

    def _start_fleet(self) -> Fleet:
        if self._fleet is None:
            self._started_ray = connect(self.settings.cluster)
            self._interrupt.install()
            self._fleet = Fleet(self.settings.cluster, self.settings.engine)
        return self._fleet

    def _make_courses(self, accelerator: str, prompts: Mapping[str, int], storage: BaseStorage) -> tuple[Course, ...]:
        courses = []
        for cell, choice in cells_of(self.settings, accelerator):
            name = f"{self.sweep} · {cell.key.label} · {cell.accelerator}"
            study = CellStudy(
                name,
                choice.drafts,
                self.settings.search,
                storage,
                constraints=self.settings.constraints,
                fresh=self.settings.fresh,
            )
            available = prompts[cell.workload.name]
            courses.append(Course(cell, choice, self.settings, self.sweep, study, self.store, available))
        return tuple(courses)


def _set_aside(folder: Path) -> None:
    """``fresh=true`` starts anew; what was measured before is kept under another name."""
    if is_held(folder):
        raise InputError(f"{folder}: another process is writing this sweep; wait for it or stop it before fresh=true")
    if folder.exists():
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            folder.rename(folder.with_name(f"{folder.name}.before-{stamp}"))
        except OSError as error:
            raise InputError(f"{folder}: cannot be set aside for fresh=true ({error.strerror})") from None
