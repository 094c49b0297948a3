"""Cells on the simulated machine whose true speedups are known, as different from one another as real ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.engines.contract import Limits
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.engines.truth import true_speedup
from pipeline.measurement.identity import digest
from pipeline.measurement.prepare import Prepared, RenderedPrompt
from pipeline.measurement.protocol import Allotment, allot
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Draft, DraftModel, Ngram, Target

OFF = Candidate(draft=None, gamma=0)
SHORTEST_PROMPT, LONGEST_PROMPT = 12, 60
OUTPUT_TOKENS = (32, 64, 128)
GAMMAS = (1, 2, 4, 8)
ALPHAS = (0.4, 0.9)
MEMORY_BOUND_MS = 0.02
"""What a position costs where no verification is wide enough to be more than one of weights read."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCell:
    """``cell`` as its machine decodes it, with prompts of its own; ``seed`` tells cells apart."""

    seed: int
    machine: Machine
    cell: Cell
    candidates: tuple[Candidate, ...]
    prompt_lengths: tuple[int, int] = (SHORTEST_PROMPT, LONGEST_PROMPT)

    @property
    def drafts(self) -> tuple[Draft, ...]:
        return tuple(dict.fromkeys(c.draft for c in self.candidates if c.draft is not None))

    @property
    def max_gamma(self) -> int:
        return max(candidate.gamma for candidate in self.candidates)

    def allotment(self, protocol: Protocol) -> Allotment:
        """Of as many prompts as the protocol can use."""
        return allot(1 << 20, self.cell.concurrency, protocol)

    def engine(self) -> SimulatedEngine:
        """Opened; its noise goes on from round to round."""
        engine = SimulatedEngine(self.machine)
        engine.open(self.cell.target, self.drafts, Limits(concurrency=self.cell.concurrency, max_gamma=self.max_gamma))
        return engine

    def prepared(self, count: int) -> Prepared:
        """``count`` prompts of different lengths, of no other cell: a prompt's luck follows from its tokens."""
        shortest, longest = self.prompt_lengths
        lengths = np.random.default_rng([self.seed, 1]).integers(shortest, longest + 1, count).tolist()
        prompts = tuple(
            RenderedPrompt(f"p{n:04}", (self.seed, n, *range(length - 2))) for n, length in enumerate(lengths)
        )
        return Prepared(prompts=prompts, content_hash=digest([self.seed, count]))

    def truth(self, candidate: Candidate) -> float:
        """S over all prompts that there could be."""
        return true_speedup(
            self.machine,
            candidate,
            concurrency=self.cell.concurrency,
            prompt_tokens=sum(self.prompt_lengths) / 2,
            output_tokens=self.cell.workload.output_tokens,
        )


def any_cell(seed: int, concurrency: int) -> SimulatedCell:
    """One candidate, whatever it is worth."""
    draws = np.random.default_rng([seed, concurrency])
    machine = replace(_any_machine(draws), draft_ms=float(draws.uniform(0.05, 2.0)), seed=seed)
    draft = DraftModel(name="draft", source="simulated") if draws.random() < 0.5 else Ngram(name="draft")
    candidate = Candidate(draft=draft, gamma=int(draws.integers(1, 9)))
    return SimulatedCell(seed=seed, machine=machine, cell=_cell(draws, concurrency), candidates=(candidate,))


def equal_cell(seed: int, concurrency: int, speedup: float, count: int) -> SimulatedCell:
    """``count`` candidates that all have this true speedup: what a proposal costs makes it so.

    Each is a draft of its own, so that their acceptances are independent: what a search can be fooled by most.
    """
    draws = np.random.default_rng([seed, concurrency, count])
    wanted = {f"draft{n}": (speedup, (int(draws.integers(1, 9)),)) for n in range(count)}
    return _priced(draws, seed, concurrency, wanted)


def graded_cell(seed: int, concurrency: int, speedups: Sequence[float]) -> SimulatedCell:
    """A draft for each of ``speedups``, which is the true one of its best γ of ``GAMMAS``."""
    draws = np.random.default_rng([seed, concurrency, len(speedups), 1])
    return _priced(draws, seed, concurrency, {f"draft{n}": (speedup, GAMMAS) for n, speedup in enumerate(speedups)})


def _priced(
    draws: np.random.Generator, seed: int, concurrency: int, wanted: Mapping[str, tuple[float, tuple[int, ...]]]
) -> SimulatedCell:
    """A cell whose drafts each have the given speedup at the best of the given γ."""
    machine = replace(_any_machine(draws), seed=seed, token_ms=MEMORY_BOUND_MS)
    machine = replace(machine, by_draft={f"alpha.{name}": float(draws.uniform(*ALPHAS)) for name in wanted})
    drafts = {name: DraftModel(name=name, source="simulated") for name in wanted}
    made = SimulatedCell(
        seed=seed,
        machine=machine,
        cell=_cell(draws, concurrency),
        candidates=tuple(
            Candidate(draft=drafts[name], gamma=gamma) for name, (_, gammas) in wanted.items() for gamma in gammas
        ),
    )
    costs = {
        f"draft_ms.{name}": max(_cost_for(made, Candidate(draft=drafts[name], gamma=g), speedup) for g in gammas)
        for name, (speedup, gammas) in wanted.items()
    }
    assert min(costs.values()) > 0.0, "an α this low gains less than was wanted even where drafting is free"
    return replace(made, machine=replace(machine, by_draft={**machine.by_draft, **costs}))


def _any_machine(draws: np.random.Generator) -> Machine:
    """Prompts that differ, texts that end, and every kind of noise: by iteration, by run, across runs, hiccups."""

    def between(low: float, high: float) -> float:
        return float(draws.uniform(low, high))

    return Machine(
        token_ms=between(0.05, 0.5),
        alpha=between(*ALPHAS),
        alpha_decay=between(0.93, 1.0),
        alpha_spread=between(0.05, 0.2),
        miss=between(0.0, 0.3),
        eos_rate=between(0.0, 0.02),
        noise=between(0.01, 0.05),
        block_noise=between(0.0, 0.03),
        shared_noise=between(0.0, 0.05),
        drift=between(0.0, 0.01),
        trend=between(-0.003, 0.003),
        tail=between(0.0, 0.005),
    )


def _cell(draws: np.random.Generator, concurrency: int) -> Cell:
    tokens = int(draws.choice(OUTPUT_TOKENS))
    return Cell(
        target=Target(name="simulated", source="simulated", dtype="float32"),
        workload=Workload(name="made_up", output_tokens=tokens),
        sampling=Sampling(name="greedy"),
        concurrency=concurrency,
        accelerator="simulated",
    )


def _cost_for(made: SimulatedCell, candidate: Candidate, speedup: float) -> float:
    """What one proposal must take, ms, for ``candidate`` to have this true speedup: 1/S is linear in it.

    S falls with it, so that of several γ the one that may take most is the best at that cost, and has this S.
    """
    assert candidate.draft is not None
    name = f"draft_ms.{candidate.draft.name}"

    def inverse(cost_ms: float) -> float:
        by_draft = {**made.machine.by_draft, name: cost_ms}
        return 1.0 / replace(made, machine=replace(made.machine, by_draft=by_draft)).truth(candidate)

    free = inverse(0.0)
    return (1.0 / speedup - free) / (inverse(1.0) - free)
