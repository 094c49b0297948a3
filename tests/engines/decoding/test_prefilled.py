"""A prompt that was read before: the same text, its time charged, no iteration touched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.prefilled import Prefilled, PrefillMemory
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, EarlyExit, Ngram, Target
from pipeline.records.trace import Trace

GREEDY, WARM = Sampling(name="greedy"), Sampling(name="t1", temperature=1.0)
OpenEngine = Callable[..., DecodingEngine]


@pytest.fixture(scope="module")
def open_engine(target: Target) -> OpenEngine:
    """An engine that never saw a head: with heads, whose states are not remembered, every prompt is read anew."""
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)

    def opened(*drafts: Draft, concurrency: int, max_gamma: int) -> DecodingEngine:
        engine.open(target, drafts, Limits(concurrency=concurrency, max_gamma=max_gamma))
        return engine

    return opened


def requests(count: int = 5) -> list[Request]:
    return [
        Request(
            request_id=f"r{i}",
            prompt_id=f"p{i}",
            tokens=tuple((7 * i + k * k) % 60 for k in range(1, 6 + 3 * i)),
            max_new_tokens=12,
            seed=i,
        )
        for i in range(count)
    ]


def texts(trace: Trace) -> list[tuple[int, ...]]:
    return [request.output for request in trace.requests]


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize(
    ("draft", "gamma"), [(None, 0), (Ngram(name="ngram"), 3), (EarlyExit(name="exit", layers=1), 2)]
)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_text_does_not_depend_on_whether_a_prompt_was_read_before(
    open_engine: OpenEngine, sampling: Sampling, draft: Draft | None, gamma: int, concurrency: int
) -> None:
    engine = open_engine(*([draft] if draft else []), concurrency=concurrency, max_gamma=3)
    schedule = Schedule.constant(gamma)
    engine._memory = None
    fresh = engine.run(requests(), sampling, draft, schedule)
    engine._memory = PrefillMemory()
    first = engine.run(requests(), sampling, draft, schedule)
    again = engine.run(requests()[::-1], sampling, draft, schedule)
    assert texts(first) == texts(fresh)
    assert texts(again) == texts(fresh)[::-1]


def test_a_known_prompt_is_not_read_again_and_its_time_is_charged(open_engine: OpenEngine, monkeypatch) -> None:
    engine = open_engine(concurrency=1, max_gamma=1)
    engine._memory = PrefillMemory()
    read: list[int] = []
    plain = CachedModel.prefill

    def slow(self, row, tokens, start=0):
        read.append(len(tokens))
        time.sleep(0.05)
        return plain(self, row, tokens, start)

    monkeypatch.setattr(CachedModel, "prefill", slow)
    request = requests(1)
    engine.run(request, GREEDY, None, OFF)
    again = engine.run(request, GREEDY, None, OFF)
    assert len(read) == 1
    (row,) = again.requests
    assert row.first_token_s - row.admitted_s >= 0.05
    assert row.finished_s <= again.wall_s
    assert again.wall_s >= 0.05 + sum(iteration.tau_ms for iteration in again.iterations) / 1e3


def test_another_target_remembers_nothing(open_engine: OpenEngine, target) -> None:
    engine = open_engine(concurrency=1, max_gamma=1)
    engine.run(requests(1), GREEDY, None, OFF)
    before = engine._memory
    engine.open(replace(target, name="other"), (), Limits(concurrency=1, max_gamma=1))
    assert engine._memory is not before
    assert engine._memory.recall(requests(1)[0].tokens) is None


def kept(size: int) -> Prefilled:
    return Prefilled(rows=(torch.zeros(size, dtype=torch.uint8),), logits=torch.zeros(0), wall_s=0.1)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12)), max_size=40))
def test_it_holds_no_more_than_its_limit_and_forgets_what_was_used_longest_ago(events) -> None:
    memory, order = PrefillMemory(limit_bytes=20), []
    for name, size in events:
        if memory.recall((name,)) is not None:
            order.remove(name)
            order.append(name)
            continue
        memory.keep((name,), kept(size))
        order.append(name)
        held = [memory.recall((n,)) for n in list(order)]
        order = [n for n, one in zip(order, held, strict=True) if one is not None]
        assert sum(one.bytes for one in held if one is not None) <= 20
        assert order[-1] == name
