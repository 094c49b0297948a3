"""What an engine saw: a row per iteration and a row per request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.records.strict import STRICT

FinishReason = Literal["eos", "stop", "length", "abandoned"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """One pass of the decoding loop over all active rows; a row-iteration is one active row of it.

    ``tau_ms`` is host time from the previous iteration's read to this one's with refills cut out; the phases
    sum to it: tau_ms = tau_draft_ms + tau_verify_ms + tau_overhead_ms. ``width`` is the number of positions
    of the widest row of the verification (1 is a plain step); ``pad_fraction`` the share of padding
    among the positions run. ``stopped`` counts rows whose block ended in an accepted EOS or stop, so that over any
    run Σemitted = Σactive + Σaccepted − Σstopped. ``context_tokens`` is the sum of committed lengths before it.
    """

    start_s: float
    active: int
    counted: int
    gamma: int
    width: int
    proposed: int
    tested: int
    accepted: int
    emitted: int
    stopped: int
    context_tokens: int
    pad_fraction: float
    tau_draft_ms: float
    tau_verify_ms: float
    tau_overhead_ms: float
    tau_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestTrace:
    """One request; the tuples have an entry per row-iteration of it, in order.

    ``first_iteration`` is the index in the trace of its first row-iteration, which follow each other without a gap.
    ``room`` is end − n − 1, what the output limit left (not clamped to γ); ``proposed`` what the draft gave, at most
    min(γ, room); ``tested`` how many of those were compared; ``accepted`` ≤ ``tested``; ``emitted`` tokens that reached
    the output. ``output`` begins with the token that prefill sampled, which no iteration counts:
    len(output) = 1 + sum(emitted). Times are seconds since the run began.

    ``text`` and ``stop_string`` are "" unless the request had stop strings. ``output`` then ends with the token that
    completed ``stop_string`` ("" if none ended it), all counts and times with it; ``text`` ends before it.

    ``prompt_output_overlap`` is the share of output tokens that end a 3-gram of the prompt; None for fillers, and
    from an engine, which does not look.
    """

    request_id: str
    counted: bool
    seed: int
    prompt_tokens: int
    output: tuple[int, ...]
    finish: FinishReason
    arrival_s: float
    admitted_s: float
    first_token_s: float
    finished_s: float
    first_iteration: int
    room: tuple[int, ...]
    proposed: tuple[int, ...]
    tested: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    text: str = ""
    stop_string: str = ""
    prompt_output_overlap: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What one engine run produced. Requests are in the order given; ``wall_s`` includes prefill."""

    iterations: tuple[Iteration, ...]
    requests: tuple[RequestTrace, ...]
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class Block:
    """One engine run of a round: which block of prompts, which place in the block's order, and what came of it."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    index: int
    place: int
    trace: Trace
