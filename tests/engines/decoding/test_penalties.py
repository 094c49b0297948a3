"""Penalties are exact at every position, for the target and for drafts, and cost nothing where there are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import GREEDY, WARM, accepted, assert_counts_hold, generated, mixed_requests, outputs
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.benchmarks.mutants import PENALTIES, broken
from pipeline.engines.contract import OFF, Request, Schedule
from pipeline.engines.decoding import loop, sampler
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.penalties import penalized, written
from pipeline.engines.decoding.proposers import chain
from pipeline.engines.decoding.transform import probabilities
from pipeline.records.cell import Sampling
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram

OpenEngine = Callable[..., DecodingEngine]
REPEATING = replace(GREEDY, name="rep", repetition_penalty=1.3)
ALL = replace(REPEATING, name="all", presence_penalty=0.4, frequency_penalty=0.7)
WARM_ALL = replace(WARM, name="warm_all", repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7)
ONE_HOT = ("ngram", "draft-greedy", "exit-greedy", "medusa-greedy", "eagle3-greedy")
DRAWN = ("draft", "exit", "medusa", "eagle3")
V = 7

penalties = st.builds(
    Sampling,
    name=st.just("any"),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.5]),
    presence_penalty=st.sampled_from([0.0, -0.5, 1.25]),
    frequency_penalty=st.sampled_from([0.0, 0.75, -1.5]),
)
texts = st.lists(
    st.tuples(st.lists(st.integers(0, V - 1), min_size=1, max_size=9), st.integers(1, 9)), min_size=1, max_size=4
)


def one_by_one(logits: Tensor, prompt: list[int], output: list[int], sampling: Sampling) -> list[float]:
    """The rule as it is written, token by token: logits [V] after ``prompt`` and ``output``."""
    found = []
    for token, logit in enumerate(logits.tolist()):
        if token in prompt + output:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= sampling.frequency_penalty * output.count(token)
        logit -= sampling.presence_penalty * (token in output)
        found.append(logit)
    return found


@given(texts=texts, drafted=st.integers(0, 3), step=st.booleans(), sampling=penalties, seed=st.integers(0, 99))
def test_each_position_is_penalized_for_all_that_stands_before_it(
    texts: list[tuple[list[int], int]], drafted: int, step: bool, sampling: Sampling, seed: int
) -> None:
    """A verification's positions see one proposal more each; a draft's step sees all of them."""
    draws = torch.Generator().manual_seed(seed)
    rows, width = len(texts), 1 if step else drafted + 1
    proposals = torch.randint(0, V, (rows, drafted), generator=draws)
    logits = torch.randn(rows, width, V, generator=draws).masked_fill(torch.rand(V, generator=draws) < 0.1, -torch.inf)
    n, prompt = np.array([len(text) for text, _ in texts]), np.array([min(p, len(text)) for text, p in texts])
    tokens = np.full((rows, 12), V - 1)  # what lies beyond a row's end is not its own
    for row, (text, _) in enumerate(texts):
        tokens[row, : len(text)] = text
    given = logits.clone()
    before = written(tokens, prompt, n, sampling, V, logits.device)
    found = penalized(logits, before, proposals if drafted else None, sampling)
    assert torch.equal(logits, given), "a prompt's logits are remembered: they must stay as they are"
    for row, (text, _) in enumerate(texts):
        for place in range(width):
            output = text[prompt[row] :] + proposals[row, : drafted if step else place].tolist()
            wanted = one_by_one(logits[row, place], text[: prompt[row]], output, sampling)
            assert found[row, place].tolist() == pytest.approx(wanted, abs=1e-5)


def test_half_precision_logits_are_penalized_in_fp32() -> None:
    before = written(np.array([[1, 2]]), np.array([1]), np.array([2]), ALL, V, torch.device("cpu"))
    found = penalized(torch.ones(1, 1, V, dtype=torch.bfloat16), before, None, ALL)
    assert found.dtype == torch.float32
    assert found[0, 0, 1] == pytest.approx(1 / 1.3, abs=1e-6)


def test_a_repetition_penalty_must_be_positive() -> None:
    before = written(np.array([[1, 2]]), np.array([1]), np.array([2]), ALL, V, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"repetition_penalty 0\.0 is not positive"):
        penalized(torch.ones(1, 1, V), before, None, replace(ALL, repetition_penalty=0.0))


@pytest.fixture(scope="module")
def drafts(draft: DraftModel, greedy_draft: DraftModel, medusa: Medusa, eagle3: Eagle3) -> dict[str, Draft]:
    return {
        "ngram": Ngram(name="ngram"),
        "draft": draft,
        "draft-greedy": greedy_draft,
        "exit": EarlyExit(name="exit", layers=3),
        "exit-greedy": EarlyExit(name="exit", layers=3, draft_sampling="greedy"),
        "medusa": medusa,
        "medusa-greedy": replace(medusa, name="m", draft_sampling="greedy"),
        "eagle3": eagle3,
        "eagle3-greedy": replace(eagle3, name="e", draft_sampling="greedy"),
    }


@pytest.fixture(scope="module")
def expected(target_model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """transformers' own text with its repetition penalty."""
    return {r.request_id: generated(target_model, r, repetition_penalty=1.3) for r in mixed_requests()}


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("name", ["off", *ONE_HOT])
def test_greedy_text_is_that_of_transformers_with_its_repetition_penalty(
    open_engine: OpenEngine,
    target_model: PreTrainedModel,
    drafts: dict[str, Draft],
    expected: dict[str, tuple[int, ...]],
    name: str,
    concurrency: int,
) -> None:
    assert expected != {r.request_id: generated(target_model, r) for r in mixed_requests()}
    proposer = drafts.get(name)
    engine = open_engine(*([proposer] if proposer else []), concurrency=concurrency)
    schedule = Schedule.constant(4) if proposer else OFF
    trace = engine.run(mixed_requests(), REPEATING, proposer, schedule)
    assert outputs(trace) == expected
    assert_counts_hold(trace, mixed_requests())
    if name not in ("off", "ngram"):  # penalized text hardly repeats itself
        assert accepted(trace) > 0


@pytest.mark.parametrize("sampling", [ALL, WARM_ALL], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ONE_HOT)
def test_text_of_one_hot_drafts_is_plain_text_whatever_the_penalties(
    open_engine: OpenEngine, drafts: dict[str, Draft], name: str, sampling: Sampling
) -> None:
    engine = open_engine(drafts[name], concurrency=5)
    alone = [engine.run([request], sampling, None, OFF) for request in mixed_requests(12)]
    trace = engine.run(mixed_requests(12), sampling, drafts[name], Schedule.constant(3))
    assert outputs(trace) == {request: text for one in alone for request, text in outputs(one).items()}
    assert accepted(trace) > 0 or name == "ngram"


@pytest.mark.parametrize("sampling", [ALL, WARM_ALL], ids=["greedy", "sampled"])
@pytest.mark.parametrize("gamma", [1, 4])
def test_drafts_are_penalized_as_the_target_is(
    open_engine: OpenEngine, same_draft: DraftModel, sampling: Sampling, gamma: int
) -> None:
    """A draft that is the target is always right only so."""
    trace = open_engine(same_draft, concurrency=4).run(mixed_requests(), sampling, same_draft, Schedule.constant(gamma))
    for it in trace.iterations:
        assert it.accepted == it.tested


@pytest.mark.parametrize("name", DRAWN)
def test_sampled_drafts_keep_the_counts(open_engine: OpenEngine, drafts: dict[str, Draft], name: str) -> None:
    trace = open_engine(drafts[name], concurrency=4).run(mixed_requests(), WARM_ALL, drafts[name], Schedule.constant(4))
    assert_counts_hold(trace, mixed_requests())
    assert accepted(trace) > 0


def test_penalties_that_leave_out_the_accepted_prefix_are_noticed(
    open_engine: OpenEngine, same_draft: DraftModel, expected: dict[str, tuple[int, ...]]
) -> None:
    engine = open_engine(same_draft, concurrency=5)
    with broken(PENALTIES, REPEATING):
        assert outputs(engine.run(mixed_requests(), REPEATING, same_draft, Schedule.constant(4))) != expected
    assert outputs(engine.run(mixed_requests(), REPEATING, same_draft, Schedule.constant(4))) == expected


def test_no_filter_works_on_padding(
    open_engine: OpenEngine, drafts: dict[str, Draft], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties pad a ragged batch; the logits of padding are flat, so that top-p would sort whole vocabularies."""
    filtered: list[int] = []

    def counted(logits: Tensor, sampling: Sampling) -> Tensor:
        filtered.append(logits.shape[:-1].numel())
        return probabilities(logits, sampling)

    monkeypatch.setattr(sampler, "probabilities", counted)
    engine = open_engine(drafts["draft"], concurrency=5)
    trace = engine.run(mixed_requests(), WARM_ALL, drafts["draft"], Schedule.constant(4))
    assert any(0 < it.proposed < it.active * (it.width - 1) for it in trace.iterations), "no ragged batch, no test"
    first_tokens = len(trace.requests)
    assert sum(filtered) == sum(it.active + it.proposed for it in trace.iterations) + first_tokens


def test_tie_margin_is_that_of_penalized_logits(open_engine: OpenEngine, target_model: PreTrainedModel) -> None:
    request = Request(request_id="r", prompt_id="p", tokens=(7, 30, 12, 44), max_new_tokens=9, seed=4)
    engine, changed = open_engine(), 0
    for token in range(3, 30):
        output = [5, token, 5, token]
        with torch.inference_mode():
            logits = target_model(torch.tensor([[*request.tokens, *output]])).logits[0, -1]
        best = sorted(one_by_one(logits, [*request.tokens], output, ALL))[-2:]
        assert engine.tie_margin(request, output, ALL) == pytest.approx(best[1] - best[0], abs=1e-4)
        changed += abs(engine.tie_margin(request, output, GREEDY) - best[1] + best[0]) > 1e-2
    assert changed


def test_without_penalties_none_of_their_code_runs(
    open_engine: OpenEngine, draft: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Tensor:
        raise AssertionError("penalized")

    monkeypatch.setattr(loop, "penalize", fail)
    monkeypatch.setattr(chain, "drafting", lambda slots, *_: fail() if slots.penalizing else None)
    engine = open_engine(draft, concurrency=3)
    engine.run(mixed_requests(3), WARM, draft, Schedule.constant(2))
    with pytest.raises(AssertionError, match="penalized"):
        engine.run(mixed_requests(3), WARM_ALL, draft, Schedule.constant(2))
