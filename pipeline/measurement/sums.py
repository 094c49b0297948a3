"""What each arm emitted and how long it took, by request, prompt and block.

Attribution: an iteration's time is shared equally by its active rows, so that a row-iteration lasts τ_i / active_i. At
C = 1 that is the iteration's time. The first token of a request comes from prefill, is in no iteration and so in no
sum of emitted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.measurement.identity import prompt_id
from pipeline.records.measurement import BlockSums, Unit
from pipeline.records.trace import Block, RequestTrace, Trace


@dataclass(kw_only=True)
class Sums:
    """Σ over row-iterations: tokens emitted, row-iterations, attributed time in ms."""

    emitted: int = 0
    row_iterations: int = 0
    tau_ms: float = 0.0

    def add(self, emitted: int, row_iterations: int, tau_ms: float) -> None:
        self.emitted += emitted
        self.row_iterations += row_iterations
        self.tau_ms += tau_ms

    @property
    def tokens_per_ms(self) -> float:
        """Σemitted / Στ."""
        return self.emitted / self.tau_ms


@dataclass(frozen=True, kw_only=True)
class Times:
    """Mean times in ms and steps of a counted row's iteration (each iteration weighs as many as it had counted rows).

    With all C slots busy, Σemitted/Στ is C · E / ``tau_ms`` exactly, E being emitted tokens per row-iteration.
    """

    tau_ms: float
    tau_draft_ms: float
    tau_verify_ms: float
    tau_overhead_ms: float
    draft_steps: float


@dataclass(kw_only=True)
class _Pair:
    candidate: Sums = field(default_factory=Sums)
    baseline: Sums = field(default_factory=Sums)


def counted_requests(blocks: Iterable[Block]) -> Iterator[RequestTrace]:
    return (request for block in blocks for request in block.trace.requests if request.counted)


def total(blocks: Iterable[Block]) -> Sums:
    """Σ over the counted requests of ``blocks``."""
    sums = Sums()
    for block in blocks:
        for request, tau_ms in attributed_ms(block.trace):
            if request.counted:
                sums.add(sum(request.emitted), len(request.emitted), tau_ms)
    return sums


def attributed_ms(trace: Trace) -> list[tuple[RequestTrace, float]]:
    """Each request's share of the iterations it took part in, Σ τ_i / active_i."""
    shares = np.array([iteration.tau_ms / iteration.active for iteration in trace.iterations])
    return [
        (request, float(shares[request.first_iteration : request.first_iteration + len(request.emitted)].sum()))
        for request in trace.requests
    ]


def mean_times(blocks: Iterable[Block]) -> Times:
    """Raises ValueError if no iteration had a counted row."""
    rows = [
        (i.counted, i.tau_ms, i.tau_draft_ms, i.tau_verify_ms, i.tau_overhead_ms, i.width - 1)
        for block in blocks
        for i in block.trace.iterations
        if i.counted
    ]
    if not rows:
        raise ValueError("no iteration had a counted row")
    table = np.array(rows, dtype=np.float64)
    weights, values = table[:, 0], table[:, 1:]
    tau, draft, verify, overhead, steps = (float(x) for x in weights @ values / weights.sum())
    return Times(tau_ms=tau, tau_draft_ms=draft, tau_verify_ms=verify, tau_overhead_ms=overhead, draft_steps=steps)


def unit_sums(candidate: Iterable[Block], baseline: Iterable[Block]) -> tuple[Unit, ...]:
    """A unit for each prompt that was decoded in an iteration at all, all its seeds, repeats and passes together."""
    pairs: dict[str, _Pair] = {}
    for blocks, in_candidate in ((candidate, True), (baseline, False)):
        for block in blocks:
            for request, tau_ms in attributed_ms(block.trace):
                if request.counted and request.emitted:
                    pair = pairs.setdefault(prompt_id(request.request_id), _Pair())
                    sums = pair.candidate if in_candidate else pair.baseline
                    sums.add(sum(request.emitted), len(request.emitted), tau_ms)
    return tuple(
        Unit(
            prompt_id=name,
            emitted=pair.candidate.emitted,
            row_iterations=pair.candidate.row_iterations,
            tau_ms=pair.candidate.tau_ms,
            baseline_emitted=pair.baseline.emitted,
            baseline_row_iterations=pair.baseline.row_iterations,
            baseline_tau_ms=pair.baseline.tau_ms,
        )
        for name, pair in pairs.items()
    )


def block_sums(candidate: Sequence[Block], baseline: Sequence[Block]) -> tuple[BlockSums, ...]:
    """The mean iteration times of both arms for each block in which both decoded anything, passes together."""
    candidate_ms, baseline_ms = _block_times(candidate), _block_times(baseline)
    return tuple(
        BlockSums(index=index, tau_ms=candidate_ms[index], baseline_tau_ms=baseline_ms[index])
        for index in sorted(candidate_ms.keys() & baseline_ms.keys())
    )


def output_tokens_per_s(blocks: Iterable[Block]) -> float:
    """Output tokens of counted requests per second of wall time, prefill included.

    The first token of each request counts. Fillers' part of a run's wall time is cut out: counted requests are
    charged wall · (their prefill + attributed τ) / (that of all requests). At C = 1 that is the run's wall time.
    """
    tokens, wall_s = 0, 0.0
    for block in blocks:
        busy = {True: 0.0, False: 0.0}
        for request, tau_ms in attributed_ms(block.trace):
            busy[request.counted] += request.first_token_s - request.admitted_s + tau_ms / 1e3
        wall_s += block.trace.wall_s * busy[True] / (busy[True] + busy[False])
        tokens += sum(len(request.output) for request in counted_requests([block]))
    return tokens / wall_s


def _block_times(blocks: Sequence[Block]) -> dict[int, float]:
    by_index: dict[int, list[Block]] = {}
    for block in blocks:
        if any(iteration.counted for iteration in block.trace.iterations):
            by_index.setdefault(block.index, []).append(block)
    return {index: mean_times(mine).tau_ms for index, mine in by_index.items()}
