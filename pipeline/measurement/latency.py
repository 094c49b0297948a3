"""What a client sees: when each request's tokens arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.records.trace import Block, RequestTrace, Trace


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Of times in ms; None where there are none."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Times of counted requests, ms.

    ``ttft`` is from a request's admission to its first token: in the closed loop of a block the next request is sent
    when a slot is free, so that no queue is charged. ``tpot`` is (finished − first token) / (tokens − 1) of each
    request with two tokens or more. ``gap`` is the time between successive tokens: those of one iteration arrive
    together, at its end, so that a burst of m is one gap and m − 1 zeros. Refills that stall a row are in its gaps.
    """

    ttft: Percentiles
    tpot: Percentiles
    gap: Percentiles


def latency(blocks: Iterable[Block]) -> Latency:
    ttft: list[float] = []
    tpot: list[float] = []
    gaps: list[float] = []
    for block in blocks:
        for request in block.trace.requests:
            if not request.counted:
                continue
            ttft.append((request.first_token_s - request.admitted_s) * 1e3)
            if len(request.output) > 1:
                tpot.append((request.finished_s - request.first_token_s) * 1e3 / (len(request.output) - 1))
            gaps += _gaps_ms(request, block.trace)
    return Latency(ttft=_percentiles(ttft), tpot=_percentiles(tpot), gap=_percentiles(gaps))


def _gaps_ms(request: RequestTrace, trace: Trace) -> list[float]:
    gaps: list[float] = []
    last_s = request.first_token_s
    for iteration, emitted in zip(trace.iterations[request.first_iteration :], request.emitted, strict=False):
        arrived_s = iteration.start_s + iteration.tau_ms / 1e3
        gaps += [max(0.0, arrived_s - last_s) * 1e3, *[0.0] * (emitted - 1)]
        last_s = arrived_s
    return gaps


def _percentiles(values_ms: Sequence[float]) -> Percentiles:
    if not values_ms:
        return Percentiles(p50=None, p95=None, p99=None)
    p50, p95, p99 = (float(value) for value in np.percentile(values_ms, (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99)
