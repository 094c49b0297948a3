"""Random cells whose best candidate is not known beforehand: four kinds of machine, one to five drafts, γ 1 to 12."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from pipeline.benchmarks.search.cells import SimulatedCell
from pipeline.engines.machine import Machine
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.shape import ModelShape
from pipeline.records.target import Candidate, Draft, DraftModel, Eagle3, Target

Kind = Literal["memory_bound", "compute_bound", "experts", "long_context"]
KINDS: tuple[Kind, ...] = ("memory_bound", "compute_bound", "experts", "long_context")

MAX_GAMMA = 12
MOST_DRAFTS = 5

DENSE = ModelShape(
    num_hidden_layers=36,
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
)
"""As Qwen3-8B's."""
EXPERTS = ModelShape(
    num_hidden_layers=48,
    hidden_size=2048,
    intermediate_size=768,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    num_experts=128,
    num_experts_per_tok=8,
)
"""As Qwen3-30B-A3B's."""
WIDE_KV = replace(DENSE, num_key_value_heads=32)
"""Keys and values of every head: a context of 4,000 tokens in eight rows outweighs the weights."""


def regret_cell(seed: int) -> SimulatedCell:
    """The kinds take turns; whatever else is drawn from ``seed``."""
    draws = np.random.default_rng([seed, 77])
    kind = KINDS[seed % len(KINDS)]
    heads = bool(draws.random() < 0.3)
    drafts = tuple(_draft(heads, n) for n in range(int(draws.integers(1, MOST_DRAFTS + 1))))
    machine = replace(_machine(kind, draws), alpha_decay=float(draws.uniform(0.9, 1.0)) if heads else 1.0)
    tau0 = machine.forward_ms(1)
    by_draft = {f"alpha.{draft.name}": float(draws.uniform(0.2, 0.9)) for draft in drafts}
    by_draft |= {
        f"draft_ms.{draft.name}": tau0 * float(np.exp(draws.uniform(np.log(0.004), np.log(0.3)))) for draft in drafts
    }
    concurrency = 8 if kind == "long_context" else int(draws.choice([1, 1, 4, 8]))
    sampled = draws.random() < 0.5
    cell = Cell(
        target=Target(name="simulated", source="simulated"),
        workload=Workload(name=kind, output_tokens=int(draws.choice([32, 48]))),
        sampling=Sampling(name="t1", temperature=1.0) if sampled else Sampling(name="greedy"),
        concurrency=concurrency,
        accelerator="simulated",
    )
    long = kind == "long_context"
    return SimulatedCell(
        seed=seed,
        machine=replace(machine, by_draft=by_draft, seed=seed),
        cell=cell,
        candidates=tuple(Candidate(draft=draft, gamma=gamma) for draft in drafts for gamma in range(1, MAX_GAMMA + 1)),
        prompt_lengths=(3000, 4000) if long else (12, 60),
    )


def _draft(heads: bool, number: int) -> Draft:
    """Heads, whose guesses worsen down a block and can only be probed, or drafts whose acceptance the text decides.

    A cell has one kind, since a machine has one ``alpha_decay``.
    """
    if heads:
        return Eagle3(name=f"head{number}", source="simulated")
    return DraftModel(name=f"model{number}", source="simulated")


def _machine(kind: Kind, draws: np.random.Generator) -> Machine:
    def between(low: float, high: float) -> float:
        return float(draws.uniform(low, high))

    noise = Machine(
        alpha_spread=between(0.05, 0.2),
        noise=between(0.01, 0.04),
        block_noise=between(0.0, 0.02),
        shared_noise=between(0.0, 0.03),
        drift=between(0.0, 0.005),
        tail=between(0.0, 0.005),
        max_context=8192,
    )
    if kind == "compute_bound":  # a forward of one position is at the ridge: every proposal is paid for
        return replace(noise, tau0_ms=10.0, token_ms=between(1.5, 10.0))
    shape = {"memory_bound": DENSE, "experts": EXPERTS, "long_context": WIDE_KV}[kind]
    device = str(draws.choice(["h100", "h200", "a100", "l4"]))
    return replace(noise, device=device, shape=shape)
