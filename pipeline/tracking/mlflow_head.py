"""A head's training in MLflow: one run, its losses and agreement by step, its report. Never fails a training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

from pipeline.records.head_training import Agreement, Drafted, HeadOnWorkload, HeadReport, HeadTraining, Look
from pipeline.tracking.mlflow_connection import Connection, KnownRun, tracking_uri, ui_command
from pipeline.tracking.mlflow_payload import Payload, Point, masked

KIND = "head"
_IDENTITY = "head"
_LOOKS = "looks_written"
Ending = Literal["FINISHED", "KILLED", "FAILED"]


class HeadView:
    """The run of one head, found again by its identity when the same command goes on.

    What MLflow did not take is written at the end, from the looks and the report, which are the truth.
    """

    def __init__(self, settings: HeadTraining, identity: str, uri: str | None, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._identity = identity
        self._uri = uri
        self._warn = warn
        self._connection: Connection | None = None
        self._run: KnownRun | None = None
        self._looks: list[Look] = []

    @classmethod
    def open(cls, settings: HeadTraining, identity: str, warn: Callable[[str], None]) -> HeadView:
        """Connect and start or continue the run, in the experiment ``train_head NAME``.

        With tracking switched off every method does nothing. Raises InputError for a URI that MLflow cannot have.
        """
        output_dir = Path(settings.output_dir)
        uri = tracking_uri(settings.tracking.uri, output_dir) if settings.tracking.enabled else None
        view = cls(settings, identity, uri, warn)
        view._do("the training", view._connect)
        return view

    @property
    def ui_command(self) -> str:
        """What shows the run: a command, or the server's address; empty with tracking switched off."""
        return "" if self._uri is None else ui_command(self._uri)

    def look(self, looks: Sequence[Look]) -> None:
        """All looks so far; those that MLflow has are not written again."""
        self._looks = list(looks)
        if self._connection is not None:
            self._do("a look", self._write_looks)

    def finish(self, status: Ending, report: HeadReport | None, artifacts: Sequence[Path]) -> None:
        """Try once more what could not be written, attach ``artifacts`` and end the run."""
        if report is not None:
            self._looks = list(report.looks)
        self._do("the training's end", lambda: self._end(status, report, artifacts))

    def _do(self, what: str, step: Callable[[], None]) -> None:
        if self._uri is None:
            return
        try:
            step()
        except Exception as error:  # whatever it is, the head is worth more
            self._connection = None
            text = masked(" ".join(str(error).split()) or type(error).__name__)[:200]
            self._warn(f"MLflow did not take {what} ({text}); the head is not touched by that")

    def _connect(self) -> None:
        assert self._uri is not None
        output_dir = Path(self._settings.output_dir)
        connection = Connection(self._uri, output_dir, f"train_head {self._settings.name}")
        run = next(iter(connection.runs(f"tags.{_IDENTITY} = '{self._identity}'")), None)
        if run is None:
            tags = {"kind": KIND, _IDENTITY: self._identity}
            payload = Payload(name=f"{self._settings.name} · {self._settings.minutes:g} min", identity="", tags=tags)
            run = connection.create(payload, {}, _now_ms())
        elif run.status != "RUNNING":
            connection.reopen(run)
        payload = Payload(name="", identity="", parameters=dict(_parameters(self._settings)))
        connection.write(run, payload, _now_ms())
        self._connection, self._run = connection, run

    def _write_looks(self) -> None:
        assert self._connection is not None
        assert self._run is not None
        known = int(self._run.tags.get(_LOOKS, "0"))
        points = [point for look in self._looks[known:] for point in look_points(look)]
        payload = Payload(name="", identity="", metrics=points, tags={_LOOKS: str(len(self._looks))})
        if points:
            self._connection.write(self._run, payload, _now_ms())

    def _end(self, status: Ending, report: HeadReport | None, artifacts: Sequence[Path]) -> None:
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        assert self._run is not None
        self._write_looks()
        if report is not None:
            points = [point for result in report.results for point in result_points(result)]
            points.append(Point(name="coverage", value=report.coverage))
            self._connection.write(self._run, Payload(name="", identity="", metrics=points), _now_ms())
        for path in artifacts:
            if path.exists():
                self._connection.artifact(self._run, path)
        self._connection.end(self._run, status)


def look_points(look: Look) -> Iterator[Point]:
    """Loss and agreement by training step; agreement of the draft step i as ``watched_agreement_i``."""
    for name in ("loss", "watched_loss", "learning_rate", "spent_s"):
        yield Point(name=name, value=getattr(look, name), step=look.step)
    for number, share in enumerate(look.watched_agreement, start=1):
        yield Point(name=f"watched_agreement_{number}", value=share, step=look.step)


def result_points(result: HeadOnWorkload) -> Iterator[Point]:
    """``held_out_agreement.chat``, ``ngram_agreement.chat`` and so on; what is by position is a stepped metric."""
    about = {"held_out_agreement": result.head, "ngram_agreement": result.ngram, "ahead_of_ngram": result.ahead}
    for name, share in about.items():
        for part in fields(Agreement):
            ending = "" if part.name == "share" else f"_{part.name}"
            yield Point(name=f"{name}{ending}.{result.workload}", value=getattr(share, part.name))
    for number, value in enumerate(result.head_by_step, start=1):
        yield Point(name=f"held_out_agreement_by_step.{result.workload}", value=value, step=number)
    for who, drafted in (("head", result.head_drafted), ("ngram", result.ngram_drafted)):
        for part in fields(Drafted):
            value = getattr(drafted, part.name)
            if isinstance(value, int | float):
                yield Point(name=f"{who}_{part.name}.{result.workload}", value=value)


def _parameters(settings: HeadTraining) -> Iterator[tuple[str, str]]:
    for name, value in asdict(settings).items():
        if name in ("tracking", "output_dir", "fresh"):
            continue
        if isinstance(value, dict):
            yield from ((f"{name}_{key}", str(each)) for key, each in value.items())
        elif name == "workloads":
            yield name, ", ".join(each["name"] for each in value)
        else:
            yield name, str(value)


def _now_ms() -> int:
    return int(time.time() * 1000)
