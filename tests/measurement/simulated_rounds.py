"""What the rounds of these tests are made of."""

from __future__ import annotations

from pipeline.engines.machine import Machine
from pipeline.records.cell import Sampling
from pipeline.records.target import Candidate, DraftModel, Ngram
from pipeline.records.trace import RequestTrace

GREEDY = Sampling(name="greedy")
SAMPLED = Sampling(name="t07", temperature=0.7)
NGRAM = Ngram(name="ngram")
SMALL = DraftModel(name="small", source="small")
QUIET = Machine(noise=0.0, alpha_spread=0.0)
"""No noise, and every prompt alike: what comes out can be computed by hand."""

OFF = Candidate(draft=None, gamma=0)


def request_trace(rows) -> RequestTrace:
    """A counted request of these row-iterations: room, proposed, tested, accepted, emitted."""
    room, proposed, tested, accepted, emitted = zip(*rows, strict=True) if rows else ((),) * 5
    return RequestTrace(
        request_id="p#0",
        counted=True,
        seed=0,
        prompt_tokens=3,
        output=(0,) * (1 + sum(emitted)),
        finish="length",
        arrival_s=0,
        admitted_s=0,
        first_token_s=0,
        finished_s=0,
        first_iteration=0,
        room=room,
        proposed=proposed,
        tested=tested,
        accepted=accepted,
        emitted=emitted,
    )
