"""What a round keeps of each of its arms while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.engines.contract import OFF, Schedule
from pipeline.measurement.statistics import Sample
from pipeline.measurement.sums import block_sums, unit_sums
from pipeline.records.target import Candidate, Draft
from pipeline.records.trace import Block


@dataclass
class Attempt:
    """What one arm gave in one go at a block."""

    blocks: list[Block] = field(default_factory=list)
    near_ties: int = 0


@dataclass
class Arm:
    """What one arm has measured so far; ``candidate`` None is the baseline."""

    candidate: Candidate | None
    blocks: list[Block] = field(default_factory=list)
    set_aside: list[Block] = field(default_factory=list)
    near_ties: int = 0
    kv_bytes: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    """At the block being measured."""

    @property
    def draft(self) -> Draft | None:
        return None if self.candidate is None else self.candidate.draft

    @property
    def schedule(self) -> Schedule:
        return Schedule.constant(self.candidate.gamma) if self.candidate and self.candidate.draft else OFF

    def beside(self, baseline: Sequence[Block]) -> tuple[Block, ...]:
        """The baseline's passes over the blocks that this arm decoded too."""
        mine = {block.index for block in self.blocks}
        return tuple(block for block in baseline if block.index in mine)

    def sample(self, baseline: Sequence[Block]) -> Sample:
        """What the arm has shown so far."""
        beside = self.beside(baseline)
        return Sample(unit_sums(self.blocks, beside), block_sums(self.blocks, beside))

    def settle(self, kept: int) -> None:
        """Keep one attempt at the block being measured, and set the others aside."""
        for place, attempt in enumerate(self.attempts):
            (self.blocks if place == kept else self.set_aside).extend(attempt.blocks)
        self.near_ties += self.attempts[kept].near_ties
        self.attempts = []
