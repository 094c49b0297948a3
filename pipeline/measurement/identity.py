"""Names that follow from what they name: measurements, requests and seeds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from pipeline.engines.contract import EngineFacts
from pipeline.records.cell import Cell, CellKey
from pipeline.records.measurement import RoundKind
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate

ID_DIGITS = 24


def measurement_id(sweep: str, cell: CellKey, candidate: Candidate | None, kind: RoundKind, replicate: int) -> str:
    """24 hex digits. ``candidate`` None is the round's baseline; off beside off is ``Candidate(None, 0)``."""
    return digest(["measurement", sweep, asdict(cell), _plain(candidate), kind, replicate])


def forecast_id(sweep: str, cell: CellKey) -> str:
    """24 hex digits: a cell is forecast once."""
    return digest(["forecast", sweep, asdict(cell)])


def content_id(
    cell: Cell,
    candidate: Candidate | None,
    kind: RoundKind,
    replicate: int,
    protocol: Protocol,
    content_hash: str,
    first_prompt: int,
    prompt_count: int,
    facts: EngineFacts,
    draft_revision: str,
) -> str:
    """24 hex digits of everything that a measurement's figures depend on, and of nothing else.

    The sweep's name, the paths that a workload was read from (``content_hash`` speaks for them) and whether A/A was
    asked for do not count. Nor does whether CUDA graphs were replayed: it follows from the rest, and shows only in a
    run.
    """
    return digest(
        [
            "content",
            asdict(replace(cell, workload=replace(cell.workload, path=None, context_path=None))),
            _plain(candidate),
            kind,
            replicate,
            asdict(replace(protocol, a_a=False)),
            content_hash,
            first_prompt,
            prompt_count,
            asdict(replace(facts, device_id="", graphs=False)),
            draft_revision,
        ]
    )


def digest(parts: list[Any]) -> str:
    """24 hex digits of the canonical JSON of ``parts``."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def request_id(prompt_id: str, index: int) -> str:
    """The name of one decoding of a prompt: ``index`` counts its seeds and repeats."""
    return f"{prompt_id}#{index}"


def prompt_id(request_id: str) -> str:
    """The prompt that a request decodes: the inverse of ``request_id``."""
    return request_id.rpartition("#")[0]


def seed(prompt_id: str, index: int) -> int:
    """63 bits, the same on every machine and in every arm."""
    return int.from_bytes(hashlib.sha256(f"{prompt_id}#{index}".encode()).digest()[:8]) >> 1


def _plain(candidate: Candidate | None) -> dict[str, Any] | None:
    return None if candidate is None else asdict(candidate)
