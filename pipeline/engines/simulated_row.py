"""One request on the simulated machine: its text, its luck, and what became of it."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from pipeline.engines.contract import Request
from pipeline.engines.machine import Machine
from pipeline.engines.stop_strings import Detokenizer, StopWatch, delivered
from pipeline.records.cell import Sampling
from pipeline.records.target import Draft, Ngram
from pipeline.records.trace import FinishReason, RequestTrace

EOS = 257


def is_drawn(draft: Draft | None, sampling: Sampling) -> bool:
    """Whether proposals are drawn from the draft's distribution, rather than being its likeliest tokens."""
    if draft is None or isinstance(draft, Ngram) or sampling.greedy:
        return False
    return draft.draft_sampling == "probabilistic"


class Row:
    """One admitted request: its whole text and the luck of each of its places are fixed by prompt, seed and draft.

    ``draft`` None with ``arbitrary`` proposes what is never accepted.
    """

    def __init__(
        self,
        machine: Machine,
        request: Request,
        sampling: Sampling,
        draft: Draft | None,
        detokenizer: Detokenizer,
        *,
        arbitrary: bool = False,
    ) -> None:
        prompt = int.from_bytes(blake2b(np.array(request.tokens).tobytes(), digest_size=8).digest())
        own = [prompt, *([] if sampling.greedy else [request.seed])]
        proposer = list((draft.name if draft else "off").encode())
        text = np.random.default_rng(own + proposer if is_drawn(draft, sampling) else own)
        size = request.max_new_tokens
        ends = text.random(size) < machine.eos_rate
        self.text = [EOS if end else int(token) for end, token in zip(ends, text.integers(97, 123, size), strict=True)]
        if draft and machine.fail.get(draft.name) == "wrong_text":
            self.text[-1] = ord("!")
        luck = np.random.default_rng([*own, *proposer, 1])
        self.luck, missed = luck.random(size), luck.random(size)
        spread = machine.alpha_spread * (2 * np.random.default_rng([prompt, 2]).random() - 1)
        self.alpha = np.zeros(size)
        if draft:
            self.alpha = chances(machine.of("alpha", draft) + spread, machine.alpha_trend, size)
        miss = machine.of("miss", draft) if draft else 0.0 if arbitrary else 1.0
        self.reach = reaches(missed < miss, machine.match_tokens)
        self.decay = machine.alpha_decay
        self.request = request
        self.watch = StopWatch(request.stop, detokenizer) if request.stop else None
        self.decode = detokenizer.decode
        self.output: list[int] = []
        self.finish: FinishReason = "abandoned"
        self.counts: list[tuple[int, int, int, int, int]] = []
        """(room, proposed, tested, accepted, emitted) of each row-iteration."""

    def emit(self) -> bool:
        """Append the next token; False when it was the last."""
        token = self.text[len(self.output)]
        self.output.append(token)
        if token == EOS and not self.request.ignore_eos:
            self.finish = "eos"
        elif (self.watch and self.watch.ends_with(token)) or token in self.request.stop_token_ids:
            self.finish = "stop"
        elif len(self.output) == self.request.max_new_tokens:
            self.finish = "length"
        return self.finish == "abandoned"

    def step(self, gamma: int) -> None:
        """One block: proposals up to the first rejection or accepted stop, and a token of the target's after them."""
        start = len(self.output)
        room = self.request.max_new_tokens - start - 1
        proposed = min(gamma, room, int(self.reach[start]))
        tested = accepted = 0
        going = True
        while going and tested < proposed:
            tested += 1
            place = start + accepted
            if self.luck[place] >= self.alpha[place] * self.decay**accepted:
                break
            accepted += 1
            going = self.emit()
        if going:
            self.emit()
        self.counts.append((room, proposed, tested, accepted, len(self.output) - start))

    def trace(self, times: tuple[float, float, float], first_iteration: int) -> RequestTrace:
        """``times``: admitted, first token, finished, s."""
        room, proposed, tested, accepted, emitted = zip(*self.counts, strict=True) if self.counts else ((),) * 5
        stops, text, stop_string = self.request.stop, "", ""
        if stops:
            text, stop_string = delivered(self.output, self.finish, stops, self.decode)
        return RequestTrace(
            request_id=self.request.request_id,
            counted=self.request.counted,
            seed=self.request.seed,
            prompt_tokens=len(self.request.tokens),
            output=tuple(self.output),
            finish=self.finish,
            arrival_s=self.request.arrival_s,
            admitted_s=times[0],
            first_token_s=times[1],
            finished_s=times[2],
            first_iteration=first_iteration,
            room=room,
            proposed=proposed,
            tested=tested,
            accepted=accepted,
            emitted=emitted,
            text=text,
            stop_string=stop_string,
        )


def reaches(missed: npt.NDArray[np.bool_], match_tokens: int) -> npt.NDArray[np.int64]:
    """How many places the draft has something to say to from each place on, as far as the next miss: int64 [size].

    Beyond the first place, prefill's, a place is missed where ``missed`` says so, and a match goes on for
    ``match_tokens`` places before the next one is asked. Whatever lies behind the text is matched.
    """
    size = len(missed)
    misses, place = [], 1
    while place < size:
        if missed[place]:
            misses.append(place)
        place += 1 if missed[place] else match_tokens
    ends = np.array([*misses, 2 * size], dtype=np.int64)
    places = np.arange(size)
    return np.asarray(ends[np.searchsorted(ends, places)] - places)


def chances(alpha: float, trend: float, size: int) -> npt.NDArray[np.float64]:
    """α_t at each of ``size`` places of an output that begins at ``alpha``: float64 [size]."""
    return np.clip(alpha + trend * np.arange(size) / 100, 0.0, 1.0)
