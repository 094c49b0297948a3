"""The workers of a sweep: placed, given calls, watched, replaced. Policy-free: it knows nothing of cells' progress."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from pipeline.cluster.resources import plan_workers
from pipeline.cluster.worker import Worker
from pipeline.records.failure import Failure, FailureKind, InputError
from pipeline.records.settings import ClusterSettings, EngineSettings
from pipeline.records.task import Identification, RoundResult, RoundTask

NOTE_EVERY_S = 2.0
CallName = Literal["measure", "identify"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one call. A Failure in place of a result: the worker died, hung or broke, and was replaced."""

    worker: str
    task: RoundTask
    result: RoundResult | Identification | Failure
    wall_s: float


@dataclass(kw_only=True)
class _Seat:
    """One worker's place: its actor now, since when it is asked for and whether it runs, and its call in flight."""

    actor: Any
    starting: Any
    asked: float
    reference: Any = None
    task: RoundTask | None = None
    since: float = 0.0
    note: Any = None
    note_asked: float = 0.0


class Fleet:
    """Ray actors, each owning whole accelerators or CPUs, with one call in flight.

    ``connect`` has joined or started Ray. Workers come up while the sweep waits: ``idle`` names those that are there.
    Raises InputError within seconds for workers that can never be placed, and from ``wait`` when none is left of those
    that could.
    """

    def __init__(self, cluster: ClusterSettings, engine: EngineSettings) -> None:
        self._settings = cluster
        self._engine = _engine_on(cluster, engine)
        self._request = plan_workers(cluster, [n["Resources"] for n in ray.nodes() if n["Alive"]])
        self._seats = {f"w{index}": self._place() for index in range(cluster.workers)}

    @property
    def accelerator(self) -> str:
        """What all workers run on: part of every cell."""
        return self._request.accelerator

    def idle(self) -> tuple[str, ...]:
        """Workers that run, without a call in flight."""
        return tuple(name for name, seat in self._seats.items() if seat.starting is None and seat.reference is None)

    def submit(self, worker: str, task: RoundTask, call: CallName = "measure") -> None:
        """Start a call on an idle worker."""
        seat = self._seats[worker]
        if seat.starting is not None or seat.reference is not None:
            raise ValueError(f"worker {worker} is starting or has a call in flight")
        seat.reference = getattr(seat.actor, call).remote(task)
        seat.task = task
        seat.since = time.monotonic()

    def wait(self, timeout_s: float) -> tuple[Outcome, ...]:
        """Outcomes of calls that have ended, or passed their deadline, within ``timeout_s``."""
        awaited = {seat.starting or seat.reference: name for name, seat in self._seats.items()}
        awaited.pop(None, None)
        if not awaited:
            time.sleep(timeout_s)
            return ()
        done, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        outcomes = []
        for reference in done:
            name = awaited[reference]
            if self._seats[name].starting is not None:
                self._welcome(name)
            else:
                outcomes.append(self._collect(name))
        self._dismiss_unplaced()
        for name, seat in list(self._seats.items()):
            if seat.reference is not None and time.monotonic() - seat.since > self._settings.call_timeout_s:
                outcomes.append(self._lose(name, "timeout", f"no result in {self._settings.call_timeout_s:g} s"))
        return tuple(outcomes)

    def notes(self) -> Mapping[str, str]:
        """What each busy worker is doing, as far as it has answered; never waits.

        A question takes time from the worker, which may be timing something: it is asked every ``NOTE_EVERY_S``.
        """
        answers: dict[str, str] = {}
        for name, seat in self._seats.items():
            if seat.reference is None:
                continue
            if seat.note is not None and ray.wait([seat.note], timeout=0)[0]:
                with contextlib.suppress(RayError):  # the call itself will tell what is wrong
                    answers[name] = ray.get(seat.note, timeout=0)
                seat.note = None
            if seat.note is None and time.monotonic() - seat.note_asked >= NOTE_EVERY_S:
                seat.note = seat.actor.progress.remote()
                seat.note_asked = time.monotonic()
        return answers

    def close(self) -> None:
        """Kill the workers, whatever they do."""
        for seat in self._seats.values():
            ray.kill(seat.actor, no_restart=True)

    def _collect(self, name: str) -> Outcome:
        seat = self._seats[name]
        try:
            result = ray.get(seat.reference, timeout=30)
        except RayActorError as error:
            return self._lose(name, "worker_died", f"the worker died: {_line(error)}")
        except GetTimeoutError:
            return self._lose(name, "timeout", "the result could not be fetched in 30 s")
        except Exception as error:  # whatever it was, its text travels on, not the exception
            return self._lose(name, "error", _line(error))
        assert seat.task is not None
        outcome = Outcome(worker=name, task=seat.task, result=result, wall_s=time.monotonic() - seat.since)
        seat.reference = seat.task = seat.note = None  # an answer still to come tells of this call
        return outcome

    def _lose(self, name: str, kind: FailureKind, message: str) -> Outcome:
        """Replace the worker and report its call as failed."""
        seat = self._seats[name]
        assert seat.task is not None
        lost = Failure(cell=seat.task.cell.key, candidate=None, kind=kind, message=message, worker=name)
        outcome = Outcome(worker=name, task=seat.task, result=lost, wall_s=time.monotonic() - seat.since)
        ray.kill(seat.actor, no_restart=True)
        self._seats[name] = self._place()
        return outcome

    def _welcome(self, name: str) -> None:
        """The worker has come up, or could not: then the others go on without it."""
        seat = self._seats[name]
        try:
            ray.get(seat.starting, timeout=30)
        except RayError as error:
            ray.kill(self._seats.pop(name).actor, no_restart=True)
            if not self._seats:
                raise InputError(f"cluster: no worker could start: {_line(error)}") from None
        seat.starting = None

    def _dismiss_unplaced(self) -> None:
        """Go on without workers that were not placed in time; without any, say so."""
        limit_s = self._settings.placement_timeout_s
        late = [n for n, s in self._seats.items() if s.starting is not None and time.monotonic() - s.asked > limit_s]
        for name in late:
            ray.kill(self._seats.pop(name).actor, no_restart=True)
        if late and not self._seats:
            raise InputError(
                f"cluster: no worker of {self._request.text} was placed in {limit_s:g} s "
                "(cluster.placement_timeout_s); is the cluster busy, or has a node left it?"
            )

    def _place(self) -> _Seat:
        """Ask for one actor. Restarts are never implicit: a dead worker's call is for the sweep to judge."""
        request = self._request
        options: dict[str, Any] = {
            "num_cpus": request.cpus,
            "num_gpus": request.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if request.accelerator_type:
            options["accelerator_type"] = request.accelerator_type
        actor = _actor_class().options(**options).remote(self._engine, request.cpus)
        return _Seat(actor=actor, starting=actor.ready.remote(), asked=time.monotonic())


def _actor_class() -> Any:
    """``progress`` answers in a group of its own while ``measure`` runs."""

    class RayWorker(Worker):
        progress = ray.method(concurrency_group="control")(Worker.progress)

    return ray.remote(concurrency_groups={"control": 1})(RayWorker)


def _engine_on(cluster: ClusterSettings, engine: EngineSettings) -> EngineSettings:
    """The device each worker is to use, stated: Ray leaves GPUs visible to workers that own none."""
    if engine.device == "cuda" and not cluster.gpus_per_worker:
        raise InputError("engine.device=cuda needs cluster.gpus_per_worker >= 1")
    if engine.device == "auto":
        return replace(engine, device="cuda" if cluster.gpus_per_worker else "cpu")
    return engine


def connect(cluster: ClusterSettings) -> bool:
    """Join or start Ray; True if it was started here, and is to be shut down.

    Joined where ``address`` or RAY_ADDRESS says, or where a cluster runs on this machine. Raises InputError.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 lets anything else disturb a timing
    if ray.is_initialized():
        return False
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    _check_reachable(address)
    try:
        ray.init(
            address=cluster.address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="speculative-decoding",
        )
    except Exception as error:  # Ray raises many kinds; none of them is a measurement's fault
        what = f"cluster.address={address}: no Ray cluster to join there" if address else "Ray could not start here"
        raise InputError(f"{what} ({_line(error)})") from None
    return not address


def stop_ray() -> None:
    """Stop what ``connect`` started."""
    ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Ray itself tries for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"cluster.address={address}: nothing answers there ({error})") from None


def _line(error: BaseException) -> str:
    """The error in one sentence: Ray explains at length."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].split(". ")[0][:300] if lines else type(error).__name__
