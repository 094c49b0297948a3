"""A roofline machine in virtual time, for planning, scale tests and fault tests: it decodes nothing, it keeps count."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from pipeline.engines.contract import DraftFacts, EngineFacts, Foretold, Limits, Passage, Request, Schedule
from pipeline.engines.machine import Machine, break_down, machine_from
from pipeline.engines.pace import Pace, RunPace
from pipeline.engines.simulated_row import EOS, Row, is_drawn
from pipeline.engines.stop_strings import Detokenizer
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.target import Draft, Head, Scalar, Target, has_extra_weights
from pipeline.records.trace import Iteration, RequestTrace, Trace

__all__ = ["BOS", "EOS", "ByteTokenizer", "SimulatedEngine"]

BOS = 256
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

    Its text is made up, so that of a sampling only greedy or not matters: filters and penalties change nothing. Nor
    does looking it up tell what an n-gram would propose: what every draft but a head accepts is foretold by
    ``score``, which agrees with what ``run`` does place by place (``Machine`` says where it does not).
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._given = self._machine = machine or Machine()
        self._target: Target | None = None
        self._limits = Limits(concurrency=1, max_gamma=0)
        self._runs: Counter[str] = Counter()
        self._pace = Pace(self._machine)
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
        machine = replace(machine_from(target.source, self._given), dtype=target.dtype)
        if machine != self._machine:
            self._machine, self._pace = machine, Pace(machine)
        self._target, self._limits = target, limits
        break_down(self._machine, "target", 0)

    def close(self) -> None:
        self._target = None

    def tie_margin(self, request: Request, output: Sequence[int], sampling: Sampling) -> float:
        return self._machine.tie_margin

    def run(self, arrivals: Sequence[Request], sampling: Sampling, draft: Draft | None, schedule: Schedule) -> Trace:
        if draft is None and schedule.max_gamma:
            raise ValueError("a schedule that speculates needs a draft")
        return self._run(arrivals, sampling, draft, schedule.max_gamma, lambda _, active: schedule.gamma(active))

    def replays(self, draft: Draft) -> Foretold:
        return "probe" if isinstance(draft, Head) else "score"

    def score(self, passages: Sequence[Passage], sampling: Sampling, draft: Draft) -> tuple[tuple[float, ...], ...]:
        """α_t where proposals are drawn, else whether place t's luck is under it; 0 where the draft misses."""
        if self.replays(draft) != "score":
            raise ValueError(f"draft {draft.name}: what a head proposes depends on where the block began")
        self._ready(draft.name)
        scores = []
        for passage in passages:
            row = Row(self._machine, passage.request, sampling, draft, DETOKENIZER)
            stands = row.alpha if is_drawn(draft, sampling) else (row.luck < row.alpha).astype(float)
            scores.append(tuple((stands * (row.reach > 0))[: len(passage.output)].tolist()))
        return tuple(scores)

    def time_widths(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        gammas: Sequence[int],
        proposing: Sequence[int] | None = None,
    ) -> Trace:
        if not gammas or min(gammas) < 0:
            raise ValueError(f"gammas must name at least one gamma >= 0, got {tuple(gammas)}")
        if proposing is not None:
            raise ValueError("rows are padded to the widest here, so that it does not matter how many propose")
        return self._run(arrivals, sampling, draft, max(gammas), lambda place, _: gammas[place % len(gammas)])

    def _run(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        max_gamma: int,
        due: Callable[[int, int], int],
    ) -> Trace:
        name = draft.name if draft else "off"
        self._ready(None)
        longest = self.facts.max_context - max_gamma - 1
        for request in arrivals:
            if not request.tokens or len(request.tokens) + request.max_new_tokens > longest:
                raise InputError(f"request {request.request_id}: prompt and output must take 1 to {longest} tokens")
        self._ready(name)
        self._runs[name] += 1
        if self._machine.sleep_s:  # sleeping for no time would still give up the core
            time.sleep(self._machine.sleep_s)
        rows = _Rows(self._machine, sampling, draft, arbitrary=draft is None and max_gamma > 0)
        return _decode(rows, arrivals, due, self._limits.concurrency, self._pace.next_run())

    def _ready(self, name: str | None) -> None:
        """Raises what the machine says that ``name`` raises, RuntimeError where no target is open."""
        if self._target is None:
            raise RuntimeError("no target is open")
        if name is not None:
            break_down(self._machine, name, self._runs[name])


@dataclass(frozen=True)
class _Rows:
    """What the rows of one run have in common."""

    machine: Machine
    sampling: Sampling
    draft: Draft | None
    arbitrary: bool

    def admit(self, request: Request) -> Row:
        return Row(self.machine, request, self.sampling, self.draft, DETOKENIZER, arbitrary=self.arbitrary)


def _decode(
    kind: _Rows,
    arrivals: Sequence[Request],
    due: Callable[[int, int], int],
    slots: int,
    pace: RunPace,
) -> Trace:
    """The loop in virtual time: ``due`` says γ by iteration and number of active rows.

    Fillers that no slot was free for are left out of the trace.
    """
    machine, draft = kind.machine, kind.draft
    clock = 0.0
    queue, active = deque(enumerate(arrivals)), dict[int, tuple[Row, float, float, int]]()
    done: dict[int, RequestTrace] = {}
    iterations: list[Iteration] = []
    while any(r.counted for _, r in queue) or any(entry[0].request.counted for entry in active.values()):
        while queue and len(active) < slots and (queue[0][1].arrival_s <= clock or not active):
            place, request = queue.popleft()
            admitted = clock = max(clock, request.arrival_s)
            row = kind.admit(request)
            clock += machine.prompt_ms(len(request.tokens)) * pace.run / 1e3
            if row.emit():
                active[place] = (row, admitted, clock, len(iterations))
            else:
                done[place] = row.trace((admitted, clock, clock), len(iterations))
        if not active:
            continue
        rows = [entry[0] for entry in active.values()]
        context = sum(len(row.request.tokens) + len(row.output) for row in rows)
        gamma = due(len(iterations), len(rows))
        for row in rows:
            row.step(gamma)
        last = [row.counts[-1] for row in rows]
        width = 1 + max(proposed for _, proposed, *_ in last)
        slow, mean = pace.iteration(), context / len(rows)
        drafting = slow * machine.drafting_ms(draft, width - 1, rows=len(rows), context=mean) if draft else 0.0
        emitted, accepted = sum(counts[4] for counts in last), sum(counts[3] for counts in last)
        proposed = sum(counts[1] for counts in last)
        positions = len(rows) + proposed if machine.packed else len(rows) * width
        verifying = slow * machine.forward_ms(positions, rows=len(rows), context=mean)
        overhead = slow * machine.overhead_ms
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
                pad_fraction=1 - (len(rows) + proposed) / positions,
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
