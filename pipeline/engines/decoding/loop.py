"""The decoding loop: draft, verify, accept, commit, until the last counted request has finished."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.contract import Request
from pipeline.engines.decoding.clock import Clock
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.hidden import HiddenTap
from pipeline.engines.decoding.ledger import Ledger
from pipeline.engines.decoding.penalties import penalize
from pipeline.engines.decoding.prefilled import Prefilled, PrefillMemory
from pipeline.engines.decoding.proposers.contract import Proposal, Proposer
from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.recordings import Pauses
from pipeline.engines.decoding.sampler import accept, choose
from pipeline.engines.decoding.slots import RUNNING, Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.records.cell import Sampling
from pipeline.records.trace import Trace


class Gammas(Protocol):
    """A ``Schedule``, or whatever else says γ; asked once for each iteration."""

    def gamma(self, active: int) -> int:
        """γ for the next iteration, which has ``active`` rows."""


class DecodingLoop:
    """One run over ``slots``. ``proposer`` None decodes plainly: the same loop with nothing on top."""

    def __init__(
        self,
        target: CachedModel,
        slots: Slots,
        proposer: Proposer | None,
        sampling: Sampling,
        schedule: Gammas,
        requests: Sequence[Request],
        memory: PrefillMemory | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self._target = target
        self._slots = slots
        self._proposer = proposer
        self._sampling = sampling
        self._schedule = schedule
        self._requests = requests
        self._waiting = deque(range(len(requests)))
        self._counted_left = sum(request.counted for request in requests)
        self._finished: list[int] = []
        self._clock = Clock(target.device, pauses)
        self._ledger = Ledger(requests, slots.detokenizer)
        self._memory = memory
        self._tap = HiddenTap(target.model, proposer.needs_hidden if proposer else ())

    def run(self) -> Trace:
        """Decode until every counted request has finished; fillers still in their slots are abandoned."""
        self._target.tap = None if self._tap.idle else self._tap
        try:
            with torch.inference_mode():
                self._clock.start_run()
                while self._counted_left:
                    if self._finished or self._may_admit():
                        self._refill()
                        self._clock.resume()
                    elif self._slots.active:
                        self._iterate()
                    else:
                        self._wait()
            wall_s = self._clock.now_s()
        finally:
            self._tap.close()
            self._target.tap = None
        for row in range(self._slots.active):
            if row not in self._finished:
                self._record_finish(row, RUNNING, wall_s)
        return self._ledger.trace(wall_s)

    def _iterate(self) -> None:
        """One pass over all active rows: a block of accepted proposals and one more token for each."""
        slots, clock = self._slots, self._clock
        n = slots.n[: slots.active].copy()
        gamma = self._schedule.gamma(slots.active) if self._proposer else 0

        proposal = self._draft(gamma)

        clock.verify_begins()
        last = to_device(slots.last_tokens(1), self._target.device)
        tokens = last if proposal is None else torch.cat((last, proposal.tokens), dim=1)
        ragged = self._end_to_end(proposal)
        logits = self._target.forward(tokens, n - 1, ragged=ragged)
        clock.verify_ends()

        drafted, proposed, count, next_token = self._accept(logits, proposal, n, ragged)

        committed = slots.commit(drafted, proposed, count, next_token)
        if self._proposer:
            hidden = self._tap.take()
            if hidden is not None and ragged is not None:
                hidden = ragged.spread(hidden[0])
            self._proposer.after_verify(hidden, committed.accepted)
        lap = clock.end_iteration()

        active = slice(slots.active)
        counted = int(slots.counted[active].sum())
        run = self._target.rows_run(len(n)) * tokens.shape[1] if ragged is None else len(ragged.rows)
        self._ledger.iteration(
            lap, gamma, tokens.shape[1], run, slots.request[active].copy(), counted, int(n.sum()), committed
        )
        for row in np.flatnonzero(committed.finish):
            self._finish(int(row), int(committed.finish[row]))

    def _draft(self, gamma: int) -> Proposal | None:
        """Proposals cut to the widest row; None for a plain step: γ = 0, no room, or no row that proposed anything."""
        if self._proposer is None or gamma == 0:
            return None
        dlen = np.minimum(gamma, self._slots.room())
        if not dlen.any():
            return None
        self._clock.draft_begins()
        proposal = self._proposer.propose(self._slots, dlen)
        width = int(proposal.proposed.max())
        if width == 0:
            return None
        q = None if proposal.q is None else proposal.q[:, :width]
        return Proposal(proposal.tokens[:, :width], q, proposal.proposed)

    def _end_to_end(self, proposal: Proposal | None) -> Ragged | None:
        """The tokens to verify, where some rows proposed fewer than others and the target need not run padding."""
        if proposal is None or not self._target.lays_end_to_end:
            return None
        width = proposal.tokens.shape[1] + 1
        lengths = proposal.proposed + 1
        return Ragged.of(lengths, width, self._target.device) if (lengths < width).any() else None

    def _accept(
        self, logits: Tensor, proposal: Proposal | None, n: Ints, ragged: Ragged | None
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Drafted tokens [A, W−1], how many were proposed, how many stand, and the next token: the one read."""
        seeds = self._slots.seeds[: len(n)]
        if self._slots.penalizing:
            padded = logits if ragged is None else ragged.spread(logits[0])  # a penalty is a position's own
            padded = penalize(padded, self._slots, slice(len(n)), None if proposal is None else proposal.tokens)
            logits = padded if ragged is None else ragged.pack(padded)[None]
        if proposal is None:
            nothing = np.zeros(len(n), dtype=np.int64)
            next_token = choose(logits[:, -1], seeds, n, self._sampling).cpu().numpy()
            return np.zeros((len(n), 0), dtype=np.int64), nothing, nothing, next_token
        accepted = accept(logits, proposal, seeds, n, self._sampling, ragged)
        packed = torch.cat((accepted.count[:, None], accepted.next_token[:, None], proposal.tokens), dim=1)
        read: Ints = packed.cpu().numpy()
        return read[:, 2:], proposal.proposed, read[:, 0], read[:, 1]

    def _may_admit(self) -> bool:
        slots = self._slots
        return bool(
            self._waiting
            and slots.active < slots.size
            and self._requests[self._waiting[0]].arrival_s <= self._clock.now_s()
        )

    def _refill(self) -> None:
        """Seat arrived requests in the slots that came free; close what gaps are left, so that batches have none."""
        slots = self._slots
        now_s = self._clock.now_s()
        while self._counted_left and self._waiting and self._requests[self._waiting[0]].arrival_s <= now_s:
            if self._finished:
                row = self._finished.pop()
            elif slots.active < slots.size:
                row = slots.active
                slots.active += 1
            else:
                break
            self._admit(row, self._waiting.popleft())
        for row in sorted(self._finished, reverse=True):
            last = slots.active - 1
            if row != last:
                length = int(slots.n[last])
                self._target.cache.move(last, row, length)
                if self._proposer:
                    self._proposer.move(last, row, length)
                slots.move(last, row)
            slots.active -= 1
        self._finished.clear()

    def _admit(self, row: int, index: int) -> None:
        """Prefill one request in ``row``, and its first token, which is subject to EOS and limits like any other."""
        request = self._requests[index]
        self._ledger.admit(index, self._clock.now_s())
        self._slots.seat(row, index, request)
        prompt = np.array(request.tokens, dtype=np.int64)
        logits = self._read(row, request.tokens, prompt)
        here = slice(row, row + 1)
        if self._slots.penalizing:
            logits = penalize(logits[None, None], self._slots, here, None)[0, 0]
        token = int(choose(logits[None], self._slots.seeds[here], self._slots.n[here], self._sampling))
        self._ledger.first_token(index, self._clock.now_s())
        code = self._slots.commit_first(row, token)
        hidden = self._tap.take()
        if code:
            self._finish(row, code)
        elif self._proposer:
            self._proposer.prefill(row, prompt, hidden)

    def _read(self, row: int, tokens: tuple[int, ...], prompt: Ints) -> Tensor:
        """The logits ``[V]`` after a prompt, whose K/V then stand in ``row``; a known one's time is charged."""
        cache = self._target.cache
        memory = self._memory if self._tap.idle else None  # hidden states are not remembered
        known = memory.recall(tokens) if memory is not None and cache.written else None
        start = time.perf_counter()
        if known is not None:
            cache.restore(row, known.rows)
            self._clock.charge(known.wall_s - (time.perf_counter() - start))
            return known.logits
        logits = self._target.prefill(row, prompt)
        if memory is not None:
            wall_s = time.perf_counter() - start
            memory.keep(tokens, Prefilled(cache.snapshot(row, len(tokens)), logits.clone(), wall_s))
            self._clock.charge(wall_s - (time.perf_counter() - start))  # keeping it is no part of reading it
        return logits

    def _finish(self, row: int, code: int) -> None:
        self._record_finish(row, code, self._clock.now_s())
        self._counted_left -= int(self._slots.counted[row])
        self._finished.append(row)

    def _record_finish(self, row: int, code: int, now_s: float) -> None:
        index = int(self._slots.request[row])
        self._ledger.finish(index, now_s, code, self._slots.output(row, len(self._requests[index].tokens)))

    def _wait(self) -> None:
        """Nothing to decode until the next arrival; no iteration counts this time."""
        arrival_s = self._requests[self._waiting[0]].arrival_s
        time.sleep(max(0.0, arrival_s - self._clock.now_s()))
        self._clock.resume()
