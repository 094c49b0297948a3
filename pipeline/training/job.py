"""One head from nothing: collect, learn, write it, measure it; each stage goes on where an earlier start ended."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers
from pydantic import TypeAdapter, ValidationError

from pipeline.engines.decoding.sources import Location, locate
from pipeline.records.failure import InputError
from pipeline.records.head_training import HeadReport, HeadTraining
from pipeline.records.target import DType, Eagle3
from pipeline.report.curve import learning_curve
from pipeline.report.training import look_line
from pipeline.tracking.atomic import write_atomically
from pipeline.tracking.lock import FolderLock
from pipeline.tracking.mlflow_head import HeadView
from pipeline.training.budget import Budget
from pipeline.training.collect import Split, read_text, split
from pipeline.training.collecting import WRITTEN, Collected, Collecting
from pipeline.training.divergence import Vocabulary
from pipeline.training.fit import Fit
from pipeline.training.head import config_of, entries_for, known_tokens, new_weights, write_head
from pipeline.training.lessons import LessonStore
from pipeline.training.measure import measure
from pipeline.training.precision import fastest
from pipeline.training.progress import Stopped, TrainingProgress
from pipeline.training.student import Student
from pipeline.training.teacher import Lesson, TargetParts, Teacher
from pipeline.workloads.load import load_prompts

REPORT, CURVE = "training.json", "learning_curve.html"
_PLAN, _CHECKPOINT = "plan.json", "checkpoint.pt"


@dataclass(frozen=True)
class Outcome:
    """``report`` None: ended early by a signal, and the same command goes on."""

    folder: Path
    report: HeadReport | None
    ui_command: str


@dataclass(frozen=True)
class _New:
    """A head that has learned nothing yet."""

    entries: Mapping[str, object]
    states: tuple[int, ...]
    vocabulary: Vocabulary
    student: Student


def folder_of(settings: HeadTraining) -> Path:
    """Where the head will lie: what a draft names as its source."""
    return Path(settings.output_dir) / "heads" / settings.name


def train_head(settings: HeadTraining, progress: TrainingProgress, stop: Callable[[], bool]) -> Outcome:
    """Make the head that ``settings`` describe. The same call again goes on, or does nothing when it is there.

    ``stop`` is asked often; once it says yes, what was made so far is kept. Raises InputError for what cannot be used,
    before any model is loaded where it can be known.
    """
    target = settings.target
    key = f"targets.{target.name}.source"
    located = locate(target.source, target.revision, key=key, allow_pickle=target.allow_pickle)
    contents = {each.name: load_prompts(each).content_hash for each in settings.workloads}
    for path in settings.collect.text:
        read_text(Path(path))
    folder = folder_of(settings)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, progress.warn)
    try:
        return _Job(settings, located, contents, folder, progress, stop).run()
    finally:
        lock.release()


class _Job:
    def __init__(
        self,
        settings: HeadTraining,
        located: Location,
        contents: Mapping[str, str],
        folder: Path,
        progress: TrainingProgress,
        stop: Callable[[], bool],
    ) -> None:
        self._began = time.monotonic()
        self._rate: float | None = None
        self._settings = settings
        self._revision = located.revision
        self._folder = folder
        self._work = folder / "work"
        self._progress = progress
        self._stop = stop
        self._budget = Budget(settings.minutes * 60, settings.fit.epochs)
        device = settings.device
        self._device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._dtype: DType = (
            fastest(torch.device(self._device)) if settings.collect.dtype == "auto" else settings.collect.dtype
        )
        self._collected_of = _hash([located.revision, contents, self._dtype, *_matters_to_collecting(settings)])
        limits = [settings.minutes, settings.collect.tokens, asdict(settings.head), asdict(settings.fit)]
        self._identity = _hash([self._collected_of, *limits])

    def run(self) -> Outcome:
        view = HeadView.open(self._settings, self._identity, self._progress.warn)
        try:
            report = self._done_before() or self._make(view)
        except Stopped:
            view.finish("KILLED", None, ())
            return Outcome(self._folder, None, view.ui_command)
        except BaseException:
            view.finish("FAILED", None, ())
            raise
        write_atomically(self._folder / CURVE, learning_curve(report).encode())
        view.finish("FINISHED", report, [self._folder / REPORT, self._folder / CURVE])
        return Outcome(self._folder, report, view.ui_command)

    def _done_before(self) -> HeadReport | None:
        """The report of a head that was finished with the same settings."""
        report = None if self._settings.fresh else read_report(self._folder)
        return report if report is not None and report.identity == self._identity else None

    def _make(self, view: HeadView) -> HeadReport:
        store = self._store()
        spent = store.seconds
        self._progress.note(f"loading {self._settings.target.source}")
        teacher = Teacher(self._settings.target, self._dtype, self._device)
        parts = teacher.parts
        states = self._settings.head.states or parts.default_states
        splits = [split(workload, self._settings, teacher) for workload in self._settings.workloads]
        collecting = Collecting(self._settings, teacher, states, store, splits, self._progress, self._stop)
        collecting.workloads()
        learning_s = self._learning_s()
        if learning_s is None:
            collecting.written(lambda batch_s: self._is_enough(collecting, parts, store, spent, batch_s))
            learning_s = self._budget.learning_s(spent + time.monotonic() - self._began)
            self._write_plan(learning_s)
        collected = collecting.load()
        if not collected.learned:
            raise InputError(
                f"{self._settings.target.name}: there is nothing to learn from; give files by collect.text"
            )
        collecting.close()
        del teacher  # the target's weights are not needed to learn from what it said

        new = self._new(parts, collected.learned)
        fit = self._fit(new, self._work / _CHECKPOINT)
        self._progress.say(
            f"learning for up to {learning_s / 60:.1f} min from {sum(len(x.choices.ids) for x in collected.learned)} "
            f"places in {len(collected.learned)} texts"
        )
        went_through = fit.run(
            collected.learned,
            collected.watched,
            learning_s,
            self._settings.seed,
            lambda look: self._looked(look, view),
            self._stop,
        )
        if not went_through:
            raise Stopped
        new.student.weights.load_state_dict(fit.best)
        write_head(self._folder, new.entries, fit.best, new.vocabulary.ids, parts.vocabulary)
        report = self._report(new, fit, collected, splits, store)
        write_atomically(self._folder / REPORT, json.dumps(asdict(report), indent=2).encode())
        return report

    def _store(self) -> LessonStore:
        """Where what is collected lies. Raises InputError for what was collected with other settings."""
        if self._settings.fresh and self._work.exists():
            self._work.rename(self._work.with_name(f"work.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))
        plan = self._plan()
        if plan and plan.get("collected_of") != self._collected_of:
            raise InputError(
                f"{self._work}: holds what was collected for another target, workload or with other settings; "
                "fresh=true sets it aside, or choose another name"
            )
        store = LessonStore(self._work / "lessons")
        if not plan:
            write_atomically(self._work / _PLAN, json.dumps({"collected_of": self._collected_of}).encode())
        return store

    def _plan(self) -> dict[str, object]:
        try:
            plan: dict[str, object] = json.loads((self._work / _PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return plan

    def _learning_s(self) -> float | None:
        """What an earlier start of the same settings left for learning; None while collecting is not over."""
        plan = self._plan()
        learning_s = plan.get("learning_s")
        return learning_s if plan.get("identity") == self._identity and isinstance(learning_s, float) else None

    def _write_plan(self, learning_s: float) -> None:
        plan = {"collected_of": self._collected_of, "identity": self._identity, "learning_s": learning_s}
        write_atomically(self._work / _PLAN, json.dumps(plan).encode())

    def _is_enough(
        self, collecting: Collecting, parts: TargetParts, store: LessonStore, earlier_s: float, batch_s: float
    ) -> bool:
        """Whether to go on to learning: when as many tokens are there as were asked for, or by the time there is."""
        batches = store.count(WRITTEN)
        if batches < 1:
            return False  # the rate at which it learns is tried on a whole batch
        learned = collecting.load().learned
        entries = sum(len(lesson.choices.ids) for lesson in learned)
        if self._settings.collect.tokens is not None:
            return entries >= self._settings.collect.tokens
        if self._rate is None:
            self._progress.note("trying how fast it learns")
            self._rate = self._fit(self._new(parts, learned), self._work / "none").probe(learned)
        spent_s = earlier_s + time.monotonic() - self._began
        return self._budget.is_enough(spent_s, entries, self._rate, batch_s or earlier_s / batches)

    def _new(self, parts: TargetParts, learned: Sequence[Lesson]) -> _New:
        states = self._settings.head.states or parts.default_states
        ids = known_tokens(learned, parts.vocabulary, self._settings.head.vocabulary)
        entries = entries_for(parts, states, len(ids), self._settings.head.intermediate_size)
        config = config_of(entries, parts)
        weights = new_weights(config, parts, ids, len(states), self._settings.seed).to(self._device)
        embeddings = parts.embeddings.to(self._device, torch.float32)
        student = Student(config, weights, embeddings, low_precision=self._dtype != "float32")
        return _New(entries, states, Vocabulary(ids, parts.vocabulary), student)

    def _fit(self, new: _New, path: Path) -> Fit:
        return Fit(new.student, new.vocabulary, self._settings.fit, path, self._identity)

    def _looked(self, fit: Fit, view: HeadView) -> None:
        look = fit.looks[-1]
        self._progress.say(look_line(look))
        view.look(fit.looks)

    def _report(
        self, new: _New, fit: Fit, collected: Collected, splits: Sequence[Split], store: LessonStore
    ) -> HeadReport:
        settings, began = self._settings, time.monotonic()
        self._progress.note("measuring on held-out prompts")
        draft = Eagle3(name="head", source=str(self._folder))
        device = self._device
        results, coverage = measure(settings, splits, new.student, new.states, new.vocabulary, draft, device)
        return HeadReport(
            identity=self._identity,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            target=settings.target,
            target_revision=self._revision,
            teacher_dtype=self._dtype,
            states=new.states,
            draft_vocabulary=len(new.vocabulary.ids),
            parameters=sum(weight.numel() for weight in fit.best.values()),
            watched=tuple(asked.id for each in splits for asked in each.watched),
            learned_texts=len(collected.learned),
            learned_places=sum(len(lesson.choices.ids) for lesson in collected.learned),
            prompts_written=len(store.prompts(WRITTEN)),
            batches=store.count(WRITTEN),
            collected_bytes=store.bytes,
            collecting_s=store.seconds,
            learning_s=fit.spent_s,
            measuring_s=time.monotonic() - began,
            best_step=fit.best_look.step,
            steps=fit.steps,
            coverage=coverage,
            minutes=settings.minutes,
            seed=settings.seed,
            collect=settings.collect,
            head=settings.head,
            fit=settings.fit,
            torch=torch.__version__,
            transformers=transformers.__version__,
            threads=torch.get_num_threads(),
            looks=tuple(fit.looks),
            results=tuple(results),
        )


def read_report(folder: Path) -> HeadReport | None:
    """What is known of the head in ``folder``; None where nothing is, or nothing that this code wrote."""
    try:
        return TypeAdapter(HeadReport).validate_json((folder / REPORT).read_bytes())
    except (OSError, ValidationError):
        return None


def _matters_to_collecting(settings: HeadTraining) -> list[object]:
    """What must be as it was for batches to be added to those on disk."""
    target = {key: value for key, value in asdict(settings.target).items() if key not in ("name", "dtype")}
    collect = {key: value for key, value in asdict(settings.collect).items() if key not in ("tokens", "slots", "dtype")}
    workloads = [asdict(workload) for workload in settings.workloads]
    return [target, workloads, settings.seed, collect, settings.head.states]


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
