"""A round: a baseline and several candidates on the same prompts, A B1…Bk A, block after block."""

from __future__ import annotations

import platform
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.engines.contract import Engine, Request
from pipeline.measurement.arms import Arm, Attempt
from pipeline.measurement.dealing import deal
from pipeline.measurement.drift import Shift, calmest, moved, relative, shift
from pipeline.measurement.gates import GateError, check_text, check_trace, text_must_agree
from pipeline.measurement.identity import content_id, measurement_id
from pipeline.measurement.overlap import with_overlap
from pipeline.measurement.prepare import Prepared
from pipeline.measurement.racing import losers
from pipeline.measurement.summary import NothingDecodedError, Observed, summarize
from pipeline.measurement.sums import mean_times, output_tokens_per_s
from pipeline.records.cell import CellKey
from pipeline.records.failure import Failure, FailureKind, InputError
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.provenance import Provenance
from pipeline.records.target import Candidate
from pipeline.records.task import RoundResult, RoundTask
from pipeline.records.trace import Block, Trace

WARMUP_PROMPT_TOKENS = 64
"""Prefill is not what a warm-up is for, and on a CPU it costs more than the tokens after it."""


def measure_round(engine: Engine, task: RoundTask, prepared: Prepared, progress: Callable[[str], None]) -> RoundResult:
    """Measure ``task`` on an engine that has its target and drafts open.

    Every arm decodes the same requests in blocks of C; the order of arms turns round at every other block; a warm-up of
    each arm is thrown away first. A block whose baseline moved beyond its noise is measured again, all arms of it; the
    first calm attempt counts, or else the calmest, and the others are set aside. A search drops candidates that are
    surely behind the best (``racing``). A candidate that fails is dropped with
    a Failure while the others go on; if the baseline fails, or no candidate is left, the result has failures alone.
    Raises ValueError for a task that ``prepared`` does not fit.
    """
    blocks = deal(task, prepared)
    return _Round(engine, task, prepared).measure(blocks, progress)


def measure_baseline(engine: Engine, task: RoundTask, prepared: Prepared, progress: Callable[[str], None]) -> Baseline:
    """One pass of plain decoding over ``task``'s requests, for its text and times. Raises what the engine raises."""
    return _Round(engine, replace(task, candidates=()), prepared).baseline_alone(deal(task, prepared), progress)


def as_failure(cell: CellKey, candidate: Candidate | None, error: Exception) -> Failure:
    """``error`` as a record, its first line as the message and the traceback as details."""
    lines = str(error).strip().splitlines()
    kind = _kind(error)
    message = lines[0] if lines else type(error).__name__
    return Failure(
        cell=cell,
        candidate=candidate,
        kind=kind,
        message=message if kind in ("refused", "gate") else f"{type(error).__name__}: {message}",
        details="" if kind == "refused" else "".join(traceback.format_exception(error)),
    )


class _Round:
    def __init__(self, engine: Engine, task: RoundTask, prepared: Prepared) -> None:
        self._engine = engine
        self._task = task
        self._prepared = prepared
        self._baseline = Arm(None)
        self._arms = [Arm(candidate) for candidate in task.candidates]
        self._failures: list[Failure] = []
        self._kept: list[Shift] = []
        self._lost: list[Arm] = []
        self._remeasured = self._drifted = 0

    def measure(self, blocks: Sequence[tuple[Request, ...]], progress: Callable[[str], None]) -> RoundResult:
        label = self._task.cell.key.label
        try:
            progress(f"{label} · warming up")
            self._warm_up(self._baseline, blocks[0])
            self._each(self._arms, lambda arm: self._warm_up(arm, blocks[0]))
            for index, requests in enumerate(blocks):
                count = len(self._arms)
                arms = f"{count} candidate{'s' * (count != 1)}"
                where = f"{label} · block {index + 1}/{len(blocks)}"
                progress(f"{where} · {arms} beside the baseline")
                self._measure_block(index, requests, where, progress)
                if self._task.candidates and not (self._arms or self._lost):
                    return RoundResult(baseline=None, measurements=(), failures=tuple(self._failures))
                if index < len(blocks) - 1:
                    self._drop_losers()
            baseline = self._baseline_record()
        except Exception as error:
            self._failures.append(as_failure(self._task.cell.key, None, error))
            return RoundResult(baseline=None, measurements=(), failures=tuple(self._failures))
        measurements: list[Measurement] = []
        order = {candidate: place for place, candidate in enumerate(self._task.candidates)}
        self._arms = sorted([*self._arms, *self._lost], key=lambda arm: order[arm.candidate] if arm.candidate else 0)
        self._each(self._arms, lambda arm: measurements.append(self._measurement(arm, baseline)))
        return RoundResult(
            baseline=baseline if measurements or not self._task.candidates else None,
            measurements=tuple(measurements),
            failures=tuple(self._failures),
        )

    def baseline_alone(self, blocks: Sequence[tuple[Request, ...]], progress: Callable[[str], None]) -> Baseline:
        """One pass over ``blocks``: nothing is beside it that a second pass would have to enclose."""
        self._warm_up(self._baseline, blocks[0])
        for index, requests in enumerate(blocks):
            progress(f"{self._task.cell.key.label} · block {index + 1}/{len(blocks)} · the baseline alone")
            self._baseline.attempts.append(Attempt())
            self._run(self._baseline, index, 0, requests)
            self._baseline.settle(0)
        return self._baseline_record()

    def _each(self, arms: Sequence[Arm], work: Callable[[Arm], None]) -> None:
        """Do ``work`` for each candidate's arm; one that raises is dropped from the round."""
        for arm in list(arms):
            try:
                work(arm)
            except Exception as error:
                self._failures.append(as_failure(self._task.cell.key, arm.candidate, error))
                self._arms.remove(arm)

    def _drop_losers(self) -> None:
        """In a search, go on without candidates that are surely behind; what they did so far is their measurement."""
        if self._task.kind != "search" or not self._task.racing or len(self._arms) < 2:
            return
        samples = {place: arm.sample(self._baseline.blocks) for place, arm in enumerate(self._arms)}
        lost = losers(samples, self._task.cell.concurrency)
        self._lost += [arm for place, arm in enumerate(self._arms) if place in lost]
        self._arms = [arm for place, arm in enumerate(self._arms) if place not in lost]

    def _warm_up(self, arm: Arm, block: Sequence[Request]) -> None:
        """Run the heads of a block's prompts for a few tokens: room enough for a verification of full width.

        Prompt lookup that finds nothing in them makes none; then its first block warms up on its own account.
        """
        tokens = max(self._task.protocol.warmup_tokens, arm.schedule.max_gamma + 2)
        requests = [
            replace(r, tokens=r.tokens[:WARMUP_PROMPT_TOKENS], max_new_tokens=min(tokens, r.max_new_tokens))
            for r in block
            if r.counted
        ]
        self._engine.run(requests, self._task.cell.sampling, arm.draft, arm.schedule)

    def _measure_block(
        self, index: int, requests: Sequence[Request], where: str, progress: Callable[[str], None]
    ) -> None:
        """Measure the block until its baseline is calm, as often as the protocol allows.

        The calm attempt is kept, the calmest if none was: see ``drift`` for why that favours no arm.
        """
        protocol = self._task.protocol
        seen: list[Shift | None] = []
        while True:
            seen.append(self._attempt(index, requests))
            drifted = moved(seen[-1], self._kept, protocol)
            if not drifted or len(seen) > protocol.remeasure or (self._task.candidates and not self._arms):
                break
            progress(f"{where} · again: the baseline moved by {relative(seen[-1]):+.0%}")
        kept = calmest(seen) if drifted else len(seen) - 1
        for arm in (self._baseline, *self._arms):
            arm.settle(kept)
        if (shift_kept := seen[kept]) is not None:
            self._kept.append(shift_kept)
        self._remeasured += len(seen) > 1
        self._drifted += drifted

    def _attempt(self, index: int, requests: Sequence[Request]) -> Shift | None:
        """Run all arms, A B1…Bk A; returns how far the second A lies from the first."""
        for arm in (self._baseline, *self._arms):
            arm.attempts.append(Attempt())
        reference = self._run(self._baseline, index, 0, requests)
        places = iter(range(1, len(self._arms) + 1))

        def measure(arm: Arm) -> None:
            trace = self._run(arm, index, next(places), requests)
            if text_must_agree(arm.candidate, self._task.cell.sampling):
                arm.attempts[-1].near_ties += self._compare(requests, trace, reference)

        self._each(self._arms if index % 2 == 0 else self._arms[::-1], measure)
        again = self._run(self._baseline, index, len(self._task.candidates) + 1, requests)
        self._compare(requests, again, reference)
        return shift(reference, again)

    def _run(self, arm: Arm, index: int, place: int, requests: Sequence[Request]) -> Trace:
        trace = self._engine.run(requests, self._task.cell.sampling, arm.draft, arm.schedule)
        check_trace(trace, requests, arm.schedule)
        if arm.draft is not None:
            arm.kv_bytes = max(arm.kv_bytes, self._engine.draft_facts(arm.draft).kv_bytes)
        trace = with_overlap(trace, {request.prompt_id: request.tokens for request in requests})
        arm.attempts[-1].blocks.append(Block(index=index, place=place, trace=trace))
        return trace

    def _compare(self, requests: Sequence[Request], trace: Trace, reference: Trace) -> int:
        task = self._task
        return check_text(self._engine, requests, trace, reference, task.cell.sampling, task.protocol)

    def _baseline_record(self) -> Baseline:
        task, blocks = self._task, tuple(self._baseline.blocks)
        if not any(iteration.counted for block in blocks for iteration in block.trace.iterations):
            raise NothingDecodedError("every request ended at its first token; there is no iteration to time")
        return Baseline(
            id=measurement_id(task.sweep, task.cell.key, None, task.kind, task.baseline_replicate),
            sweep=task.sweep,
            cell=task.cell.key,
            replicate=task.baseline_replicate,
            round_kind=task.kind,
            provenance=self._provenance(""),
            tau0_ms=mean_times(blocks).tau_ms,
            output_tokens_per_s=output_tokens_per_s(blocks),
            trace_blocks=blocks,
            set_aside=tuple(self._baseline.set_aside),
        )

    def _measurement(self, arm: Arm, baseline: Baseline) -> Measurement:
        task, candidate = self._task, arm.candidate
        assert candidate is not None
        assert task.kind != "forecast"
        facts = None if candidate.draft is None else self._engine.draft_facts(candidate.draft)
        revision = facts.revision if facts else ""
        forecast = next((f for f in task.forecasts if f.candidate == candidate), None)
        summary = summarize(
            arm.blocks,
            arm.beside(baseline.trace_blocks),
            gamma=candidate.gamma,
            concurrency=task.cell.concurrency,
            level=task.level,
            observed=Observed(
                near_ties=arm.near_ties,
                draft_weight_bytes=facts.weight_bytes if facts else 0,
                draft_kv_bytes=arm.kv_bytes,
                remeasured_blocks=self._remeasured,
                drifted_blocks=self._drifted,
                raced_out=arm in self._lost,
                speedup_forecast=None if forecast is None else forecast.speedup,
                emitted_forecast=None if forecast is None else forecast.emitted_per_verification,
            ),
        )
        return Measurement(
            id=measurement_id(task.sweep, task.cell.key, candidate, task.kind, task.replicate),
            content_id=content_id(
                task.cell,
                candidate,
                task.kind,
                task.replicate,
                task.protocol,
                self._prepared.content_hash,
                task.first_prompt,
                task.prompt_count,
                self._engine.facts,
                revision,
            ),
            sweep=task.sweep,
            kind=task.kind,
            cell=task.cell.key,
            candidate=candidate,
            replicate=task.replicate,
            baseline_ids=(baseline.id,),
            parts=(),
            provenance=self._provenance(revision),
            metrics=summary.metrics,
            marginal=summary.marginal,
            conditional=summary.conditional,
            by_output_position=summary.by_output_position,
            by_context=summary.by_context,
            unit_sums=summary.unit_sums,
            block_sums=summary.block_sums,
            trace_blocks=tuple(arm.blocks),
            set_aside=tuple(arm.set_aside),
        )

    def _provenance(self, draft_revision: str) -> Provenance:
        facts = self._engine.facts
        return Provenance(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            device=facts.device,
            accelerator=facts.accelerator,
            threads=facts.threads,
            dtype=facts.dtype,
            engine=facts.engine,
            python=platform.python_version(),
            torch=facts.torch,
            transformers=facts.transformers,
            driver=facts.driver,
            target_revision=facts.target_revision,
            draft_revision=draft_revision,
            device_id=facts.device_id,
            graphs=facts.graphs,
        )


def _kind(error: Exception) -> FailureKind:
    """Out of memory is known by its class's name, or by what an allocator says: torch may not be importable here."""
    if isinstance(error, InputError):
        return "refused"
    if isinstance(error, GateError | NothingDecodedError):
        return "gate"
    names = {cls.__name__ for cls in type(error).__mro__}
    said = isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
    return "out_of_memory" if "MemoryError" in names or "OutOfMemoryError" in names or said else "error"
