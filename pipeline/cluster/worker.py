"""What runs inside a Ray actor: one engine, one call at a time, and plain records in and out."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

from pipeline.engines.contract import Engine, Limits
from pipeline.measurement.identity import content_id
from pipeline.measurement.prepare import Prepared, prepare
from pipeline.measurement.round import as_failure
from pipeline.records.failure import Failure
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Candidate
from pipeline.records.task import Identification, RoundResult, RoundTask
from pipeline.search.forecast import run_round

PREPARED_KEPT = 8
"""Rendered workloads kept by a worker: a cell's rounds come one after another, neighbouring cells share prompts."""


class Worker:
    """Owns one accelerator's engine. No call raises: every error comes back as a Failure."""

    def __init__(self, settings: EngineSettings, threads: int | None) -> None:
        self._settings = settings
        self._threads = threads
        self._engine: Engine | None = None
        self._prepared: dict[str, Prepared] = {}
        self._note = "starting"

    def ready(self) -> str:
        """``host:pid``, once the actor is placed and this module could be imported there."""
        return f"{platform.node()}:{os.getpid()}"

    def progress(self) -> str:
        """What the current call is doing; answered from another thread while it runs."""
        return self._note

    def measure(self, task: RoundTask) -> RoundResult:
        """Measure or forecast: the target first, then each draft, so that one that cannot be loaded spoils no other."""
        failures: list[Failure] = []
        try:
            engine, prepared = self._open(task)
            loaded = [c for c in task.candidates if self._load(engine, task, c, failures)]
            if not loaded:
                return RoundResult(baseline=None, measurements=(), failures=tuple(failures))
            narrowed = replace(task, candidates=tuple(loaded))
            result = run_round(engine, narrowed, prepared, self._say)
        except Exception as error:
            failures.append(failure(task, None, error))
            return RoundResult(baseline=None, measurements=(), failures=tuple(failures))
        finally:
            self._note = "idle"
        return RoundResult(
            baseline=result.baseline,
            measurements=result.measurements,
            failures=(*failures, *result.failures),
            forecast=result.forecast,
        )

    def identify(self, task: RoundTask) -> Identification | RoundResult:
        """The content ids that measuring ``task`` would give; a draft that cannot be loaded has an empty one.

        A round without measurements where the target or the prompts fail.
        """
        try:
            engine, prepared = self._open(task)
            return Identification(
                content_ids=tuple(self._content_id(engine, task, prepared, c) for c in task.candidates)
            )
        except Exception as error:
            return RoundResult(baseline=None, measurements=(), failures=(failure(task, None, error),))
        finally:
            self._note = "idle"

    def _open(self, task: RoundTask) -> tuple[Engine, Prepared]:
        """The engine with the task's target loaded, and the cell's prompts rendered."""
        self._say(f"loading {task.cell.target.name}")
        if self._engine is None:
            self._engine = make_engine(self._settings, self._threads)
        self._engine.open(task.cell.target, (), _limits(task))
        cell = task.cell
        key = repr((cell.target, cell.workload, cell.sampling, cell.concurrency, task.protocol, task.max_gamma))
        if key not in self._prepared:
            self._say("preparing prompts")
            while len(self._prepared) >= PREPARED_KEPT:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = prepare(self._engine, cell, task.protocol, self._say, task.max_gamma)
        return self._engine, self._prepared[key]

    def _load(self, engine: Engine, task: RoundTask, candidate: Candidate, failures: list[Failure]) -> bool:
        """Load the candidate's draft; False, with the failure noted, if that cannot be."""
        if candidate.draft is None:
            return True
        self._say(f"loading {candidate.draft.name}")
        try:
            engine.open(task.cell.target, (candidate.draft,), _limits(task))
        except Exception as error:
            failures.append(failure(task, candidate, error))
            return False
        return True

    def _content_id(self, engine: Engine, task: RoundTask, prepared: Prepared, candidate: Candidate) -> str:
        if not self._load(engine, task, candidate, []):
            return ""
        revision = engine.draft_facts(candidate.draft).revision if candidate.draft is not None else ""
        return content_id(
            task.cell,
            candidate,
            task.kind,
            task.replicate,
            task.protocol,
            prepared.content_hash,
            task.first_prompt,
            task.prompt_count,
            engine.facts,
            revision,
        )

    def _say(self, note: str) -> None:
        self._note = note


def make_engine(settings: EngineSettings, threads: int | None) -> Engine:
    """The engine that ``settings`` name. Imported here, so that the simulated one needs no torch."""
    if settings.name == "simulated":
        from pipeline.engines.simulated import SimulatedEngine

        return SimulatedEngine()
    from pipeline.engines.decoding.engine import DecodingEngine

    return DecodingEngine(settings, threads)


def failure(task: RoundTask, candidate: Candidate | None, error: Exception) -> Failure:
    """``error`` as a record that says where it happened."""
    return replace(as_failure(task.cell.key, candidate, error), worker=f"{platform.node()}:{os.getpid()}")


def _limits(task: RoundTask) -> Limits:
    return Limits(concurrency=task.cell.concurrency, max_gamma=task.max_gamma)
