"""Where the loop puts its marks: each phase is charged what was spent in it, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pipeline.engines.contract import Request, Schedule
from pipeline.engines.decoding import clock, loop
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.proposers.ngram import NgramProposer
from pipeline.engines.decoding.slots import Slots
from pipeline.records.cell import Sampling
from pipeline.records.target import Ngram

DRAFT_MS, VERIFY_MS, ACCEPT_MS, COMMIT_MS, PREFILL_MS = 2.0, 5.0, 1.0, 0.5, 100.0


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still but for drafting, verifying, accepting, committing and reading prompts."""
    now = SimpleNamespace(ms=0.0)
    for module in (clock, loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.ms / 1e3, sleep=lambda s: None))

    def costing(owner: object, name: str, ms: float) -> None:
        plain = getattr(owner, name)

        def step(*args: object, **kwargs: object) -> object:
            result = plain(*args, **kwargs)
            now.ms += ms
            return result

        monkeypatch.setattr(owner, name, step)

    costing(NgramProposer, "propose", DRAFT_MS)
    costing(CachedModel, "prefill", PREFILL_MS)
    costing(CachedModel, "forward", VERIFY_MS)
    costing(loop.DecodingLoop, "_accept", ACCEPT_MS)
    costing(Slots, "commit", COMMIT_MS)


def test_each_phase_is_charged_what_was_spent_in_it(open_engine: Callable[..., DecodingEngine], by_hand: None) -> None:
    draft = Ngram(name="ngram")
    engine = open_engine(draft, concurrency=1, max_gamma=2)
    engine._memory = None
    request = Request(request_id="r", prompt_id="p", tokens=(7, 9, 7, 9, 7), max_new_tokens=12, seed=1, ignore_eos=True)
    trace = engine.run([request], Sampling(name="greedy"), draft, Schedule.constant(2))
    drafted = [i for i in trace.iterations if i.gamma and i.start_s >= 0 and i.tau_draft_ms > 0]
    assert drafted
    for iteration in trace.iterations:
        assert iteration.tau_draft_ms in (pytest.approx(DRAFT_MS), 0.0)
        assert iteration.tau_verify_ms == pytest.approx(VERIFY_MS)
        assert iteration.tau_overhead_ms == pytest.approx(ACCEPT_MS + COMMIT_MS)
    (row,) = trace.requests
    assert (row.first_token_s - row.admitted_s) * 1e3 == pytest.approx(PREFILL_MS)
    assert trace.wall_s * 1e3 == pytest.approx(PREFILL_MS + sum(i.tau_ms for i in trace.iterations))
