"""What a sweep is expected to take and find, before anything is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.records.cell import CellKey
from pipeline.records.measurement import RoundKind
from pipeline.records.target import Candidate


@dataclass(frozen=True, kw_only=True)
class PlannedCandidate:
    """What a roofline and an assumed α make of a candidate.

    ``break_even`` is the least α at which S = 1, None where no α gets there; ``by_alpha`` S at other α. Times are of an
    iteration of all rows.
    """

    candidate: Candidate
    acceptance_rate: float
    speedup: float
    break_even: float | None
    by_alpha: Mapping[float, float]
    emitted_per_verification: float
    tau_draft_ms: float
    tau_verify_ms: float
    tau_spec_ms: float


@dataclass(frozen=True, kw_only=True)
class PlannedRound:
    """A baseline and ``candidates`` over ``requests`` requests in ``blocks`` blocks."""

    kind: RoundKind
    candidates: tuple[Candidate, ...]
    requests: int
    blocks: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """``candidates`` in order of the search space; ``prompts`` the workload has; ``prompt_tokens`` their mean."""

    cell: CellKey
    prompts: int
    prompt_tokens: float
    tau0_ms: float
    candidates: tuple[PlannedCandidate, ...]
    rounds: tuple[PlannedRound, ...]

    @property
    def best(self) -> PlannedCandidate:
        return max(self.candidates, key=lambda planned: planned.speedup)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.rounds)

    @property
    def measurements(self) -> int:
        """Candidates measured, each beside a baseline of its round."""
        return sum(len(each.candidates) for each in self.rounds if each.kind != "forecast")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``load_s`` of all workers together; ``cell_s`` and ``worker_hours`` are the budgets that enforce the plan.

    ``warnings`` say in a line each what will not work as planned.
    """

    device: str
    workers: int
    cells: tuple[PlannedCell, ...]
    load_s: float
    wall_s: float
    cell_s: int
    worker_hours: float
    warnings: tuple[str, ...] = ()

    @property
    def worker_s(self) -> float:
        return self.load_s + sum(cell.seconds for cell in self.cells)
