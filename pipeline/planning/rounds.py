"""Which rounds a cell is expected to take, and how long each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil

from pipeline.engines import roofline
from pipeline.measurement.protocol import LOOKS, Allotment
from pipeline.measurement.round import WARMUP_PROMPT_TOKENS
from pipeline.planning.speeds import Scene
from pipeline.records.measurement import RoundKind
from pipeline.records.plan import PlannedCandidate, PlannedRound
from pipeline.records.settings import Protocol, SearchSettings
from pipeline.records.shape import ModelShape
from pipeline.records.target import Candidate, Draft, DraftModel
from pipeline.search.forecast import DRAFT_CYCLES, DRAFT_GAMMAS, WIDTH_CYCLES

GUIDED_ROUNDS = 2
"""Search rounds that guided search is expected to take; it ends when no forecast can beat the best."""
STRAGGLING = 1.2
"""Among rows that run together the last one takes longer than the mean."""

Expected = tuple[RoundKind, tuple[Candidate, ...]]
"""A round's kind and candidates."""


def expected_rounds(
    search: SearchSettings, planned: Sequence[PlannedCandidate], *, a_a: bool, confirmations: int
) -> list[Expected]:
    """The rounds of one cell: a search's, the A/A round where asked, and every look of ``confirmations``.

    The most that is expected: an early look may decide, and candidates may fail. ``planned`` in the order of the search
    space.
    """
    best = max(planned, key=lambda each: each.speedup).candidate
    rounds = list(_SEARCHES[search.strategy](search, planned))
    if a_a:
        rounds.append(("aa", (Candidate(draft=None, gamma=0),)))
    return [*rounds, *[("confirmation_look", (best,)) for _ in range(LOOKS * confirmations)]]


def _guided(search: SearchSettings, planned: Sequence[PlannedCandidate]) -> Iterator[Expected]:
    """A forecast of all, then the likely best."""
    yield "forecast", tuple(each.candidate for each in planned)
    ranked = sorted(planned, key=lambda each: -each.speedup)
    most = min(search.max_candidates, GUIDED_ROUNDS * search.candidates_per_round)
    yield from _dealt([each.candidate for each in ranked[:most]], search.candidates_per_round)


def _every(search: SearchSettings, planned: Sequence[PlannedCandidate]) -> Iterator[Expected]:
    """Grid and TPE measure candidates until there are no more, or ``max_candidates``."""
    yield from _dealt([each.candidate for each in planned[: search.max_candidates]], search.candidates_per_round)


def _dealt(candidates: Sequence[Candidate], size: int) -> Iterator[Expected]:
    for start in range(0, len(candidates), size):
        yield "search", tuple(candidates[start : start + size])


_SEARCHES: Mapping[str, Callable[[SearchSettings, Sequence[PlannedCandidate]], Iterator[Expected]]] = {
    "guided": _guided,
    "grid": _every,
    "tpe": _every,
}


@dataclass(frozen=True, kw_only=True)
class Costing:
    """How long rounds of one cell take: every arm decodes every request to its whole length, prompts included."""

    scene: Scene
    planned: Mapping[Candidate, PlannedCandidate]
    shapes: Mapping[str, ModelShape | None]
    protocol: Protocol
    allotment: Allotment
    seeds: int
    prompt_tokens: float
    output_tokens: int

    def rounds(self, expected: Sequence[Expected]) -> tuple[PlannedRound, ...]:
        looks = cycle(self.allotment.looks)
        made = []
        for kind, candidates in expected:
            span = next(looks) if kind == "confirmation_look" else self.allotment.search
            requests = span.count * self.seeds
            blocks = ceil(requests / self.scene.rows)
            seconds = self._forecast_s(blocks) if kind == "forecast" else self._round_s(candidates, blocks)
            made.append(
                PlannedRound(kind=kind, candidates=candidates, requests=requests, blocks=blocks, seconds=seconds)
            )
        return tuple(made)

    def _round_s(self, candidates: Sequence[Candidate], blocks: int) -> float:
        """A B1 … Bk A in every block, after a warm-up of each arm."""
        arms = [None, *candidates]
        warm_up = sum(self._pass_s(arm, self.protocol.warmup_tokens, WARMUP_PROMPT_TOKENS) for arm in arms)
        passes = sum(self._pass_s(arm, self.output_tokens, self.prompt_tokens) for arm in [None, *arms])
        return warm_up + blocks * passes

    def _forecast_s(self, blocks: int) -> float:
        """One pass of the baseline, one over the widths, and one for each draft."""
        widths = max((each.candidate.gamma for each in self.planned.values()), default=1) + 1
        drafts = len({candidate.draft for candidate in self.planned})
        dearest = max((each.tau_spec_ms for each in self.planned.values()), default=self.scene.tau0_ms)
        iterations = WIDTH_CYCLES * widths + drafts * DRAFT_CYCLES * DRAFT_GAMMAS
        timing = ((1 + drafts) * self._prefill_ms(None, self.prompt_tokens) + iterations * dearest) / 1e3
        return (
            self._pass_s(None, self.protocol.warmup_tokens, WARMUP_PROMPT_TOKENS)
            + timing
            + blocks * self._pass_s(None, self.output_tokens, self.prompt_tokens)
        )

    def _pass_s(self, arm: Candidate | None, output_tokens: int, prompt_tokens: float) -> float:
        """One engine run of a block: C prompts, one after another, then iterations of all rows."""
        draft = arm.draft if arm is not None else None
        if arm is None or draft is None:
            iterations, tau = float(output_tokens), self.scene.tau0_ms
        else:
            planned = self.planned[arm]
            straggling = STRAGGLING if self.scene.rows > 1 else 1.0
            iterations = max(arm.gamma + 2, output_tokens) / planned.emitted_per_verification * straggling
            tau = planned.tau_spec_ms
        return (self._prefill_ms(draft, min(prompt_tokens, self.prompt_tokens)) + iterations * tau) / 1e3

    def _prefill_ms(self, draft: Draft | None, tokens: float) -> float:
        """Of every row; a draft model reads the prompt too."""
        scene = self.scene
        shapes = [scene.target]
        own = self.shapes.get(draft.name) if isinstance(draft, DraftModel) else None
        if own is not None:
            shapes.append(own)
        return scene.rows * sum(
            roofline.forward_ms(shape, scene.device, scene.dtype, rows=1, width=tokens) for shape in shapes
        )
