"""MLflow as a view of the truth, and the only place that writes to it: runs sweep → cell → trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from pipeline.records.cell import Cell, CellKey
from pipeline.records.decision import Decision
from pipeline.records.failure import Failure
from pipeline.records.measurement import Measurement
from pipeline.records.settings import TrackingSettings
from pipeline.report.table import markdown_explanations, markdown_table
from pipeline.tracking.lock import is_held
from pipeline.tracking.mlflow_connection import PARENT, Connection, KnownRun, tracking_uri, ui_command
from pipeline.tracking.mlflow_payload import (
    CELL,
    SWEEP,
    TRIAL,
    Payload,
    Point,
    cell_name,
    cell_payload,
    decision_payload,
    failure_payload,
    failure_tags,
    masked,
    milliseconds,
    note,
    sweep_payload,
    trial_payload,
)

BACKOFF_S = (0.2, 1.0)
"""Waits between the tries of a write."""

Outcome = Literal["FINISHED", "KILLED", "FAILED"]


class MlflowView:
    """One sweep's runs. Nothing here ever fails a sweep, and nothing is written twice.

    A run is found again by its tags ``sweep``, ``kind`` and ``cell`` or ``measurement``; its tag ``digest`` tells
    whether it says what the truth says. So the same records may be told any number of times: what is missing or stale
    is written, the rest is left alone. When MLflow is lost, the records wait for ``finish``, which tries once more.
    """

    def __init__(
        self,
        uri: str | None,
        output_dir: Path,
        sweep: str,
        name: str,
        parameters: Mapping[str, str],
        warn: Callable[[str], None],
        fresh: bool,
    ) -> None:
        self._uri = uri
        self._output_dir = output_dir
        self._sweep = sweep
        self._name = name
        self._parameters = dict(parameters)
        self._warn = warn
        self._fresh = fresh
        self._connection: Connection | None = None
        self._runs: dict[str, KnownRun] = {}
        self._cells: dict[CellKey, Cell] = {}
        self._waiting: list[tuple[str, Callable[[Connection], None]]] = []

    @classmethod
    def open(
        cls,
        settings: TrackingSettings,
        output_dir: Path,
        sweep: str,
        name: str,
        parameters: Mapping[str, str],
        warn: Callable[[str], None],
        fresh: bool = False,
    ) -> MlflowView:
        """Connect, close what a crash left running, and start or continue the sweep's run in the experiment ``name``.

        ``parameters`` are the sweep's own, repeated by its cells and trials. ``fresh`` parts from the runs that an
        earlier sweep of the same id left. ``warn`` gets a line when MLflow cannot be used. With tracking switched off
        every method does nothing. Raises InputError for a URI that MLflow cannot have.
        """
        uri = tracking_uri(settings.uri, output_dir) if settings.enabled else None
        view = cls(uri, output_dir, sweep, name, parameters, warn, fresh)
        if uri is not None:
            try:
                view._retried(view._connect)
            except Exception as error:
                view._lose(error)
        return view

    @property
    def ui_command(self) -> str:
        """What shows the runs: a command, or the server's address; empty with tracking switched off."""
        return "" if self._uri is None else ui_command(self._uri)

    def record(self, measurement: Measurement, cell: Cell) -> None:
        """A measurement's run."""
        self._cells[measurement.cell] = cell
        wall_s = sum(block.trace.wall_s for block in (*measurement.trace_blocks, *measurement.set_aside))
        slim = replace(measurement, trace_blocks=(), set_aside=())
        self._do(slim.candidate.label, lambda connection: self._write_measurement(connection, slim, cell, wall_s))

    def failure(self, failure: Failure) -> None:
        """A failed candidate's run; what concerns a whole cell is said by the cell's run."""
        self._do("a failure", lambda connection: self._write_failure(connection, failure))

    def decision(self, decision: Decision) -> None:
        """Completes the cell's run with its decision and ends it."""
        self._do("a decision", lambda connection: self._write_decision(connection, decision))

    def finish(self, status: Outcome, decisions: Sequence[Decision], artifacts: Sequence[Path]) -> None:
        """Try once more what could not be written, attach ``artifacts``, and end the sweep's run and open cells."""
        if self._uri is None:
            return
        if self._connection is None:
            try:
                self._connect()
            except Exception as error:
                self._warn(
                    f"MLflow is still not usable ({_reason(error)}): its runs are missing, and the same command "
                    "again writes them"
                )
                return
        waiting, self._waiting = self._waiting, []
        for what, step in waiting:
            self._do(what, step)
        for decision in decisions:
            self.decision(decision)
        for path in artifacts:
            if path.exists():
                self._do(path.name, partial(self._attach, path))
        self._do("the sweep's end", lambda connection: self._end(connection, status, decisions))
        if self._waiting and self._connection is not None:
            names = ", ".join(sorted({what for what, _ in self._waiting}))
            self._warn(f"MLflow lacks what it did not take: {names}; the same command again writes it")

    def _do(self, what: str, step: Callable[[Connection], None]) -> None:
        """Run ``step`` now; where that fails it waits for ``finish``."""
        if self._uri is None:
            return
        connection = self._connection
        if connection is None:
            self._waiting.append((what, step))
            return
        try:
            self._retried(lambda: step(connection))
        except Exception as error:
            self._waiting.append((what, step))
            if connection.answers():
                self._warn(f"MLflow did not take {what} ({_reason(error)}); tried again at the end")
            else:
                self._lose(error)

    def _retried(self, step: Callable[[], None]) -> None:
        for wait_s in BACKOFF_S:
            try:
                return step()
            except Exception:  # whatever it is, it is not the sweep's
                time.sleep(wait_s)
        return step()

    def _lose(self, error: Exception) -> None:
        """Say it once; from here on everything waits."""
        self._connection = None
        self._warn(
            f"MLflow at {masked(self._uri or '')} is not usable ({_reason(error)}): "
            "nothing is tracked until the sweep ends, and every measurement is kept"
        )

    def _connect(self) -> None:
        assert self._uri is not None
        connection = Connection(self._uri, self._output_dir, self._name)
        self._end_abandoned(connection)
        self._runs = {}
        for run in list(connection.runs(f"tags.sweep = '{self._sweep}'")):
            if self._fresh:
                connection.tag(run, "sweep", f"{self._sweep}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
                if run.status == "RUNNING":
                    connection.end(run, "KILLED")
                continue
            self._know(connection, run)
        self._fresh = False
        sweep_run = self._sweep_run(connection)
        if sweep_run.status != "RUNNING":
            connection.reopen(sweep_run)
        self._connection = connection

    def _know(self, connection: Connection, run: KnownRun) -> None:
        """Take up a run of an earlier start: closed if a crash left it open, deleted if another says the same."""
        if run.status == "RUNNING" and run.tags.get("kind") != SWEEP:
            connection.end(run, "FINISHED" if run.digest else "KILLED")
        identity = _identity(run)
        twin = self._runs.get(identity)
        if twin is not None:
            run, twin = (run, twin) if run.digest and not twin.digest else (twin, run)
            connection.delete(twin)
        self._runs[identity] = run

    def _end_abandoned(self, connection: Connection) -> None:
        """Other sweeps of this name that no driver writes any more cannot end their runs themselves."""
        for run in connection.runs("attributes.status = 'RUNNING'"):
            folder = self._output_dir / run.tags.get("sweep", "")
            other = run.tags.get("sweep") not in (None, "", self._sweep)
            if other and folder.is_dir() and not is_held(folder):
                connection.end(run, "KILLED")

    def _sweep_run(self, connection: Connection) -> KnownRun:
        payload = sweep_payload(self._sweep, self._parameters)
        run = self._runs.get(payload.identity)
        if run is None:
            run = self._create(connection, payload, parent=None)
        if set(payload.parameters) - set(run.parameters):
            connection.write(run, payload, _now_ms())
        return run

    def _cell_run(self, connection: Connection, key: CellKey, *, reopen: bool) -> KnownRun:
        cell = self._cells.get(key)
        payload = self._with_sweep(cell_payload(key, cell))
        parent = self._sweep_run(connection)
        run = self._runs.get(payload.identity)
        if run is None:
            run = self._create(connection, payload, parent)
        if set(payload.parameters) - set(run.parameters):
            connection.write(run, payload, _now_ms())
        self._adopt(connection, run, parent)
        if reopen and run.status != "RUNNING":
            connection.reopen(run)
        return run

    def _write_measurement(self, connection: Connection, measurement: Measurement, cell: Cell, wall_s: float) -> None:
        end_ms = milliseconds(measurement.provenance.created, _now_ms())
        self._write_trial(
            connection,
            trial_payload(measurement, cell),
            measurement.cell,
            end_ms - int(1000 * wall_s),
            end_ms,
            "FINISHED",
        )

    def _write_failure(self, connection: Connection, failure: Failure) -> None:
        if failure.candidate is None:
            run = self._cell_run(connection, failure.cell, reopen=True)
            said = Payload(name=failure.cell.label, identity="", tags=failure_tags(failure))
            connection.write(run, said, _now_ms())
            return
        payload = failure_payload(failure, self._cells.get(failure.cell))
        self._write_trial(connection, payload, failure.cell, _now_ms(), _now_ms(), "FAILED")

    def _write_trial(
        self, connection: Connection, payload: Payload, key: CellKey, start_ms: int, end_ms: int, status: Outcome
    ) -> None:
        known = self._runs.get(payload.identity)
        if known is not None and known.digest == payload.digest:
            self._adopt(connection, known, self._cell_run(connection, key, reopen=False))
            if known.status != status:
                connection.end(known, status, end_ms)
            return
        if known is not None:
            connection.delete(known)
            del self._runs[payload.identity]
        parent = self._cell_run(connection, key, reopen=True)
        run = self._create(connection, payload, parent, start_ms)
        connection.write(run, self._with_sweep(payload), end_ms, digest=payload.digest)
        connection.end(run, status, end_ms)

    def _write_decision(self, connection: Connection, decision: Decision) -> None:
        payload = decision_payload(decision)
        run = self._cell_run(connection, decision.cell, reopen=False)
        if run.digest != payload.digest:
            connection.write(run, payload, _now_ms(), digest=payload.digest)
        status: Outcome = "FAILED" if decision.status == "failed" else "FINISHED"
        if run.status != status:
            connection.end(run, status)

    def _attach(self, path: Path, connection: Connection) -> None:
        connection.artifact(self._sweep_run(connection), path)

    def _end(self, connection: Connection, status: Outcome, decisions: Sequence[Decision]) -> None:
        decided = {cell_name(decision.cell) for decision in decisions}
        for run in self._runs.values():
            if run.tags.get("kind") == CELL and run.status == "RUNNING" and run.tags["cell"] not in decided:
                connection.end(run, "KILLED" if status == "FINISHED" else status)
        run, table = self._sweep_run(connection), markdown_table(decisions)
        counts = [
            Point(name=f"cells_{kind}", value=sum(decision.status == kind for decision in decisions))
            for kind in ("on", "off", "undecided", "failed")
        ]
        said = Payload(
            name=self._sweep,
            identity="",
            metrics=counts,
            tags={"mlflow.note.content": note(connection.experiment_id, decisions, table)},
        )
        connection.write(run, said, _now_ms())
        connection.text(run, "decisions.md", table + markdown_explanations(decisions))
        connection.end(run, status)

    def _create(
        self, connection: Connection, payload: Payload, parent: KnownRun | None, start_ms: int | None = None
    ) -> KnownRun:
        tags = {"sweep": self._sweep} | ({} if parent is None else {PARENT: parent.run_id})
        run = connection.create(payload, tags, start_ms or _now_ms())
        self._runs[payload.identity] = run
        return run

    def _adopt(self, connection: Connection, run: KnownRun, parent: KnownRun) -> None:
        """Hang a run back into the tree when somebody deleted its parent."""
        if run.tags.get(PARENT) != parent.run_id:
            connection.tag(run, PARENT, parent.run_id)

    def _with_sweep(self, payload: Payload) -> Payload:
        """The sweep's own parameters repeated, so that no filter needs the tree. They are no part of the digest."""
        own = sweep_payload(self._sweep, self._parameters)
        parameters, texts = {**own.parameters, **payload.parameters}, {**own.texts, **payload.texts}
        return replace(payload, parameters=parameters, texts=texts)


def _identity(run: KnownRun) -> str:
    kind = run.tags.get("kind", "")
    return f"{kind}:{run.tags.get({CELL: 'cell', TRIAL: 'measurement'}.get(kind, ''), '')}"


def _reason(error: BaseException) -> str:
    """What lies at the root of it, in one short line without credentials."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = masked(" ".join(str(error).split()) or type(error).__name__)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _now_ms() -> int:
    return int(time.time() * 1000)
