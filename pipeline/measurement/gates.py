"""What fails a measurement instead of being reported by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from pipeline.engines.contract import Engine, Request, Schedule
from pipeline.records.cell import Sampling
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Ngram
from pipeline.records.trace import Iteration, RequestTrace, Trace

PHASES_TOLERANCE = 1e-6
SAMPLED_TIE = 0.1
"""A difference of x in every logit moves a probability p by at most about x · p, and draws fall where p is small."""


class GateError(ValueError):
    """The engine's account of a run contradicts itself, or its text the baseline's: no figure of it can be trusted."""


def check_trace(trace: Trace, requests: Sequence[Request], schedule: Schedule) -> None:
    """Hold a run's rows against each other and against what was asked. Raises GateError at the first contradiction."""
    by_id = {request.request_id: request for request in requests}
    given = [row.request_id for row in trace.requests]
    order = {request.request_id: place for place, request in enumerate(requests)}
    _hold(len(order) == len(requests), "two requests have one id")
    _hold(all(name in order for name in given), "a request was decoded that was not asked for")
    places = [order[name] for name in given]
    _hold(places == sorted(set(places)), "requests are not in the order given")
    missing = [r.request_id for r in requests if r.counted and r.request_id not in set(given)]
    _hold(not missing, f"counted requests are missing: {missing[:3]}")
    for row in trace.requests:
        _check_request(row, by_id[row.request_id])
    for index, iteration in enumerate(trace.iterations):
        _check_iteration(index, iteration, schedule)
    emitted = sum(i.emitted for i in trace.iterations)
    expected = sum(i.active + i.accepted - i.stopped for i in trace.iterations)
    _hold(emitted == expected, f"{emitted} tokens were emitted where row-iterations and acceptances give {expected}")
    _check_rows_against_iterations(trace, schedule)


def text_must_agree(candidate: Candidate | None, sampling: Sampling) -> bool:
    """Whether a candidate's text equals the baseline's: greedy decoding, no draft, or one-hot proposals."""
    draft = None if candidate is None else candidate.draft
    return sampling.greedy or draft is None or isinstance(draft, Ngram) or draft.draft_sampling == "greedy"


def check_text(
    engine: Engine, requests: Sequence[Request], trace: Trace, reference: Trace, sampling: Sampling, protocol: Protocol
) -> int:
    """Compare each counted request's text with the reference's; returns how many differ, at a near-tie only.

    The first difference of a request is allowed where ``engine.tie_margin`` there is at most ``protocol.tie_margin``
    (``tie_margin_low_precision`` below fp32), a gap of logits; sampled, where the margin is a probability, at most
    ``SAMPLED_TIE`` of it. Raises GateError for any other difference.
    """
    low_precision = engine.facts.dtype != "float32"
    allowed = protocol.tie_margin_low_precision if low_precision else protocol.tie_margin
    if not sampling.greedy:
        allowed *= SAMPLED_TIE
    asked = {request.request_id: request for request in requests}
    wanted: Mapping[str, tuple[int, ...]] = {row.request_id: row.output for row in reference.requests if row.counted}
    near_ties = 0
    for row in trace.requests:
        if not row.counted or row.output == wanted[row.request_id]:
            continue
        expected = wanted[row.request_id]
        pairs = zip(row.output, expected, strict=False)
        at = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        where = f"request {row.request_id}"
        if at is None:
            raise GateError(f"{where}: one text ends after {len(row.output)} tokens, the baseline's {len(expected)}")
        margin = engine.tie_margin(asked[row.request_id], expected[:at], sampling)
        if not margin <= allowed:
            raise GateError(
                f"{where}: token {at} is {row.output[at]}, the baseline's {expected[at]}, and no tie "
                f"(margin {margin:.3g} > {allowed:g})"
            )
        near_ties += 1
    return near_ties


def _check_request(row: RequestTrace, request: Request) -> None:
    where = f"request {row.request_id}"
    lengths = {len(values) for values in (row.room, row.proposed, row.tested, row.accepted, row.emitted)}
    _hold(len(lengths) == 1, f"{where}: its rows differ in length")
    _hold(row.counted == request.counted and row.seed == request.seed, f"{where}: not the request that was asked for")
    _hold(row.prompt_tokens == len(request.tokens), f"{where}: {row.prompt_tokens} prompt tokens were counted")
    _hold(
        len(row.output) == 1 + sum(row.emitted),
        f"{where}: {len(row.output)} tokens of output, 1 + {sum(row.emitted)} emitted",
    )
    _hold(len(row.output) <= request.max_new_tokens, f"{where}: {len(row.output)} tokens, over its limit")
    if row.finish == "length":
        _hold(len(row.output) == request.max_new_tokens, f"{where}: said to be full at {len(row.output)} tokens")
    _hold(not row.counted or row.finish != "abandoned", f"{where}: was counted and never finished")
    if row.stop_string:
        _hold(row.stop_string in request.stop, f"{where}: ended by {row.stop_string!r}, which was not asked for")
        _hold(row.finish in ("stop", "eos"), f"{where}: {row.finish} at stop string {row.stop_string!r}")
    held = [stop for stop in request.stop if stop in row.text]
    _hold(not held, f"{where}: its text holds stop string {held[:1]}")
    done = 1
    last = len(row.emitted) - 1
    columns = zip(row.room, row.proposed, row.tested, row.accepted, row.emitted, strict=True)
    for k, (room, proposed, tested, accepted, emitted) in enumerate(columns):
        counts = f"room {room}, proposed {proposed}, tested {tested}, accepted {accepted}, emitted {emitted}"
        _hold(0 <= accepted <= tested <= proposed <= room, f"{where}, row {k}: {counts}")
        # Only the block that ends a request may lack the target's own token: its last accepted proposal was the end.
        ended = k == last and row.finish in ("eos", "stop") and emitted == accepted >= 1
        _hold(emitted == accepted + 1 or ended, f"{where}, row {k}: {counts}")
        # Accepted proposals are a prefix, and nothing is tested past a rejection or an end: so acceptance by position
        # can only fall, and its conditional shares have the right divisor.
        _hold(tested == (accepted if ended else min(accepted + 1, proposed)), f"{where}, row {k}: {counts}")
        _hold(room == request.max_new_tokens - done - 1, f"{where}, row {k}: {counts} after {done} tokens")
        done += emitted


def _check_iteration(index: int, iteration: Iteration, schedule: Schedule) -> None:
    where = f"iteration {index}"
    phases = (iteration.tau_draft_ms, iteration.tau_verify_ms, iteration.tau_overhead_ms)
    _hold(isfinite(iteration.tau_ms) and iteration.tau_ms > 0.0, f"{where}: took {iteration.tau_ms} ms")
    _hold(
        abs(sum(phases) - iteration.tau_ms) <= PHASES_TOLERANCE * iteration.tau_ms,
        f"{where}: phases {phases} ms do not sum to {iteration.tau_ms} ms",
    )
    gamma = schedule.gamma(iteration.active)
    widest = 1 + gamma
    _hold(
        1 <= iteration.width <= widest and iteration.proposed <= gamma * iteration.active,
        f"{where}: width {iteration.width} and {iteration.proposed} proposals where the schedule says gamma {gamma}",
    )
    _hold(iteration.gamma == gamma, f"{where}: gamma {iteration.gamma} where the schedule says gamma {gamma}")
    _hold(
        gamma > 0 or iteration.tau_draft_ms == 0.0,
        f"{where}: {iteration.tau_draft_ms} ms of drafting where the schedule says gamma 0",
    )


def _check_rows_against_iterations(trace: Trace, schedule: Schedule) -> None:
    """Each iteration's counts are the sums of its requests' rows, none of which proposes more than γ."""
    sums = np.zeros((len(trace.iterations), 6), dtype=np.int64)
    gammas = np.array([schedule.gamma(iteration.active) for iteration in trace.iterations], dtype=np.int64)
    for row in trace.requests:
        end = row.first_iteration + len(row.emitted)
        _hold(row.first_iteration >= 0 and end <= len(sums), f"request {row.request_id}: rows of no iteration")
        most = gammas[row.first_iteration : end]
        _hold(bool((np.array(row.proposed) <= most).all()), f"request {row.request_id}: more proposals than gamma")
        ones = [1] * len(row.emitted)
        counted = [int(row.counted)] * len(row.emitted)
        rows = np.array([ones, counted, row.proposed, row.tested, row.accepted, row.emitted], dtype=np.int64)
        sums[row.first_iteration : end] += rows.T
    said = np.array(
        [(i.active, i.counted, i.proposed, i.tested, i.accepted, i.emitted) for i in trace.iterations], dtype=np.int64
    ).reshape(-1, 6)
    wrong = np.flatnonzero((sums != said).any(axis=1))
    if len(wrong):
        at = int(wrong[0])
        raise GateError(
            f"iteration {at}: (active, counted, proposed, tested, accepted, emitted) = {said[at].tolist()}, its "
            f"requests' rows sum to {sums[at].tolist()}"
        )


def _hold(holds: bool, otherwise: str) -> None:
    if not holds:
        raise GateError(otherwise)
