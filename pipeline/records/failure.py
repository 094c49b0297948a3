"""A plain record of what went wrong, so that no exception ever has to be unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.records.cell import CellKey
from pipeline.records.target import Candidate

FailureKind = Literal["out_of_memory", "refused", "gate", "timeout", "worker_died", "error"]

PERMANENT: frozenset[FailureKind] = frozenset({"out_of_memory", "refused", "gate"})
"""Kinds that another try elsewhere would meet again: the candidate is infeasible, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """``candidate`` None: the whole cell's work failed (its model did not load, its prompts do not fit)."""

    cell: CellKey
    candidate: Candidate | None
    kind: FailureKind
    message: str
    details: str = ""
    worker: str = ""


class InputError(ValueError):
    """What the user gave cannot be used: one line that names the file or key and what is allowed. Exit code 2."""
