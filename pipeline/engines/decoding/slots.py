"""The rows being decoded: their tokens, lengths and limits, and what a verified block adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.engines.contract import Request
from pipeline.engines.stop_strings import Detokenizer, StopWatch
from pipeline.records.cell import Sampling
from pipeline.records.trace import FinishReason

Ints = npt.NDArray[np.int64]

RUNNING = 0
FINISH_REASONS: tuple[FinishReason, ...] = ("abandoned", "eos", "stop", "length")
"""By finish code; a row that is still running when the run ends is abandoned."""
_EOS, _STOP, _LENGTH = 1, 2, 3


@dataclass(frozen=True)
class Committed:
    """What one iteration did to each of its A rows, int64 [A] each; ``finish`` is a code of ``FINISH_REASONS``."""

    room: Ints
    proposed: Ints
    tested: Ints
    accepted: Ints
    emitted: Ints
    finish: Ints

    @property
    def stopped(self) -> Ints:
        """1 where the block ended in an accepted EOS or stop, so that no token of the target's own followed it."""
        return 1 + self.accepted - self.emitted


def seed_bits(seed: int) -> int:
    """The int64 of a seed's lowest 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63


class Slots:
    """Host state of C slots. The active ones are always the first: a batch is rows 0 … ``active`` − 1, without a gap.

    ``tokens`` [C, S], ``n`` committed length, ``end`` last allowed length, ``seeds``; ``request`` is the index of the
    row's request in the run, ``prompt`` how many of its tokens are its prompt's. Lengths and tokens live on the host
    because the one read of an iteration brings all that changes them.

    ``detokenizer`` is needed by requests with stop strings; ``penalizing`` is the sampling of the run if it penalizes
    tokens that a row has already, else None.
    """

    def __init__(
        self,
        slots: int,
        columns: int,
        vocabulary: int,
        eos: Sequence[int],
        detokenizer: Detokenizer | None = None,
        penalizing: Sampling | None = None,
    ) -> None:
        self.tokens = np.zeros((slots, columns), dtype=np.int64)
        self.prompt = np.zeros(slots, dtype=np.int64)
        self.n = np.zeros(slots, dtype=np.int64)
        self.end = np.zeros(slots, dtype=np.int64)
        self.seeds = np.zeros(slots, dtype=np.int64)
        self.request = np.zeros(slots, dtype=np.int64)
        self.counted = np.zeros(slots, dtype=np.bool_)
        self.active = 0
        self.detokenizer = detokenizer
        self.penalizing = penalizing
        self._vocabulary = vocabulary
        self._eos = tuple(eos)
        # Requests share few sets of stops: a table of finish codes by token for each set, and which one a row has.
        self._stop_sets: dict[tuple[bool, tuple[int, ...]], int] = {}
        self._stop_codes = np.zeros((0, vocabulary), dtype=np.int64)
        self._stop_set = np.zeros(slots, dtype=np.int64)
        self._watches: dict[int, StopWatch] = {}  # of the rows that are running and have stop strings

    @property
    def size(self) -> int:
        return len(self.n)

    def seat(self, row: int, index: int, request: Request) -> None:
        """Put request ``index`` of the run in ``row``, its prompt committed."""
        prompt = len(request.tokens)
        self.tokens[row, :prompt] = request.tokens
        self.prompt[row] = self.n[row] = prompt
        self.end[row] = prompt + request.max_new_tokens
        self.seeds[row] = seed_bits(request.seed)
        self.request[row] = index
        self.counted[row] = request.counted
        self._stop_set[row] = self._find_stop_set(request)
        if request.stop:
            if self.detokenizer is None:
                raise ValueError(f"request {request.request_id} has stop strings, and there is nothing to decode with")
            self._watches[row] = StopWatch(request.stop, self.detokenizer)

    def commit_first(self, row: int, token: int) -> int:
        """Commit the token that prefill sampled; returns the row's finish code."""
        self.tokens[row, self.n[row]] = token
        self.n[row] += 1
        code = int(self._stop_codes[self._stop_set[row], token])
        if row in self._watches and self._watches[row].ends_with(token):
            code = code or _STOP
        code = code or (_LENGTH if self.n[row] >= self.end[row] else RUNNING)
        if code:
            self._watches.pop(row, None)
        return code

    def room(self) -> Ints:
        """end − n − 1 [A]: proposals beyond it could not be emitted even if they were all accepted."""
        active = self.active
        return self.end[:active] - self.n[:active] - 1

    def last_tokens(self, width: int) -> Ints:
        """The last ``width`` committed tokens of each active row, [A, width]."""
        n = self.n[: self.active, None]
        last: Ints = self.tokens[np.arange(self.active)[:, None], n - width + np.arange(width)]
        return last

    def commit(self, drafted: Ints, proposed: Ints, count: Ints, next_token: Ints) -> Committed:
        """Add each row's block: its first ``count`` [A] of ``drafted`` [A, W−1] and ``next_token`` [A].

        The block is cut after its first EOS, stop or token that completes a stop string; what lay beyond counts as
        neither tested nor accepted. It cannot overshoot ``end``, for ``proposed`` [A] is at most the room.
        """
        active, width = self.active, drafted.shape[1] + 1
        rows, offsets = np.arange(active), np.arange(width)
        room = self.room()
        block = np.concatenate((drafted, next_token[:, None]), axis=1)
        block[rows, count] = next_token
        codes = self._stop_codes[self._stop_set[:active, None], block]
        codes[offsets > count[:, None]] = RUNNING
        for row, watch in self._watches.items():
            end = watch.first_end(block[row, : count[row] + 1].tolist())
            if end is not None:
                codes[row, end] = codes[row, end] or _STOP
        stop_at = (codes > 0).argmax(axis=1)
        code = codes[rows, stop_at]
        within = (code > 0) & (stop_at < count)  # an accepted proposal ended the block

        emitted = np.where(code > 0, stop_at, count) + 1
        accepted = np.where(within, emitted, count)
        tested = np.where(within, emitted, np.minimum(count + 1, proposed))
        start = self.n[:active, None]
        self.tokens[rows[:, None], start + offsets] = block
        self.n[:active] += emitted
        finish = np.where((code == RUNNING) & (self.n[:active] >= self.end[:active]), _LENGTH, code)
        if self._watches:
            self._watches = {row: watch for row, watch in self._watches.items() if finish[row] == RUNNING}
        return Committed(room=room, proposed=proposed, tested=tested, accepted=accepted, emitted=emitted, finish=finish)

    def output(self, row: int, prompt: int) -> tuple[int, ...]:
        return tuple(self.tokens[row, prompt : self.n[row]].tolist())

    def move(self, source: int, target: int) -> None:
        length = self.n[source]
        self.tokens[target, :length] = self.tokens[source, :length]
        for column in (self.prompt, self.n, self.end, self.seeds, self.request, self.counted, self._stop_set):
            column[target] = column[source]
        if source in self._watches:
            self._watches[target] = self._watches.pop(source)

    def _find_stop_set(self, request: Request) -> int:
        key = (request.ignore_eos, request.stop_token_ids)
        if key not in self._stop_sets:
            codes = np.zeros((1, self._vocabulary), dtype=np.int64)
            codes[0, [token for token in request.stop_token_ids if 0 <= token < self._vocabulary]] = _STOP
            if not request.ignore_eos:
                codes[0, [token for token in self._eos if 0 <= token < self._vocabulary]] = _EOS
            self._stop_sets[key] = len(self._stop_codes)
            self._stop_codes = np.concatenate((self._stop_codes, codes))
        return self._stop_sets[key]
