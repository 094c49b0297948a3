"""What a run is remembered by, written cheaply while it runs and made into a trace afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.engines.contract import Request
from pipeline.engines.decoding.clock import Lap
from pipeline.engines.decoding.slots import FINISH_REASONS, Committed, Ints
from pipeline.engines.stop_strings import Detokenizer, delivered
from pipeline.records.trace import Iteration, RequestTrace, Trace


@dataclass(frozen=True, slots=True)
class _Entry:
    """One iteration; ``request`` [A] and ``counted`` describe its rows before it, ``tokens`` were run, padding too."""

    lap: Lap
    gamma: int
    width: int
    tokens: int
    request: Ints
    counted: int
    context_tokens: int
    committed: Committed


@dataclass(slots=True)
class _Life:
    """What happened to an admitted request; times in seconds since the run began."""

    admitted_s: float
    first_token_s: float = 0.0
    first_iteration: int = 0
    finished_s: float = 0.0
    finish: int = 0
    output: tuple[int, ...] = ()


class Ledger:
    """Rows of arrays while the run lasts: making records is left to ``trace``, for no serving loop would do it.

    ``detokenizer`` is needed by requests with stop strings.
    """

    def __init__(self, requests: Sequence[Request], detokenizer: Detokenizer | None = None) -> None:
        self._requests = requests
        self._detokenizer = detokenizer
        self._entries: list[_Entry] = []
        self._lives: dict[int, _Life] = {}

    def admit(self, index: int, now_s: float) -> None:
        self._lives[index] = _Life(admitted_s=now_s, first_iteration=len(self._entries))

    def first_token(self, index: int, now_s: float) -> None:
        self._lives[index].first_token_s = now_s

    def iteration(
        self,
        lap: Lap,
        gamma: int,
        width: int,
        tokens: int,
        request: Ints,
        counted: int,
        context_tokens: int,
        committed: Committed,
    ) -> None:
        """``tokens`` were run, padding too. ``request`` [A] are the indices of the rows; it is kept, so give a copy."""
        self._entries.append(_Entry(lap, gamma, width, tokens, request, counted, context_tokens, committed))

    def finish(self, index: int, now_s: float, code: int, output: tuple[int, ...]) -> None:
        life = self._lives[index]
        life.finished_s, life.finish, life.output = now_s, code, output

    def trace(self, wall_s: float) -> Trace:
        """Requests that were never admitted (fillers that the run did not need) are left out."""
        per_row: dict[int, list[tuple[int, int, int, int, int]]] = {index: [] for index in self._lives}
        for entry in self._entries:
            done = entry.committed
            columns = (done.room, done.proposed, done.tested, done.accepted, done.emitted)
            for index, row in zip(entry.request.tolist(), np.stack(columns, axis=1).tolist(), strict=True):
                per_row[index].append(tuple(row))
        requests = tuple(self._request(index, self._lives[index], per_row[index]) for index in sorted(self._lives))
        return Trace(iterations=tuple(map(_iteration, self._entries)), requests=requests, wall_s=wall_s)

    def _request(self, index: int, life: _Life, rows: list[tuple[int, int, int, int, int]]) -> RequestTrace:
        request = self._requests[index]
        room, proposed, tested, accepted, emitted = zip(*rows, strict=True) if rows else ((),) * 5
        finish = FINISH_REASONS[life.finish]
        text = stop_string = ""
        if request.stop and self._detokenizer is not None:
            text, stop_string = delivered(life.output, finish, request.stop, self._detokenizer.decode)
        return RequestTrace(
            request_id=request.request_id,
            counted=request.counted,
            seed=request.seed,
            prompt_tokens=len(request.tokens),
            output=life.output,
            finish=finish,
            arrival_s=request.arrival_s,
            admitted_s=life.admitted_s,
            first_token_s=life.first_token_s,
            finished_s=life.finished_s,
            first_iteration=life.first_iteration,
            room=room,
            proposed=proposed,
            tested=tested,
            accepted=accepted,
            emitted=emitted,
            text=text,
            stop_string=stop_string,
        )


def _iteration(entry: _Entry) -> Iteration:
    done = entry.committed
    active = len(entry.request)
    live = active + int(done.proposed.sum())
    return Iteration(
        start_s=entry.lap.start_s,
        active=active,
        counted=entry.counted,
        gamma=entry.gamma,
        width=entry.width,
        proposed=int(done.proposed.sum()),
        tested=int(done.tested.sum()),
        accepted=int(done.accepted.sum()),
        emitted=int(done.emitted.sum()),
        stopped=int(done.stopped.sum()),
        context_tokens=entry.context_tokens,
        pad_fraction=1.0 - live / entry.tokens,
        tau_draft_ms=entry.lap.tau_draft_ms,
        tau_verify_ms=entry.lap.tau_verify_ms,
        tau_overhead_ms=entry.lap.tau_overhead_ms,
        tau_ms=entry.lap.tau_ms,
    )
