"""A roofline machine in virtual time, for planning, scale tests and fault tests: it decodes nothing, it keeps count."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from pipeline.engines.contract import DraftFacts, EngineFacts, Limits, Request, Schedule
from pipeline.engines.machine import Machine, break_down, machine_from
from pipeline.engines.stop_strings import Detokenizer, StopWatch, delivered
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.target import Draft, Ngram, Scalar, Target, has_extra_weights
from pipeline.records.trace import FinishReason, Iteration, RequestTrace, Trace

BOS, EOS = 256, 257
VOCABULARY = 258


class ByteTokenizer:
    """A token a byte, and a chat template of one line a message."""

    chat_template: str | None = "<|role|>content"
    bos_token_id: int | None = BOS

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        chat_template: str | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        **template_args: Scalar,
    ) -> str:
        if tokenize:
            raise ValueError("this template renders text only")
        lines = [f"<|{message['role']}|>{message['content']}\n" for message in conversation]
        return "".join(lines) + "<|assistant|>" * add_generation_prompt


DETOKENIZER = Detokenizer(decode=ByteTokenizer().decode, silent=lambda token: token >= 256)


class SimulatedEngine:
    """Implements ``contract.Engine`` without a model; the same calls in the same order give the same traces.

    Its text is made up, so that of a sampling only greedy or not matters: filters and penalties change nothing.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._given = self._machine = machine or Machine()
        self._target: Target | None = None
        self._limits = Limits(concurrency=1, max_gamma=0)
        self._runs: Counter[str] = Counter()
        self.tokenizer = ByteTokenizer()

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            engine="simulated",
            device="virtual",
            accelerator="simulated",
            threads=1,
            dtype=self._target.dtype if self._target else "float32",
            torch="",
            transformers="",
            driver="",
            target_revision=blake2b(repr(self._machine).encode(), digest_size=8).hexdigest(),
            vocabulary=VOCABULARY,
            max_context=self._limits.context_tokens or self._machine.max_context,
        )

    def draft_facts(self, draft: Draft) -> DraftFacts:
        weights = self._machine.draft_bytes * has_extra_weights(draft)
        return DraftFacts(revision="simulated", weight_bytes=weights, kv_bytes=weights // 8)

    def open(self, target: Target, drafts: Sequence[Draft], limits: Limits) -> None:
        self._machine = machine_from(target.source, self._given)
        self._target, self._limits = target, limits
        break_down(self._machine, "target", 0)

    def close(self) -> None:
        self._target = None

    def tie_margin(self, request: Request, output: Sequence[int], sampling: Sampling) -> float:
        return self._machine.tie_margin

    def run(self, arrivals: Sequence[Request], sampling: Sampling, draft: Draft | None, schedule: Schedule) -> Trace:
        if self._target is None:
            raise RuntimeError("no target is open")
        if draft is None and schedule.max_gamma:
            raise ValueError("a schedule that speculates needs a draft")
        longest = self.facts.max_context - schedule.max_gamma - 1
        for request in arrivals:
            if not request.tokens or len(request.tokens) + request.max_new_tokens > longest:
                raise InputError(f"request {request.request_id}: prompt and output must take 1 to {longest} tokens")
        name = draft.name if draft else "off"
        break_down(self._machine, name, self._runs[name])
        self._runs[name] += 1
        time.sleep(self._machine.sleep_s)
        noise = np.random.default_rng([self._machine.seed, self._runs.total()])
        return _decode(self._machine, arrivals, sampling, draft, schedule, self._limits.concurrency, noise)


class _Row:
    """One admitted request: its whole text and each proposal's luck are fixed by prompt, seed and draft."""

    def __init__(self, machine: Machine, request: Request, sampling: Sampling, draft: Draft | None) -> None:
        prompt = int.from_bytes(blake2b(np.array(request.tokens).tobytes(), digest_size=8).digest())
        own = [prompt, *([] if sampling.greedy else [request.seed])]
        proposer = list((draft.name if draft else "off").encode())
        sampled = draft is not None and not isinstance(draft, Ngram) and draft.draft_sampling == "probabilistic"
        text = np.random.default_rng(own + proposer if sampled and not sampling.greedy else own)
        size = request.max_new_tokens
        ends = text.random(size) < machine.eos_rate
        self.text = [EOS if end else int(token) for end, token in zip(ends, text.integers(97, 123, size), strict=True)]
        if draft and machine.fail.get(draft.name) == "wrong_text":
            self.text[-1] = ord("!")
        luck = np.random.default_rng([*own, *proposer, 1])
        self.luck, self.missed = luck.random(size), luck.random(size)
        spread = machine.alpha_spread * (2 * np.random.default_rng([prompt, 2]).random() - 1)
        self.alpha = min(1.0, max(0.0, machine.of("alpha", draft) + spread)) if draft else 0.0
        self.decay, self.miss = machine.alpha_decay, machine.of("miss", draft) if draft else 1.0
        self.request = request
        self.watch = StopWatch(request.stop, DETOKENIZER) if request.stop else None
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
        proposed = 0 if self.missed[start] < self.miss else min(gamma, room)
        tested = accepted = 0
        going = True
        while going and tested < proposed:
            tested += 1
            if self.luck[start + accepted] >= self.alpha * self.decay**accepted:
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
            text, stop_string = delivered(self.output, self.finish, stops, DETOKENIZER.decode)
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


def _decode(
    machine: Machine,
    arrivals: Sequence[Request],
    sampling: Sampling,
    draft: Draft | None,
    schedule: Schedule,
    slots: int,
    noise: np.random.Generator,
) -> Trace:
    """The loop in virtual time. Fillers that no slot was free for are left out of the trace."""
    clock = 0.0
    drift = float(np.exp(machine.block_noise * noise.standard_normal()))
    queue, active = deque(enumerate(arrivals)), dict[int, tuple[_Row, float, float, int]]()
    done: dict[int, RequestTrace] = {}
    iterations: list[Iteration] = []
    while any(r.counted for _, r in queue) or any(entry[0].request.counted for entry in active.values()):
        while queue and len(active) < slots and (queue[0][1].arrival_s <= clock or not active):
            place, request = queue.popleft()
            admitted = clock = max(clock, request.arrival_s)
            row = _Row(machine, request, sampling, draft)
            clock += machine.prefill_ms * len(request.tokens) * drift / 1e3
            if row.emit():
                active[place] = (row, admitted, clock, len(iterations))
            else:
                done[place] = row.trace((admitted, clock, clock), len(iterations))
        if not active:
            continue
        rows = [entry[0] for entry in active.values()]
        context = sum(len(row.request.tokens) + len(row.output) for row in rows)
        gamma = schedule.gamma(len(rows))
        for row in rows:
            row.step(gamma)
        last = [row.counts[-1] for row in rows]
        width = 1 + max(proposed for _, proposed, *_ in last)
        slow = drift * float(np.exp(machine.noise * noise.standard_normal()))
        drafting = slow * (width - 1) * (machine.of("draft_ms", draft) if draft else 0.0)
        verifying = slow * machine.forward_ms(len(rows) * width)
        overhead = slow * machine.overhead_ms
        emitted, accepted = sum(counts[4] for counts in last), sum(counts[3] for counts in last)
        proposed = sum(counts[1] for counts in last)
        iterations.append(
            Iteration(
                start_s=clock,
                active=len(rows),
                counted=sum(row.request.counted for row in rows),
                gamma=gamma,
                width=width,
                proposed=proposed,
                tested=sum(counts[2] for counts in last),
                accepted=accepted,
                emitted=emitted,
                stopped=len(rows) + accepted - emitted,
                context_tokens=context,
                pad_fraction=1 - (len(rows) + proposed) / (len(rows) * width),
                tau_draft_ms=drafting,
                tau_verify_ms=verifying,
                tau_overhead_ms=overhead,
                tau_ms=drafting + verifying + overhead,
            )
        )
        clock += iterations[-1].tau_ms / 1e3
        for place, (row, admitted, first, begun) in list(active.items()):
            if row.finish != "abandoned":
                done[place] = row.trace((admitted, first, clock), begun)
                del active[place]
    for place, (row, admitted, first, begun) in active.items():
        done[place] = row.trace((admitted, first, clock), begun)
    return Trace(iterations=tuple(iterations), requests=tuple(done[place] for place in sorted(done)), wall_s=clock)
