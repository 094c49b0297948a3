"""``policy.json``: a decision per cell with its evidence, as a serving engine or an export reads it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from pipeline.records.decision import Decision
from pipeline.records.failure import InputError
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.strict import STRICT
from pipeline.records.target import Draft
from pipeline.tracking.atomic import write_atomically

SCHEMA_VERSION = 1

_EVERY_DRAFT_HAS = ("name", "method", "source", "revision")
"""Present for every draft in the file; null where its method has none."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """``created`` is ISO 8601; ``fingerprint`` changes when any decision or the program that made it does.

    ``margin`` and ``constraints`` are what the decisions were judged by; margin None: an older file does not say.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    schema_version: int
    sweep: str
    created: str
    fingerprint: str
    decisions: tuple[Decision, ...]
    margin: float | None = None
    constraints: Constraints = NO_LIMITS


_POLICY = TypeAdapter(Policy)


def fingerprint(decisions: Sequence[Decision], versions: Mapping[str, str] | None = None) -> str:
    """16 hex digits of the decisions' content and of ``versions`` (None: this program's own).

    The order of the decisions and the time they were made do not count.
    """
    content = {
        "schema_version": SCHEMA_VERSION,
        "versions": dict(_own_version() if versions is None else versions),
        "decisions": sorted(json.dumps(_decision(decision), sort_keys=True) for decision in decisions),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def write_policy(
    path: Path,
    sweep: str,
    fingerprint: str,
    decisions: Sequence[Decision],
    created: str,
    margin: float,
    constraints: Constraints,
) -> None:
    """Replace ``path`` whole. Raises OSError when the disk does not take it."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "sweep": sweep,
        "created": created,
        "fingerprint": fingerprint,
        "margin": margin,
        "constraints": asdict(constraints),
        "decisions": [_decision(decision) for decision in decisions],
    }
    write_atomically(path, (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_policy(path: Path) -> Policy:
    """The policy in ``path``. Raises InputError with one line that names the file and the key that is wrong."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version: {found!r}, this program reads {SCHEMA_VERSION}")
    try:
        policy = _POLICY.validate_python(_without_absent(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {where}: {first['msg']}") from None
    for index, decision in enumerate(policy.decisions):
        if decision.speculate != (decision.status == "on"):
            raise InputError(f"{path}: decisions.{index}.speculate: must be true exactly when status is on")
        if decision.speculate and (decision.draft is None or decision.gamma < 1):
            raise InputError(f"{path}: decisions.{index}: status on needs a draft and gamma >= 1")
    return policy


def _own_version() -> Mapping[str, str]:
    try:
        return {"pipeline": version("speculative-decoding-pipeline")}
    except PackageNotFoundError:
        return {"pipeline": "unknown"}


def _decision(decision: Decision) -> dict[str, Any]:
    document = {name: None if _not_finite(value) else value for name, value in asdict(decision).items()}
    document["draft"] = None if decision.draft is None else _draft(decision.draft)
    return document


def _not_finite(value: object) -> bool:
    """JSON knows no such number, and a policy with one in it would be read by nobody."""
    return isinstance(value, float) and not math.isfinite(value)


def _draft(draft: Draft) -> dict[str, Any]:
    parameters = asdict(draft)
    return {name: parameters.get(name) for name in _EVERY_DRAFT_HAS} | parameters


def _without_absent(document: dict[str, Any]) -> dict[str, Any]:
    """The nulls that ``_draft`` wrote for what a method lacks, taken out again: a record has no such field."""
    decisions = document.get("decisions")
    if not isinstance(decisions, list):
        return document
    return document | {
        "decisions": [
            decision | {"draft": {key: value for key, value in draft.items() if value is not None}}
            if isinstance(decision, dict) and isinstance(draft := decision.get("draft"), dict)
            else decision
            for decision in decisions
        ]
    }
