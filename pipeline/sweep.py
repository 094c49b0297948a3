"""The one loop that ties the rooms: wait for a worker, tell its cell, ask for the next round, or decide and go on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pipeline.cluster.fleet import Fleet, Outcome
from pipeline.config import resolved_yaml, sweep_id
from pipeline.course import Course
from pipeline.engines.decoding.sources import locate
from pipeline.interrupt import Interrupt
from pipeline.policy.document import fingerprint, write_policy
from pipeline.records.cell import Cell
from pipeline.records.decision import Decision
from pipeline.records.failure import Failure, InputError
from pipeline.records.measurement import Measurement
from pipeline.records.settings import SweepSettings, TargetChoice
from pipeline.records.target import Sourced
from pipeline.records.task import Identification, RoundResult, RoundTask
from pipeline.report.console import Progress
from pipeline.search.study import CellStudy, open_storage
from pipeline.tracking.mlflow_view import MlflowView
from pipeline.tracking.parquet import write_views
from pipeline.tracking.reuse import adopt
from pipeline.tracking.store import Store, find_reusable
from pipeline.workloads.load import load_prompts

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
    _check_output_outlives(settings)
    prompts = {workload.name: len(load_prompts(workload).prompts) for workload in settings.workloads}
    if _starts_ray_here(settings):
        _find_models(settings)
    sweep = sweep_id(settings)
    folder = Path(settings.output_dir) / sweep
    if settings.fresh:
        _set_aside(folder)
    with Store(folder) as store:
        (folder / "config.yaml").write_text(resolved_yaml(settings), encoding="utf-8")
        view = MlflowView.open(
            settings.tracking,
            Path(settings.output_dir),
            sweep,
            settings.name,
            {"strategy": settings.search.strategy},
            progress.warn,
            fresh=settings.fresh,
        )
        run = _Run(settings, sweep, store, view, progress, interrupt, prompts)
        status: Literal["FINISHED", "KILLED", "FAILED"] = "FAILED"
        try:
            run.loop()
            status = "KILLED" if interrupt.requested else "FINISHED"
        finally:
            run.close()
            policy = folder / "policy.json"
            decisions = run.decisions()
            created = datetime.now(UTC).isoformat(timespec="seconds")
            write_policy(policy, sweep, fingerprint(decisions), decisions, created)
            write_views(store, folder)
            artifacts = [folder / "config.yaml", policy, *sorted(folder.glob("*.parquet"))]
            view.finish(status, decisions, artifacts)
        return SweepOutcome(
            sweep=sweep,
            decisions=decisions,
            policy=policy,
            ui_command=view.ui_command,
            measured=run.measured,
            kept=run.kept,
            interrupted=interrupt.requested,
        )


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
        prompts: Mapping[str, int],
    ) -> None:
        self._settings = settings
        self._sweep = sweep
        self._store = store
        self._view = view
        self._progress = progress
        self._interrupt = interrupt
        self._fleet: Fleet | None = None
        self._leases: dict[str, Course] = {}
        self._held: dict[str, str] = {}
        self._worker_s = 0.0
        self.measured = 0
        self.kept = len(store.measurements())
        # With GPUs the accelerator's name is part of every cell, and only the cluster knows it.
        accelerator = self._start_fleet().accelerator if settings.cluster.gpus_per_worker else "cpu"
        self._courses = self._make_courses(accelerator, prompts)
        progress.expect(len(self._courses))
        self._waiting = [course for course in self._courses if course.decision is None]

    def loop(self) -> None:
        """Until every cell is decided, a signal came, or the budget is spent."""
        for course in self._courses:
            if course.decision is not None:
                self._announce(course)
        for measurement in self._store.measurements():
            self._record(measurement)
        while (self._waiting or self._leases) and not self._interrupt.requested:
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
        """Stop the workers, whatever they do."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None

    def decisions(self) -> tuple[Decision, ...]:
        """The decisions made so far, in the order of the cells."""
        return tuple(course.decision for course in self._courses if course.decision is not None)

    def _give_work(self, fleet: Fleet, worker: str) -> None:
        """The worker's next call: of the cell it leases, or of one it takes now."""
        while True:
            course = self._leases.get(worker) or self._lease(worker)
            if course is None:
                return
            task = course.next_task()
            if task is not None:
                fleet.submit(worker, task, "identify" if self._settings.reuse else "measure")
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
        course.take(task, result)
        for failure in result.failures:
            self._warn(failure)
        if course.confirmation is not None and task.kind == "confirmation_look":
            self._store.save(course.confirmation)
            self._record(course.confirmation)
        for measurement in result.measurements:
            self._record(measurement)
            self._progress.measured(measurement)

    def _save(self, result: RoundResult) -> None:
        """The truth first, the baseline before what refers to it; only then anybody is told."""
        if result.baseline is not None:
            self._store.save(result.baseline)
        for measurement in result.measurements:
            self._store.save(measurement)
        self.measured += len(result.measurements)

    def _adopt(self, course: Course, task: RoundTask, identified: Identification) -> RoundTask | None:
        """Take from earlier sweeps what is known; the task narrowed to the rest, None if nothing is left of it."""
        known = find_reusable(Path(self._settings.output_dir), identified.content_ids, but_not=self._sweep)
        left = []
        for candidate, content in zip(task.candidates, identified.content_ids, strict=True):
            if content not in known:
                left.append(candidate)
                continue
            measurement, baselines = adopt(task, *known[content])
            for baseline in baselines:
                self._store.save(baseline)
            self._store.save(measurement)
            self.kept += 1
            course.take(task, RoundResult(baseline=baselines[0], measurements=(measurement,), failures=()))
            self._record(measurement)
            self._progress.measured(measurement)
        if course.confirmation is not None:
            self._store.save(course.confirmation)
            self._record(course.confirmation)
        return replace(task, candidates=tuple(left)) if left else None

    def _record(self, measurement: Measurement) -> None:
        cell = next((c.cell for c in self._courses if c.cell.key == measurement.cell), None)
        if cell is not None:
            self._view.record(measurement, cell)

    def _announce(self, course: Course) -> None:
        assert course.decision is not None
        self._view.decision(course.decision)
        self._progress.decided(course.decision)

    def _warn(self, failure: Failure) -> None:
        what = failure.candidate.label if failure.candidate is not None else "round"
        self._progress.warn(f"{failure.cell.label}: {what}: {failure.kind.replace('_', ' ')}: {failure.message}")
        self._view.failure(failure)

    def _budget_spent(self) -> bool:
        limit = self._settings.budget.worker_hours
        return limit is not None and self._worker_s >= limit * 3600

    def _end_for_budget(self) -> None:
        for course in (*self._leases.values(), *self._waiting):
            course.stop_for_budget()
            self._announce(course)
        self._leases.clear()
        self._waiting.clear()

    def _start_fleet(self) -> Fleet:
        if self._fleet is None:
            self._fleet = Fleet(self._settings.cluster, self._settings.engine)
            self._interrupt.install()
        return self._fleet

    def _make_courses(self, accelerator: str, prompts: Mapping[str, int]) -> tuple[Course, ...]:
        storage = open_storage(Path(self._settings.output_dir) / "optuna.db")
        return tuple(
            Course(
                cell,
                choice,
                self._settings,
                self._sweep,
                CellStudy(
                    f"{self._sweep} · {cell.key.label} · {cell.accelerator}",
                    choice.drafts,
                    self._settings.search,
                    storage,
                    fresh=self._settings.fresh,
                ),
                self._store,
                prompts[cell.workload.name],
            )
            for cell, choice in cells_of(self._settings, accelerator)
        )


def cells_of(settings: SweepSettings, accelerator: str) -> Sequence[tuple[Cell, TargetChoice]]:
    """Every cell of a sweep, a target's cells together."""
    return [
        (
            Cell(
                target=choice.target,
                workload=workload,
                sampling=sampling,
                concurrency=concurrency,
                accelerator=accelerator,
            ),
            choice,
        )
        for choice in settings.targets
        for workload in settings.workloads
        for sampling in settings.samplings
        for concurrency in settings.concurrency
    ]


def _starts_ray_here(settings: SweepSettings) -> bool:
    """Whether the workers will share this machine's files."""
    return settings.cluster.address is None and "RAY_ADDRESS" not in os.environ


def _check_output_outlives(settings: SweepSettings) -> None:
    """Refuse to write into the throw-away copy of the working directory that a Ray job runs in."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and Path(settings.output_dir).is_relative_to(Path.cwd()):
        raise InputError(
            f"output_dir={settings.output_dir}: lies in this job's working directory, which Ray deletes; "
            "give an absolute path on storage that outlives the job"
        )


def _find_models(settings: SweepSettings) -> None:
    """Refuse a model that is not there before anything is started."""
    if settings.engine.name != "decoding":
        return
    for choice in settings.targets:
        target = choice.target
        where = f"targets.{target.name}"
        locate(target.source, target.revision, key=f"{where}.source", allow_pickle=target.allow_pickle)
        for item in choice.drafts:
            draft = item.draft
            if isinstance(draft, Sourced):
                key = f"{where}.drafts.{draft.name}.source"
                locate(draft.source, draft.revision, key=key, allow_pickle=target.allow_pickle)


def _set_aside(folder: Path) -> None:
    """``fresh=true`` starts anew; what was measured before is kept under another name."""
    if folder.exists():
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            folder.rename(folder.with_name(f"{folder.name}.before-{stamp}"))
        except OSError as error:
            raise InputError(f"{folder}: cannot be set aside for fresh=true ({error.strerror})") from None
