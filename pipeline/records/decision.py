"""What the policy says about one cell, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.records.cell import CellKey
from pipeline.records.target import Draft

Status = Literal["on", "off", "undecided", "failed"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Only ``on`` speculates. ``measurement`` is the id of the confirmation that decided, if one was made.

    ``draft`` and ``gamma`` name the candidate that was confirmed, whatever the status; ``speculate`` says whether
    to use it. ``reason`` is why the status is what it is; ``why`` is why the speedup is, from the ideal one factor by
    factor, and empty where nothing was measured.
    """

    cell: CellKey
    status: Status
    speculate: bool
    draft: Draft | None
    gamma: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    acceptance_rate: float | None
    emitted_per_verification: float | None
    tau0_ms: float | None
    tau_spec_ms: float | None
    reason: str
    measurement: str | None
    why: str = ""
