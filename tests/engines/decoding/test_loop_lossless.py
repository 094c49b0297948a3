"""Whatever the proposer, the text is the target's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tiny_models import EOS, GREEDY, WARM, accepted, assert_counts_hold, generated, mixed_requests, outputs
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram

OpenEngine = Callable[..., DecodingEngine]
ONE_HOT = ("ngram-first", "ngram-last", "draft-greedy", "early-exit-greedy", "medusa-greedy", "eagle3-greedy")
EVERY = (*ONE_HOT, "draft-probabilistic", "early-exit", "same", "medusa", "eagle3")


@pytest.fixture(scope="module")
def drafts(
    draft: DraftModel, greedy_draft: DraftModel, same_draft: DraftModel, medusa: Medusa, eagle3: Eagle3
) -> dict[str, Draft]:
    return {
        "ngram-first": Ngram(name="first", match="first"),
        "ngram-last": Ngram(name="last", match="last", max_n=2),
        "draft-greedy": greedy_draft,
        "early-exit-greedy": EarlyExit(name="exit", layers=3, draft_sampling="greedy"),
        "draft-probabilistic": draft,
        "early-exit": EarlyExit(name="exit", layers=3),
        "same": same_draft,
        "medusa": medusa,
        "medusa-greedy": replace(medusa, name="m", draft_sampling="greedy"),
        "eagle3": eagle3,
        "eagle3-greedy": replace(eagle3, name="e", draft_sampling="greedy"),
    }


@pytest.fixture(scope="module")
def expected(target_model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    return {request.request_id: generated(target_model, request) for request in mixed_requests()}


@pytest.mark.parametrize("concurrency", [1, 5])
def test_plain_greedy_output_is_that_of_transformers_generate(
    open_engine: OpenEngine, expected: dict[str, tuple[int, ...]], concurrency: int
) -> None:
    trace = open_engine(concurrency=concurrency).run(mixed_requests(), GREEDY, None, OFF)
    assert outputs(trace) == expected
    assert_counts_hold(trace, mixed_requests())
    assert all(it.width == 1 and it.tau_draft_ms == 0.0 for it in trace.iterations)


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("name", EVERY)
def test_greedy_output_of_every_proposer_is_the_plain_one(
    open_engine: OpenEngine,
    drafts: dict[str, Draft],
    expected: dict[str, tuple[int, ...]],
    name: str,
    concurrency: int,
    gamma: int,
) -> None:
    engine = open_engine(drafts[name], concurrency=concurrency)
    trace = engine.run(mixed_requests(), GREEDY, drafts[name], Schedule.constant(gamma))
    assert outputs(trace) == expected
    assert_counts_hold(trace, mixed_requests())
    assert accepted(trace) > 0
    assert max(it.width for it in trace.iterations) == gamma + 1


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("name", ONE_HOT)
def test_sampled_output_of_a_one_hot_draft_is_the_plain_one_of_the_same_seed(
    open_engine: OpenEngine, drafts: dict[str, Draft], name: str, concurrency: int
) -> None:
    engine = open_engine(drafts[name], concurrency=concurrency)
    requests = mixed_requests(12)
    plain = engine.run(requests, WARM, None, OFF)
    trace = engine.run(requests, WARM, drafts[name], Schedule.constant(3))
    assert outputs(trace) == outputs(plain)
    assert_counts_hold(trace, requests)
    assert accepted(trace) > 0


@pytest.mark.parametrize("name", ["draft-probabilistic", "early-exit", "medusa", "eagle3"])
def test_sampled_drafts_keep_the_counts(open_engine: OpenEngine, drafts: dict[str, Draft], name: str) -> None:
    engine = open_engine(drafts[name], concurrency=4)
    trace = engine.run(mixed_requests(), WARM, drafts[name], Schedule.constant(4))
    assert_counts_hold(trace, mixed_requests())
    assert accepted(trace) > 0


def test_ignored_eos_is_a_token_like_any_other(open_engine: OpenEngine, target_model: PreTrainedModel) -> None:
    requests = [r for r in mixed_requests(40) if EOS in generated(target_model, r)[:-1] and r.ignore_eos]
    assert requests
    trace = open_engine(concurrency=2).run(requests[:3], GREEDY, None, OFF)
    for request in requests[:3]:
        assert outputs(trace)[request.request_id] == generated(target_model, request)
