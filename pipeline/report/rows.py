"""A decision as the texts of one table row: the same for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.records.decision import Decision, Status

ABSENT = "–"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell's decision, ready to print."""

    cell: str
    status: Status
    draft: str
    gamma: str
    speedup: str
    acceptance_rate: str
    emitted_per_verification: str
    reason: str
    why: str


def rows(decisions: Sequence[Decision]) -> tuple[Row, ...]:
    """A row per decision, in order. The accelerator is named only where the decisions differ in it."""
    mixed = len({decision.cell.accelerator for decision in decisions}) > 1
    return tuple(_row(decision, mixed) for decision in decisions)


def speedup_text(speedup: float | None, low: float | None, high: float | None) -> str:
    """``1.42× (1.31–1.53)``, as far as it is known."""
    if speedup is None:
        return ABSENT
    interval = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return f"{speedup:.2f}×{interval}"


def _row(decision: Decision, mixed: bool) -> Row:
    cell = decision.cell
    return Row(
        cell=f"{cell.label} · {cell.accelerator}" if mixed else cell.label,
        status=decision.status,
        draft=ABSENT if decision.draft is None else decision.draft.name,
        gamma=ABSENT if decision.draft is None else str(decision.gamma),
        speedup=speedup_text(decision.speedup, decision.speedup_low, decision.speedup_high),
        acceptance_rate=_number(decision.acceptance_rate),
        emitted_per_verification=_number(decision.emitted_per_verification),
        reason=decision.reason,
        why=decision.why,
    )


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"
