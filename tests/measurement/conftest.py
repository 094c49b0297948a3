"""A small cell on the simulated machine, and rounds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_rounds import GREEDY, NGRAM, QUIET, SMALL

from pipeline.engines.contract import Limits
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.prepare import Prepared, RenderedPrompt
from pipeline.measurement.round import measure_round
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Target
from pipeline.records.task import RoundResult, RoundTask


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    def make(sampling: Sampling = GREEDY, concurrency: int = 1, output_tokens: int = 24, **workload: object) -> Cell:
        return Cell(
            target=Target(name="sim", source="sim", dtype="float32"),
            workload=Workload(name="chat", output_tokens=output_tokens, **workload),  # type: ignore[arg-type]
            sampling=sampling,
            concurrency=concurrency,
            accelerator="simulated",
        )

    return make


@pytest.fixture
def prepared() -> Prepared:
    """40 prompts of different lengths."""
    prompts = tuple(
        RenderedPrompt(f"chat-{n:03}", tuple(97 + (7 * n + i * i) % 26 for i in range(10 + n))) for n in range(40)
    )
    return Prepared(prompts=prompts, content_hash="0" * 64)


@pytest.fixture
def make_task(make_cell: Callable[..., Cell]) -> Callable[..., RoundTask]:
    def make(cell: Cell | None = None, **changes: object) -> RoundTask:
        cell = cell or make_cell()
        task = RoundTask(
            sweep="sweep-0123456789",
            cell=cell,
            drafts=(NGRAM, SMALL),
            max_gamma=4,
            candidates=(Candidate(draft=NGRAM, gamma=4),),
            kind="search",
            replicate=0,
            first_prompt=0,
            prompt_count=8 * cell.concurrency if cell.concurrency < 4 else 3 * cell.concurrency,
            level=0.95,
            protocol=Protocol(),
        )
        return replace(task, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def engine_for() -> Callable[..., SimulatedEngine]:
    def make(task: RoundTask, machine: Machine = QUIET) -> SimulatedEngine:
        engine = SimulatedEngine(machine)
        limits = Limits(concurrency=task.cell.concurrency, max_gamma=task.max_gamma)
        engine.open(task.cell.target, task.drafts, limits)
        return engine

    return make


@pytest.fixture
def measure(prepared: Prepared, engine_for: Callable[..., SimulatedEngine]) -> Callable[..., RoundResult]:
    def go(task: RoundTask, machine: Machine = QUIET) -> RoundResult:
        return measure_round(engine_for(task, machine), task, prepared, lambda line: None)

    return go
