"""What a run of each kind says: pure functions from records to names, parameters, metrics and tags."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pipeline.records.cell import Cell, CellKey
from pipeline.records.decision import Decision
from pipeline.records.failure import Failure
from pipeline.records.measurement import AcceptanceBin, Measurement
from pipeline.records.target import Candidate

PARAMETER_LIMIT = 6000
TAG_LIMIT = 8000
NAME_LIMIT = 250
"""MLflow's own limits, in characters; beyond them it cuts in silence."""

SWEEP, CELL, TRIAL = "sweep", "cell", "trial"
"""The values of the tag ``kind``."""

_PAYLOAD_VERSION = 1
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./ :-]")
_KIND_ENDINGS = {"search": "", "confirmation_look": " · look", "confirmation": " · confirmation", "aa": " · A/A"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of a metric; ``step`` is the position, or a bin's lowest, for acceptance by one, 0 for all else."""

    name: str
    value: float
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Payload:
    """All that one run says of itself. ``texts`` are artifacts that hold what a limit cut, by path."""

    name: str
    identity: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Point] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits of the content: a run that carries another digest is stale."""
        points = [(point.name, point.value, point.step) for point in self.metrics]
        content = [_PAYLOAD_VERSION, self.name, dict(self.parameters), points, dict(self.tags), dict(self.texts)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def cell_name(key: CellKey) -> str:
    """What tells cells of a sweep apart, the accelerator included."""
    return f"{key.label} · {key.accelerator}"


def cell_payload(key: CellKey, cell: Cell | None) -> Payload:
    """The run of a cell before it is decided. ``cell`` None: only its names are known yet."""
    return _payload(
        name=key.label,
        identity=f"{CELL}:{cell_name(key)}",
        parameters=_cell_parameters(key, cell),
        metrics=_cell_metrics(key, cell),
        tags={"kind": CELL, "cell": cell_name(key)},
    )


def trial_payload(measurement: Measurement, cell: Cell) -> Payload:
    """The run of a measurement: every parameter of its cell and candidate, every metric that is a finite number."""
    key, candidate = measurement.cell, measurement.candidate
    ending = _KIND_ENDINGS[measurement.kind] + (f" {measurement.replicate}" if measurement.replicate else "")
    figures = {f.name: getattr(measurement.metrics, f.name) for f in fields(measurement.metrics)}
    by_position = [
        *_points("acceptance_by_position", measurement.marginal),
        *_points("acceptance_conditional", measurement.conditional),
        *_binned("acceptance_by_output_position", measurement.by_output_position),
        *_binned("acceptance_by_context", measurement.by_context),
    ]
    provenance = {
        f"provenance.{f.name}": str(getattr(measurement.provenance, f.name)) for f in fields(measurement.provenance)
    }
    return _payload(
        name=f"{candidate.label} · {key.label}{ending}",
        identity=f"{TRIAL}:{measurement.id}",
        parameters={
            **_cell_parameters(key, cell),
            **_candidate_parameters(candidate),
            "measurement_kind": measurement.kind,
            "replicate": str(measurement.replicate),
        },
        metrics=[
            *_cell_metrics(key, cell),
            Point(name="gamma", value=candidate.gamma),
            *_figures(figures),
            *by_position,
        ],
        tags={
            "kind": TRIAL,
            "cell": cell_name(key),
            "measurement": measurement.id,
            "measurement_kind": measurement.kind,
            "content_id": measurement.content_id,
            **provenance,
        },
    )


def failure_payload(failure: Failure, cell: Cell | None) -> Payload:
    """The run of a candidate that failed, found again by its cell and candidate."""
    candidate = failure.candidate
    assert candidate is not None
    which = json.dumps([cell_name(failure.cell), _candidate_parameters(candidate)], sort_keys=True)
    identity = f"failure-{hashlib.sha256(which.encode()).hexdigest()[:16]}"
    return _payload(
        name=f"{candidate.label} · {failure.cell.label} · failed",
        identity=f"{TRIAL}:{identity}",
        parameters={**_cell_parameters(failure.cell, cell), **_candidate_parameters(candidate)},
        metrics=[*_cell_metrics(failure.cell, cell), Point(name="gamma", value=candidate.gamma)],
        tags={
            "kind": TRIAL,
            "cell": cell_name(failure.cell),
            "measurement": identity,
            **failure_tags(failure),
        },
    )


def failure_tags(failure: Failure) -> dict[str, str]:
    """Why something failed, as tags."""
    return {
        "failure": failure.kind,
        "failure.message": failure.message,
        "failure.details": failure.details,
        "failure.worker": failure.worker,
    }


def decision_payload(decision: Decision) -> Payload:
    """What a decision adds to its cell's run."""
    figures = {
        name: getattr(decision, name)
        for name in (
            "speedup",
            "speedup_low",
            "speedup_high",
            "acceptance_rate",
            "emitted_per_verification",
            "tau0_ms",
            "tau_spec_ms",
        )
    }
    return _payload(
        name=decision.cell.label,
        identity=f"{CELL}:{cell_name(decision.cell)}",
        metrics=[Point(name="gamma", value=decision.gamma), *_figures(figures)],
        tags={
            "status": decision.status,
            "speculate": str(decision.speculate).lower(),
            "draft": "none" if decision.draft is None else decision.draft.name,
            "method": "none" if decision.draft is None else decision.draft.method,
            "gamma": str(decision.gamma),
            "reason": decision.reason,
            "why": decision.why or "none",
            "measurement": decision.measurement or "none",
            **{f"metric.{name}": "none" for name, value in figures.items() if value is None},
        },
    )


def sweep_payload(sweep: str, parameters: Mapping[str, str]) -> Payload:
    """The run that all others hang from."""
    return _payload(name=sweep, identity=f"{SWEEP}:", parameters=parameters, tags={"kind": SWEEP})


def note(experiment_id: str, decisions: Sequence[Decision], table: str) -> str:
    """The sweep's note in Markdown: the decision table, and filters to paste into or click in MLflow's search box.

    Shortened, visibly, where MLflow would cut it.
    """
    trials = "tags.kind = 'trial' and params.measurement_kind = 'search'"
    wanted = {
        "every cell, best first": "tags.kind = 'cell'",
        "cells that speculate": "tags.kind = 'cell' and tags.status = 'on'",
        "every trial of the searches, best first": trials,
        "confirmations": "params.measurement_kind = 'confirmation'",
        "what failed": "attributes.status = 'FAILED'",
    }
    for workload in sorted({decision.cell.workload for decision in decisions})[:10]:
        wanted[f"trials of {workload}"] = f"tags.kind = 'trial' and params.workload = '{workload}'"
    filters = "".join(
        f"- [{what}](#/experiments/{experiment_id}/runs?searchFilter={quote(text)}"
        f"&orderByKey={quote('metrics.`speedup`')}&orderByAsc=false): `{text}`\n"
        for what, text in wanted.items()
    )
    ending = f"\n**Filters**\n\n{filters}"
    room = TAG_LIMIT - len(ending) - 200
    if len(table) > room:
        kept = table[: table.rfind("\n", 0, room) + 1]
        left = table.count("\n") - kept.count("\n")
        table = f"{kept}\n… {left} more rows in the artifact `decisions.md`\n"
    return table + ending


def fitted(name: str, value: str, limit: int) -> str:
    """``value``, or its beginning and a mark that says how long it was, its hash, and where the whole text is."""
    if len(value) <= limit:
        return value
    short = hashlib.sha256(value.encode()).hexdigest()[:12]
    mark = f"… [cut: {len(value)} characters, sha256 {short}, whole in artifact {artifact_path(name)}]"
    return value[: limit - len(mark)] + mark


def artifact_path(name: str) -> str:
    """Where the whole text of a parameter or tag lies that was too long."""
    return f"long/{_NOT_IN_NAMES.sub('_', name).replace('/', '_')[:100]}.txt"


def milliseconds(created: str, otherwise: int) -> int:
    """ISO 8601 as milliseconds since the epoch; ``otherwise`` for what is no time."""
    try:
        return int(datetime.fromisoformat(created).timestamp() * 1000)
    except ValueError:
        return otherwise


def masked(text: str) -> str:
    """``text`` without the credentials of any URI in it."""
    text = re.sub(r"(\w[\w+.-]*://)[^/@\s'\"]+@", r"\1***@", text)
    return re.sub(r"(?i)([?&;](?:password|passwd|pwd|token|secret|api_?key|sslpassword)=)[^&;\s'\"]+", r"\1***", text)


def _payload(
    *,
    name: str,
    identity: str,
    parameters: Mapping[str, str] | None = None,
    metrics: Iterable[Point] = (),
    tags: Mapping[str, str] | None = None,
) -> Payload:
    """Finite metrics, the rest as tags; names and values that MLflow takes whole; no credentials."""
    points = list(metrics)
    clean_parameters = {_key(key): masked(value) for key, value in (parameters or {}).items()}
    clean_tags = {_key(key): masked(value) for key, value in (tags or {}).items()}
    for point in points:
        if not math.isfinite(point.value):
            at = f".{point.step}" if point.step else ""
            clean_tags[f"metric.{point.name}{at}"] = str(float(point.value))
    texts = {
        artifact_path(key): value
        for values, limit in ((clean_parameters, PARAMETER_LIMIT), (clean_tags, TAG_LIMIT))
        for key, value in values.items()
        if len(value) > limit
    }
    return Payload(
        name=name,
        identity=identity,
        parameters={key: fitted(key, value, PARAMETER_LIMIT) for key, value in clean_parameters.items()},
        metrics=tuple(point for point in points if math.isfinite(point.value)),
        tags={key: fitted(key, value, TAG_LIMIT) for key, value in clean_tags.items()},
        texts=texts,
    )


def _key(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:NAME_LIMIT]


def _cell_parameters(key: CellKey, cell: Cell | None) -> dict[str, str]:
    names = _said({f.name: getattr(key, f.name) for f in fields(key)})
    if cell is None:
        return names
    return {
        **_said({f"target_{f.name}": getattr(cell.target, f.name) for f in fields(cell.target) if f.name != "name"}),
        **_said(
            {f"workload_{f.name}": getattr(cell.workload, f.name) for f in fields(cell.workload) if f.name != "name"}
        ),
        **_said({f.name: getattr(cell.sampling, f.name) for f in fields(cell.sampling) if f.name != "name"}),
        **names,
    }


def _cell_metrics(key: CellKey, cell: Cell | None) -> list[Point]:
    """Numbers to sort by: MLflow sorts parameters as text."""
    points = [Point(name="concurrency", value=key.concurrency)]
    return points if cell is None else [*points, Point(name="temperature", value=cell.sampling.temperature)]


def _candidate_parameters(candidate: Candidate) -> dict[str, str]:
    draft = candidate.draft
    if draft is None:
        return {"draft": "off", "method": "off", "gamma": str(candidate.gamma)}
    own = {f"draft_{f.name}": getattr(draft, f.name) for f in fields(draft) if f.name not in ("name", "method")}
    return {"draft": draft.name, "method": draft.method, **_said(own), "gamma": str(candidate.gamma)}


def _figures(figures: Mapping[str, float | None]) -> list[Point]:
    return [Point(name=name, value=value) for name, value in figures.items() if value is not None]


def _points(name: str, values: Sequence[float | None]) -> list[Point]:
    return [Point(name=name, value=value, step=i) for i, value in enumerate(values, start=1) if value is not None]


def _binned(name: str, bins: Sequence[AcceptanceBin]) -> list[Point]:
    return [Point(name=name, value=b.acceptance_rate, step=b.low) for b in bins if b.acceptance_rate is not None]


def _said(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(dict(value), sort_keys=True, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
