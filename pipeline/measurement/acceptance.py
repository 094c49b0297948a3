"""How many proposals were accepted, from the row-iterations of counted requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RowIterations(Protocol):
    """An entry per row-iteration of a request, as ``RequestTrace`` has them."""

    @property
    def room(self) -> tuple[int, ...]: ...

    @property
    def proposed(self) -> tuple[int, ...]: ...

    @property
    def tested(self) -> tuple[int, ...]: ...

    @property
    def accepted(self) -> tuple[int, ...]: ...

    @property
    def emitted(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Acceptance:
    """Shares and means; None where there was nothing to divide by.

    From row-iterations with room for γ proposals (a row that proposed nothing counts, as 0 accepted), since those that
    the output limit clamped would count against large γ: ``marginal[i]``, the share with more than i accepted;
    ``conditional[i]``, that as a share of those with more than i tested; ``emitted_per_verification``, E.
    ``clamped_fraction`` is the share of the others. From all row-iterations: ``acceptance_rate`` α = Σaccepted/Σtested,
    ``draft_acceptance_rate`` = Σaccepted/Σproposed, and the means ``proposed_`` and ``accepted_per_iteration``.
    ``acceptance_first`` = ``conditional[0]``.

    ``reaches``, one per row-iteration of any room, are the proposals that the text had a use for: those made, cut where
    the text ends, whose last token no other follows. Were each accepted with probability α, whatever became of the
    others, the row would emit E(α, reach) tokens.
    """

    marginal: tuple[float, ...]
    conditional: tuple[float | None, ...]
    emitted_per_verification: float | None
    clamped_fraction: float
    acceptance_rate: float | None
    draft_acceptance_rate: float | None
    proposed_per_iteration: float
    accepted_per_iteration: float
    reaches: npt.NDArray[np.int64]

    @property
    def acceptance_first(self) -> float | None:
        return self.conditional[0] if self.conditional else None


def acceptance(requests: Iterable[RowIterations], gamma: int) -> Acceptance:
    """Raises ValueError if ``requests`` have no row-iteration."""
    decoded = [r for r in requests if r.emitted]
    if not decoded:
        raise ValueError("no request was decoded in any iteration")
    table = np.concatenate([np.stack([r.room, r.proposed, r.tested, r.accepted, r.emitted], axis=1) for r in decoded])
    _, proposed, tested, accepted, _ = table.sum(axis=0).tolist()
    roomy = table[table[:, 0] >= gamma]
    reached = [int((roomy[:, 3] > i).sum()) for i in range(gamma)]
    tried = [int((roomy[:, 2] > i).sum()) for i in range(gamma)]
    return Acceptance(
        marginal=tuple(count / len(roomy) for count in reached) if len(roomy) else (),
        conditional=tuple(_share(a, t) for a, t in zip(reached, tried, strict=True)) if len(roomy) else (),
        emitted_per_verification=_share(int(roomy[:, 4].sum()), len(roomy)),
        clamped_fraction=1 - len(roomy) / len(table),
        acceptance_rate=_share(accepted, tested),
        draft_acceptance_rate=_share(accepted, proposed),
        proposed_per_iteration=proposed / len(table),
        accepted_per_iteration=accepted / len(table),
        reaches=np.concatenate([_reaches(r) for r in decoded]),
    )


def _reaches(request: RowIterations) -> npt.NDArray[np.int64]:
    """Committed text is the target's own, so that what came after a row began is what could have come at once."""
    left = np.cumsum(np.array(request.emitted, dtype=np.int64)[::-1])[::-1]
    return np.minimum(np.array(request.proposed, dtype=np.int64), left - 1)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
