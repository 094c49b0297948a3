"""What the tiny target writes with each draft: many short texts, in processes of their own where there are CPUs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers.utils.logging import disable_progress_bar

from pipeline.benchmarks.mutants import broken
from pipeline.benchmarks.tiny import VOCABULARY, Tiny
from pipeline.engines.contract import EngineFacts, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, Head

TOKENS = 6
GAMMA = 2
"""The prefill's token, a block of up to γ + 1, and one more at least, which drafts after a full accept too."""
PROMPT = (3, 5, 1, 3, 5, 6, 1)

Texts = NDArray[np.int8]
"""[N, TOKENS]"""


@dataclass(frozen=True)
class Arm:
    """One combination. ``draft`` None decodes plainly; ``mutant`` "" is the engine as it is."""

    draft: str | None
    sampling: Sampling
    concurrency: int
    mutant: str = ""

    @property
    def name(self) -> str:
        return self.mutant or f"{self.draft or 'plain'} · {self.sampling.name} · C{self.concurrency}"


@dataclass(frozen=True)
class Job:
    """Texts of an arm, one for each seed from ``first`` on."""

    arm: Arm
    first: int
    count: int


@dataclass(frozen=True)
class Done:
    """``texts`` by seed; ``tested`` and ``accepted`` proposals."""

    job: Job
    texts: Texts
    tested: int
    accepted: int


class TinyWriter:
    """Engines over ``tiny`` and all its drafts, on one thread.

    Heads have an engine of their own: an engine that holds one reads every prompt anew, which is a quarter of a short
    text's time, and the other drafts need it read once.
    """

    def __init__(self, tiny: Tiny) -> None:
        disable_progress_bar()
        self._tiny = tiny
        self._headless, self._headed = (DecodingEngine(EngineSettings(device="cpu"), threads=1) for _ in range(2))
        self._open(None, 1)

    @property
    def facts(self) -> EngineFacts:
        return self._headless.facts

    def write(self, job: Job) -> Done:
        arm = job.arm
        draft = self._tiny.drafts[arm.draft] if arm.draft else None
        engine = self._open(draft, arm.concurrency)
        requests = [request(seed, arm.sampling) for seed in range(job.first, job.first + job.count)]
        with broken(arm.mutant, arm.sampling) if arm.mutant else nullcontext():
            trace = engine.run(requests, arm.sampling, draft, Schedule.constant(GAMMA if draft else 0))
        return Done(
            job,
            np.array([text.output for text in trace.requests], dtype=np.int8),
            tested=sum(it.tested for it in trace.iterations),
            accepted=sum(it.accepted for it in trace.iterations),
        )

    def tie_margin(self, seed: int, sampling: Sampling, output: Sequence[int]) -> float:
        """How near to a tie the choice after ``output`` was (``contract.Engine.tie_margin``)."""
        return self._headless.tie_margin(request(seed, sampling), output, sampling)

    def _open(self, draft: Draft | None, concurrency: int) -> DecodingEngine:
        engine = self._headed if isinstance(draft, Head) else self._headless
        drafts = [] if draft is None else [draft]
        engine.open(self._tiny.target, drafts, Limits(concurrency=concurrency, max_gamma=GAMMA))
        return engine


def request(seed: int, sampling: Sampling) -> Request:
    """Greedy text has no seed, so that each seed has a prompt of its own; sampled text is all of one prompt."""
    prompt = tuple(np.random.default_rng(seed).integers(0, VOCABULARY, len(PROMPT)).tolist())
    return Request(
        request_id=str(seed),
        prompt_id="p",
        tokens=prompt if sampling.greedy else PROMPT,
        max_new_tokens=TOKENS,
        seed=seed,
        ignore_eos=True,
    )


_writer: TinyWriter | None = None
"""Of a worker process."""


def _start(tiny: Tiny) -> None:
    global _writer
    _writer = TinyWriter(tiny)


def _write(job: Job) -> Done:
    assert _writer is not None
    return _writer.write(job)


def write_all(tiny: Tiny, writer: TinyWriter, jobs: Sequence[Job], processes: int) -> Iterator[Done]:
    """All ``jobs``, in any order: in ``writer``, or in so many processes that each open ``tiny``."""
    if processes == 1:
        yield from map(writer.write, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(tiny,)) as pool:
        for future in as_completed([pool.submit(_write, job) for job in jobs]):
            yield future.result()
