"""Where an iteration's time goes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pipeline.engines.decoding.recordings import Pauses


@dataclass(frozen=True, slots=True)
class Lap:
    """One iteration's times; the phases sum to ``tau_ms`` exactly. ``start_s`` counts from the start of the run."""

    start_s: float
    tau_draft_ms: float
    tau_verify_ms: float
    tau_overhead_ms: float

    @property
    def tau_ms(self) -> float:
        return self.tau_draft_ms + self.tau_verify_ms + self.tau_overhead_ms


class Clock:
    """Host time of iterations with refills and idle waiting cut out, apportioned to drafting, verification, overhead.

    An iteration lasts from the end of the one before it (its read and what the host committed of it) to its own end, so
    that all a serving loop does is in some iteration, once; after a refill or a wait ``resume`` starts it anew. Within
    it, marks before and after drafting and after the verification forward give τ_d and τ_v, and what is left is τ_o:
    acceptance, the read, the commit, and the host's work before drafting. On CUDA the marks are events of the current
    stream, whose work the read has waited for; on a CPU they are host times. Time in ``pauses`` passes in no phase and
    no run: forwards are recorded where they are first needed, and that is nothing a serving loop does.
    """

    def __init__(self, device: torch.device, pauses: Pauses | None = None) -> None:
        self._pauses = pauses or Pauses()
        self._device = device
        self._cuda = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if self._cuda else []  # type: ignore[no-untyped-call]
        self._marks = [0.0, 0.0, 0.0]
        self._paused_s = [0.0, 0.0, 0.0]
        self._drafted = False
        self._run_start = self._start = self._now()

    def start_run(self) -> None:
        self._run_start = self._start = self._now()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._run_start

    def charge(self, seconds: float) -> None:
        """Count ``seconds`` that were spent on this work before the run, as if they had passed in it."""
        self._run_start -= seconds

    def resume(self) -> None:
        """What happened since the last iteration belongs to none."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
        self._start = self._now()

    def draft_begins(self) -> None:
        """Left out in an iteration that drafts nothing, whose τ_d is 0."""
        self._drafted = True
        self._mark(0)

    def verify_begins(self) -> None:
        self._mark(1)

    def verify_ends(self) -> None:
        self._mark(2)

    def end_iteration(self) -> Lap:
        """The iteration's times; the next one begins here."""
        end = self._now()
        tau_ms = (end - self._start) * 1e3
        draft_ms = self._between_ms(0) if self._drafted else 0.0
        verify_ms = self._between_ms(1)
        lap = Lap(self._start - self._run_start, draft_ms, verify_ms, tau_ms - draft_ms - verify_ms)
        self._start = end
        self._drafted = False
        return lap

    def _mark(self, index: int) -> None:
        if self._cuda:
            self._events[index].record(torch.cuda.current_stream(self._device))
            self._paused_s[index] = self._pauses.seconds
        else:
            self._marks[index] = self._now()

    def _between_ms(self, index: int) -> float:
        if self._cuda:
            paused_s = self._paused_s[index + 1] - self._paused_s[index]
            return float(self._events[index].elapsed_time(self._events[index + 1])) - paused_s * 1e3
        return (self._marks[index + 1] - self._marks[index]) * 1e3

    def _now(self) -> float:
        """Host time in which no pause passes."""
        return time.perf_counter() - self._pauses.seconds
