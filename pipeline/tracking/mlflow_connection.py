"""A connection to one MLflow experiment: where it lies, and the few writes that the view is made of."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from pipeline.records.failure import InputError
from pipeline.tracking.lock import waiting_for
from pipeline.tracking.mlflow_payload import Payload, Point, masked

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Metric, Run
    from mlflow.tracking import MlflowClient

RunStatus = Literal["RUNNING", "FINISHED", "KILLED", "FAILED"]

PARENT = "mlflow.parentRunId"
DIGEST = "digest"

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https", "databricks")
_KIND = "mlflow.experimentKind"
"""Without it the interface guesses whether to show a table of runs or the pages for agents."""
_BATCH = 90
"""Parameters or tags in one call; MLflow takes 100."""
_METRICS = 800
_CONNECT_S = 10


@dataclass
class KnownRun:
    """A run as MLflow has it. ``digest`` is empty until everything of it was written."""

    run_id: str
    status: str
    tags: dict[str, str]
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.tags.get(DIGEST, "")


def tracking_uri(uri: str | None, output_dir: Path) -> str:
    """Where MLflow lies: ``uri``, or SQLite under ``output_dir``. A relative SQLite file lies there as well.

    Raises InputError for a scheme that MLflow does not know.
    """
    root = output_dir.resolve()
    if uri is None:
        return f"sqlite:///{root / 'mlflow.db'}"
    scheme = re.split(r"[:+]", uri, maxsplit=1)[0]
    if scheme not in (*_DATABASES, *_SERVERS) or ":" not in uri.replace("databricks", "databricks:"):
        raise InputError(
            f"tracking.uri: {masked(uri)!r} must begin with one of {', '.join((*_DATABASES, *_SERVERS))}, "
            "or be null for SQLite under output_dir"
        )
    if match := re.fullmatch(r"sqlite:///(?!/)(.+)", uri):
        return f"sqlite:///{root / match[1]}"
    return uri


def ui_command(uri: str) -> str:
    """What to type to look at it, or the address of the server that shows it. Credentials are masked."""
    if uri.startswith(_SERVERS):
        return masked(uri)
    return f"{shlex.quote(sys.executable)} -m mlflow ui --backend-store-uri {shlex.quote(masked(uri))}"


class Connection:
    """An experiment of an MLflow store. Every method may raise whatever MLflow raises.

    Construction makes the schema and the experiment where they are missing. Artifacts of a database without a server
    lie in ``mlartifacts`` under ``output_dir``.
    """

    def __init__(self, uri: str, output_dir: Path, experiment: str) -> None:
        root = output_dir.resolve()
        _be_quiet()
        from mlflow.tracking import MlflowClient

        location: str | None = None
        if uri.startswith(_DATABASES):
            location = (root / "mlartifacts").as_uri()
            root.mkdir(parents=True, exist_ok=True)
            with waiting_for(root / "mlflow.lock"):  # two sweeps must not make the schema at once
                _make_schema(uri, location)
            location = f"{location}/{quote(experiment, safe='')}"
        self._client: MlflowClient = MlflowClient(tracking_uri=uri)
        self.experiment_id: str = self._experiment(experiment, location)

    def answers(self) -> bool:
        """Whether MLflow can be reached now."""
        try:
            self._client.get_experiment(self.experiment_id)
        except Exception:
            return False
        return True

    def runs(self, condition: str) -> Iterator[KnownRun]:
        """All runs of the experiment that are not deleted and that satisfy an MLflow filter."""
        token: str | None = None
        while True:
            page: Sequence[Run] = self._client.search_runs(
                [self.experiment_id], filter_string=condition, max_results=500, page_token=token
            )
            for run in page:
                yield KnownRun(
                    run_id=run.info.run_id,
                    status=run.info.status,
                    tags=dict(run.data.tags),
                    parameters=dict(run.data.params),
                )
            token = getattr(page, "token", None)
            if not token:
                return

    def create(self, payload: Payload, tags: Mapping[str, str], start_ms: int) -> KnownRun:
        """A run that says no more yet than who it is, so that a crash right after leaves nothing unnamed."""
        run = self._client.create_run(
            self.experiment_id, start_time=start_ms, tags={**payload.tags, **tags}, run_name=payload.name
        )
        return KnownRun(run_id=run.info.run_id, status="RUNNING", tags={**payload.tags, **tags})

    def write(self, run: KnownRun, payload: Payload, at_ms: int, *, digest: str = "") -> None:
        """Everything ``payload`` says; parameters the run has already are not logged again.

        ``digest`` is written last of all, so that a run which carries it is whole.
        """
        from mlflow.entities import Param, RunTag

        for path, text in payload.texts.items():
            self._client.log_text(run.run_id, text, path)
        metrics = [_metric(point, at_ms) for point in payload.metrics]
        parameters = [Param(k, v) for k, v in payload.parameters.items() if k not in run.parameters]
        tags = [RunTag(key, value) for key, value in payload.tags.items() if run.tags.get(key) != value]
        while len(metrics) > _METRICS or len(parameters) > _BATCH or len(tags) > _BATCH:
            self._client.log_batch(run.run_id, metrics[:_METRICS], parameters[:_BATCH], tags[:_BATCH])
            metrics, parameters, tags = metrics[_METRICS:], parameters[_BATCH:], tags[_BATCH:]
        if digest:
            tags.append(RunTag(DIGEST, digest))
        if metrics or parameters or tags:
            self._client.log_batch(run.run_id, metrics, parameters, tags)
        run.parameters |= {key: value for key, value in payload.parameters.items() if key not in run.parameters}
        run.tags |= {**payload.tags, **({DIGEST: digest} if digest else {})}

    def tag(self, run: KnownRun, key: str, value: str) -> None:
        self._client.set_tag(run.run_id, key, value)
        run.tags[key] = value

    def reopen(self, run: KnownRun) -> None:
        self._client.update_run(run.run_id, status="RUNNING")
        run.status = "RUNNING"

    def end(self, run: KnownRun, status: RunStatus, end_ms: int | None = None) -> None:
        self._client.set_terminated(run.run_id, status, end_ms or int(time.time() * 1000))
        run.status = status

    def delete(self, run: KnownRun) -> None:
        self._client.delete_run(run.run_id)

    def artifact(self, run: KnownRun, path: Path) -> None:
        self._client.log_artifact(run.run_id, str(path))

    def text(self, run: KnownRun, path: str, text: str) -> None:
        self._client.log_text(run.run_id, text, path)

    def _experiment(self, name: str, location: str | None) -> str:
        found: Experiment | None = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, location, {_KIND: "custom_model_development"}))
            except Exception:  # another sweep of this name may have made it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)


def _metric(point: Point, at_ms: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(point.name, float(point.value), at_ms, point.step)


def _make_schema(uri: str, artifact_root: str) -> None:
    """Once, here: nobody but the driver makes tables. A store that is not there is told apart within seconds."""
    import sqlalchemy
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    timeout = {} if uri.startswith(("sqlite", "mssql")) else {"connect_timeout": _CONNECT_S}
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(uri, connect_args=timeout)
    try:
        there = sqlalchemy.inspect(engine).has_table("experiments")
    finally:
        engine.dispose()
    if not there:
        SqlAlchemyStore(uri, artifact_root)


def _be_quiet() -> None:
    """MLflow's own chatter stays off the terminal, its usage reports at home, and a dead server is noticed soon.

    What goes wrong is raised and reported by the view, in one line and without credentials.
    """
    for variable, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "15"),
    ):
        os.environ.setdefault(variable, value)
    import mlflow  # noqa: F401  (its import configures the loggers that are silenced next)

    for name in ("mlflow", "alembic", "sqlalchemy", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
