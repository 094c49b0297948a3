"""Every candidate's speedup before any is run: replay over the baseline's text, timed by short passes over widths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

import numpy as np
import numpy.typing as npt

from pipeline.engines.contract import Engine, Passage, Request
from pipeline.measurement.acceptance import acceptance
from pipeline.measurement.dealing import deal
from pipeline.measurement.identity import forecast_id, prompt_id
from pipeline.measurement.prepare import Prepared
from pipeline.measurement.round import as_failure, measure_baseline, measure_round
from pipeline.measurement.statistics import jackknife_variance
from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast, Forecast, ForecastMethod
from pipeline.records.measurement import Baseline
from pipeline.records.target import Candidate, Draft, Ngram
from pipeline.records.task import RoundResult, RoundTask
from pipeline.records.trace import Iteration, RequestTrace, Trace
from pipeline.search.replay import Script, Walk, looked_up, probed, scored, walk
from pipeline.search.timing import Costs, Curve, Verification, drafting_costs, looking_cost, verification_costs

Floats = npt.NDArray[np.float64]

WIDTH_CYCLES = 5
DRAFT_CYCLES = 6
"""How often a pass goes over its γ; the first time is a warm-up."""
DRAFT_GAMMAS = 3
"""A draft's pass goes over none, its most and one."""
PROBE_ROWS = 120
"""Row-iterations of a probe: a share near ½ is then known to ± .05."""
REPLAYS = 16
"""Walks that are averaged where proposals stand by chance."""
MODEL_ERROR: Mapping[ForecastMethod, float] = {"replay": 0.02, "probe": 0.08}
"""What a forecast is off by beyond the noise of its times: medians of short passes stand for means of long ones."""

Block = Sequence[tuple[str, Script]]
"""The counted requests of a block: prompt id, and what the draft would propose."""


def run_round(engine: Engine, task: RoundTask, prepared: Prepared, progress: Callable[[str], None]) -> RoundResult:
    """Forecast or measure, as ``task.kind`` says."""
    return (forecast_round if task.kind == "forecast" else measure_round)(engine, task, prepared, progress)


def forecast_round(engine: Engine, task: RoundTask, prepared: Prepared, progress: Callable[[str], None]) -> RoundResult:
    """Measure a baseline over the task's prompts and forecast its candidates from it; their drafts are open.

    A draft that fails leaves its candidates without a forecast and with a Failure each, a failed pass over widths all
    of them. If the baseline fails, the result has failures alone.
    """
    key = task.cell.key
    try:
        baseline = measure_baseline(engine, task, prepared, progress)
        blocks = deal(task, prepared)
    except Exception as error:
        return RoundResult(baseline=None, measurements=(), failures=(as_failure(key, None, error),))
    asked = {request.request_id: request for block in blocks for request in block}
    texts = _Texts(asked, baseline)
    passes = _Passes(engine, task, blocks[0])
    failures: list[Failure] = []
    forecasts: list[Forecast] = []
    drafts = list(dict.fromkeys(c.draft for c in task.candidates if c.draft is not None))
    try:
        progress(f"{key.label} · timing widths")
        verification = passes.verification(max((c.gamma for c in task.candidates), default=1))
    except Exception as error:  # a width that does not fit says nothing of the others: the search does without
        failures.append(replace(as_failure(key, None, error), kind="error"))
        drafts = []
    for draft in drafts:
        mine = [c for c in task.candidates if c.draft == draft]
        progress(f"{key.label} · forecasting {draft.name}")
        try:
            method, scripts, drafting = _scripts(engine, task, passes, texts, draft, max(c.gamma for c in mine))
        except Exception as error:
            failures += [as_failure(key, candidate, error) for candidate in mine]
            continue
        costs = Costs(verification, drafting)
        made = (forecast_candidate(c, method, scripts, costs, baseline.tau0_ms) for c in mine)
        forecasts += [forecast for forecast in made if forecast is not None]
    cell = CellForecast(
        id=forecast_id(task.sweep, key),
        sweep=task.sweep,
        cell=key,
        baseline_ids=(baseline.id,),
        provenance=baseline.provenance,
        prompts=len({name for block in texts.blocks() for name in (prompt_id(r.request_id) for r in block)}),
        tau0_ms=baseline.tau0_ms,
        forecasts=tuple(forecasts),
    )
    return RoundResult(baseline=baseline, measurements=(), failures=tuple(failures), forecast=cell)


def forecast_candidate(
    candidate: Candidate, method: ForecastMethod, blocks: Sequence[Block], costs: Costs, tau0_ms: float
) -> Forecast | None:
    """What ``candidate`` would do over ``blocks`` at ``costs``; None where no text has a second token.

    S = Σ emitted / Σ (row-iterations · cost in plain steps), as a measurement over these requests would have it.
    """
    certain = all(script.certain for block in blocks for _, script in block)
    luck = None if certain else np.random.default_rng(candidate.gamma)
    played = [_play(block, candidate.gamma, costs, luck) for _ in range(1 if certain else REPLAYS) for block in blocks]
    prompts = _by_prompt(played, costs.rows)
    if not len(prompts):
        return None
    total = prompts.sum(axis=0)
    left = total - prompts
    known = len(prompts) > 1 and bool((left > 0.0).all())
    accepted = acceptance((w for block in played for w in block.walks), candidate.gamma)
    weights = np.concatenate([block.counted for block in played])
    d, v, h = (float(weights @ np.concatenate([block.phases[i] for block in played]) / weights.sum()) for i in range(3))
    return Forecast(
        candidate=candidate,
        method=method,
        speedup=float(total[0] / total[1]),
        error=hypot(MODEL_ERROR[method], costs.error(d, v, h)),
        spread=sqrt(jackknife_variance(np.log(left[:, 0] / left[:, 1]))) if known else None,
        emitted_per_verification=accepted.emitted_per_verification,
        acceptance_rate=accepted.acceptance_rate,
        proposed_per_iteration=accepted.proposed_per_iteration,
        marginal=accepted.marginal,
        tau_draft_ms=d * tau0_ms,
        tau_verify_ms=v * tau0_ms,
        tau_overhead_ms=h * tau0_ms,
        tau_spec_ms=(d + v + h) * tau0_ms,
    )


@dataclass(frozen=True)
class _Played:
    """One candidate over the counted requests of one block, times in plain steps.

    Iteration k of the block had ``counted[k]`` of them and took ``phases[0..2][k]`` for drafting, verification and
    overhead; ``cost`` is each request's share of the iterations that it took part in.
    """

    names: tuple[str, ...]
    walks: tuple[Walk, ...]
    cost: tuple[float, ...]
    counted: Floats
    phases: tuple[Floats, Floats, Floats]


def _play(block: Block, gamma: int, costs: Costs, luck: np.random.Generator | None) -> _Played:
    """The requests of a block side by side from their first iteration on, as the engine runs them.

    A row that has finished is replaced by a filler, which proposes as some row-iteration of this block did.
    """
    walks = tuple(walk(script, gamma, luck) for _, script in block)
    length = max((len(w.proposed) for w in walks), default=0)
    proposed = np.full((costs.rows, length), -1, dtype=np.int64)
    for row, w in enumerate(walks):
        proposed[row, : len(w.proposed)] = w.proposed
    idle = proposed < 0
    counted = (~idle).sum(axis=0).astype(np.float64)
    if idle.any() and not idle.all():
        proposed[idle] = np.random.default_rng(gamma).choice(proposed[~idle], size=int(idle.sum()))
    most, total = proposed.max(axis=0, initial=0), proposed.sum(axis=0)
    phases = costs.phases(most.astype(np.float64), total.astype(np.float64))
    share = (phases[0] + phases[1] + phases[2]) / costs.rows
    cost = tuple(float(share[: len(w.proposed)].sum()) for w in walks)
    return _Played(tuple(name for name, _ in block), walks, cost, counted, phases)


def _by_prompt(played: Sequence[_Played], rows: int) -> Floats:
    """[prompts, 2]: tokens emitted, and the plain row-iterations that their time would have held."""
    sums: dict[str, list[float]] = {}
    for block in played:
        for name, w, cost in zip(block.names, block.walks, block.cost, strict=True):
            entry = sums.setdefault(name, [0.0, 0.0])
            entry[0] += sum(w.emitted)
            entry[1] += cost * rows
    return np.array([entry for entry in sums.values() if entry[1] > 0.0], dtype=np.float64).reshape(-1, 2)


@dataclass(frozen=True)
class _Texts:
    """What the baseline wrote, by block, beside what was asked of it."""

    asked: Mapping[str, Request]
    baseline: Baseline

    def blocks(self) -> list[list[RequestTrace]]:
        return [[r for r in block.trace.requests if r.counted] for block in self.baseline.trace_blocks]

    def scripts(self, make: Callable[[Request, RequestTrace], Script]) -> list[list[tuple[str, Script]]]:
        return [
            [(prompt_id(text.request_id), make(self.asked[text.request_id], text)) for text in block]
            for block in self.blocks()
        ]

    def passages(self) -> list[Passage]:
        return [Passage(request=self.asked[r.request_id], output=r.output) for block in self.blocks() for r in block]


@dataclass(frozen=True)
class _Passes:
    """Short passes for their times, over the counted requests of a block."""

    engine: Engine
    task: RoundTask
    block: Sequence[Request]

    def verification(self, most: int) -> Verification:
        """Up to γ = ``most``. Where rows are laid end to end a second pass has one row, or all but one, propose."""
        rows = self.task.cell.concurrency
        even = self.over(None, range(most + 1), WIDTH_CYCLES)
        if rows == 1 or not self.engine.facts.end_to_end:
            return verification_costs(even, (), rows)
        some = sorted({1, 2, (most + 1) // 2, most})
        shapes = {0: (0, rows)} | {
            row * gamma: (gamma, row) for row in (1, rows - 1) for gamma in some if gamma <= most
        }
        gammas, proposing = zip(*(shapes[total] for total in sorted(shapes)), strict=True)
        return verification_costs(even, self.over(None, gammas, WIDTH_CYCLES, proposing), rows)

    def trace(
        self, draft: Draft | None, gammas: Sequence[int], cycles: int, proposing: Sequence[int] | None = None
    ) -> Trace:
        """γ goes over ``gammas`` ``cycles`` times, less often where many proposals stand or the context ends."""
        wanted = len(gammas) * cycles + max(gammas) + 2
        longest = self.engine.facts.max_context - max(len(r.tokens) for r in self.block) - self.task.max_gamma - 1
        requests = [
            replace(r, max_new_tokens=min(wanted, longest), ignore_eos=True, stop=(), stop_token_ids=())
            for r in self.block
            if r.counted
        ]
        return self.engine.time_widths(requests, self.task.cell.sampling, draft, gammas, proposing)

    def over(
        self, draft: Draft | None, gammas: Sequence[int], cycles: int, proposing: Sequence[int] | None = None
    ) -> Sequence[Iteration]:
        """Its iterations without the first cycle's."""
        return self.trace(draft, gammas, cycles, proposing).iterations[len(gammas) :]


def _scripts(
    engine: Engine, task: RoundTask, passes: _Passes, texts: _Texts, draft: Draft, most: int
) -> tuple[ForecastMethod, Sequence[Block], Curve]:
    """How the draft's acceptance is known, what it would propose, and what drafting costs."""
    replay = engine.replays(draft)
    if replay == "text":
        assert isinstance(draft, Ngram)
        drafting = looking_cost(passes.over(draft, (0, most), DRAFT_CYCLES))
        return (
            "replay",
            texts.scripts(lambda asked, text: looked_up(asked.tokens, text.output, asked.max_new_tokens, draft, most)),
            drafting,
        )
    gammas = (0, most, 1) if most > 1 else (0, 1)
    if replay == "score":
        drafting = drafting_costs(passes.over(draft, gammas, DRAFT_CYCLES))
        passages = texts.passages()
        stands = engine.score(passages, task.cell.sampling, draft)
        known = {p.request.request_id: chances for p, chances in zip(passages, stands, strict=True)}
        return (
            "replay",
            texts.scripts(lambda asked, _: scored(known[asked.request_id], asked.max_new_tokens, most)),
            drafting,
        )
    cycles = max(DRAFT_CYCLES, -(-PROBE_ROWS // (len(gammas) * task.cell.concurrency)))
    probe = passes.trace(draft, gammas, cycles)
    conditional = acceptance(probe.requests, most).conditional
    if not conditional or conditional[0] is None:
        raise ValueError(f"draft {draft.name}: its probe had no room for a single proposal")
    seen = [share or 0.0 for share in conditional]
    lengths, luck = _lengths(probe, most), np.random.default_rng(0)
    return (
        "probe",
        texts.scripts(lambda asked, text: probed(seen, lengths, len(text.output), asked.max_new_tokens, luck)),
        drafting_costs(probe.iterations[len(gammas) :]),
    )


def _lengths(probe: Trace, most: int) -> list[int]:
    """How many each row proposed where γ = ``most`` was due and there was room for it."""
    return [
        proposed
        for request in probe.requests
        for iteration, room, proposed in zip(
            probe.iterations[request.first_iteration :], request.room, request.proposed, strict=False
        )
        if iteration.gamma == most <= room
    ] or [most]
