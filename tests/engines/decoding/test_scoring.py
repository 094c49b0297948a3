"""Teacher-forced scores say what real speculation accepts, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tiny_models import GREEDY, VOCABULARY, WARM, mixed_requests, outputs, tiny_llama
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Passage, Request, Schedule
from pipeline.engines.decoding import scoring
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.penalties import penalized, written
from pipeline.engines.decoding.proposers.draft_model import fitted
from pipeline.engines.decoding.transform import probabilities
from pipeline.records.cell import Sampling
from pipeline.records.target import Draft, DraftModel, EarlyExit, Medusa, Ngram
from pipeline.records.trace import Trace

OpenEngine = Callable[..., DecodingEngine]
ALL = replace(GREEDY, name="all", repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7)
WARM_ALL = replace(WARM, name="warm_all", repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7)
REQUESTS = [replace(request, max_new_tokens=min(request.max_new_tokens, 20)) for request in mixed_requests(5)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def drafts(draft: DraftModel, greedy_draft: DraftModel) -> dict[str, Draft]:
    return {
        "draft": draft,
        "draft-greedy": greedy_draft,
        "exit": EarlyExit(name="exit", layers=3),
        "exit-greedy": EarlyExit(name="exit", layers=3, draft_sampling="greedy"),
    }


def passages(trace: Trace, requests: Sequence[Request] = REQUESTS) -> list[Passage]:
    by_id = outputs(trace)
    return [Passage(request=request, output=by_id[request.request_id]) for request in requests]


def walked(weights: Sequence[float], most: int, gamma: int) -> list[int]:
    """Accepted proposals of each block of up to γ, where a token stands if its weight is 1; ``most`` may be written."""
    counts = []
    done = 1  # prefill samples the first token
    while done < len(weights):
        block = weights[done : done + min(gamma, most - done - 1)]
        taken = next((j for j, weight in enumerate(block) if weight < 1.0), len(block))
        emitted = min(taken + 1, len(weights) - done)  # a text that ended in an accepted token has no more after it
        counts.append(min(taken, emitted))
        done += emitted
    return counts


def measured(trace: Trace) -> list[list[int]]:
    return [list(row.accepted) for row in trace.requests]


@pytest.mark.parametrize("sampling", [GREEDY, ALL], ids=lambda s: s.name)
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("name", ["draft", "exit"])
def test_a_walk_over_plain_text_accepts_what_speculation_accepts(
    open_engine: OpenEngine, drafts: dict[str, Draft], name: str, concurrency: int, sampling: Sampling
) -> None:
    engine = open_engine(drafts[name], concurrency=concurrency)
    plain = passages(engine.run(REQUESTS, sampling, None, OFF))
    scores = engine.score(plain, sampling, drafts[name])
    assert [len(weights) for weights in scores] == [len(passage.output) for passage in plain]
    for gamma in (1, 2, 3, 4) if sampling is GREEDY else (3,):
        trace = engine.run(REQUESTS, sampling, drafts[name], Schedule.constant(gamma))
        assert [
            walked(weights, request.max_new_tokens, gamma) for weights, request in zip(scores, REQUESTS, strict=True)
        ] == measured(trace)
        shifted = [walked(weights[1:] + weights[:1], 99, gamma) for weights in scores]
        assert shifted != measured(trace), "the texts cannot tell one place from the next"


@pytest.mark.parametrize("sampling", [WARM, WARM_ALL], ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["draft-greedy", "exit-greedy"])
def test_one_hot_proposals_in_a_sampled_cell_are_walked_exactly_too(
    open_engine: OpenEngine, drafts: dict[str, Draft], name: str, sampling: Sampling
) -> None:
    engine = open_engine(drafts[name], concurrency=3)
    plain = passages(engine.run(REQUESTS, sampling, None, OFF))
    scores = engine.score(plain, sampling, drafts[name])
    assert {weight for weights in scores for weight in weights} == {0.0, 1.0}
    trace = engine.run(REQUESTS, sampling, drafts[name], Schedule.constant(3))
    assert [walked(w, request.max_new_tokens, 3) for w, request in zip(scores, REQUESTS, strict=True)] == measured(
        trace
    )


def distribution(model: PreTrainedModel, tokens: Sequence[int], prompt: int, sampling: Sampling) -> torch.Tensor:
    """[V] after ``tokens``, by transformers' own forward."""
    with torch.inference_mode():
        logits = fitted(model(torch.tensor([tokens])).logits[:, -1:], VOCABULARY)
    if sampling.penalizes:
        text = torch.tensor([tokens]).numpy()
        before = written(text, text[0, :1] * 0 + prompt, text[0, :1] * 0 + len(tokens), sampling, VOCABULARY, CPU)
        logits = penalized(logits, before, None, sampling)
    return probabilities(logits[0, 0], sampling).double()


@pytest.mark.parametrize("sampling", [WARM, WARM_ALL], ids=lambda s: s.name)
@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("name", ["draft", "exit"])
def test_the_mean_score_of_the_targets_tokens_is_the_overlap_of_the_distributions(
    open_engine: OpenEngine,
    drafts: dict[str, Draft],
    target_model: PreTrainedModel,
    name: str,
    place: int,
    sampling: Sampling,
) -> None:
    """E over x ~ p of min(1, q(x)/p(x)) = Σ min(p, q), by every x after one prefix."""
    engine = open_engine(drafts[name])
    written_before = (9, 17, 9, 33, 9)[:place]
    request = Request(request_id="r", prompt_id="p", tokens=(7, 9, 30, 9, 11), max_new_tokens=8, seed=1)
    every = [Passage(request=request, output=(*written_before, x, 4)) for x in range(VOCABULARY)]
    found = torch.tensor(engine.score(every, sampling, drafts[name]), dtype=torch.float64)
    text = (*request.tokens, *written_before)
    small = tiny_llama(noise=0.01)
    if name == "exit":
        small = tiny_llama()
        small.config.num_hidden_layers = 3
    p = distribution(target_model, text, len(request.tokens), sampling)
    q = distribution(small, text, len(request.tokens), sampling)
    assert float(p @ found[:, place]) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-5)
    assert 0.01 < float(torch.minimum(p, q).sum()) < 0.99
    assert torch.equal(found[:, :place], found[:1, :place].expand(VOCABULARY, -1)), "a token's score saw the next one"


@pytest.mark.parametrize("name", ["draft", "exit"])
@pytest.mark.parametrize("sampling", [ALL, WARM_ALL], ids=lambda s: s.name)
def test_scores_do_not_depend_on_how_much_is_held_at_once(
    open_engine: OpenEngine,
    drafts: dict[str, Draft],
    name: str,
    sampling: Sampling,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = open_engine(drafts[name])
    plain = passages(engine.run(REQUESTS, sampling, None, OFF))
    whole = engine.score(plain, sampling, drafts[name])
    monkeypatch.setattr(scoring, "SCORED_AT_ONCE", 3)
    for found, wanted in zip(engine.score(plain, sampling, drafts[name]), whole, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def test_the_target_as_its_own_draft_would_always_stand(open_engine: OpenEngine, same_draft: DraftModel) -> None:
    engine = open_engine(same_draft)
    plain = passages(engine.run(REQUESTS, WARM, None, OFF))
    for weights in engine.score(plain, WARM, same_draft):
        assert weights == pytest.approx([1.0] * len(weights), abs=1e-3)


@pytest.mark.parametrize("name", ["draft", "exit"])
def test_scoring_leaves_no_trace_in_what_is_decoded_afterwards(
    open_engine: OpenEngine, drafts: dict[str, Draft], name: str
) -> None:
    """The first forward of an opened engine may be a score, and its cache must then be good for every layer."""
    engine = open_engine(drafts[name], concurrency=2)
    before = engine.run(REQUESTS, GREEDY, drafts[name], Schedule.constant(2))
    engine = open_engine(drafts[name], concurrency=4)  # another number of slots: a new cache
    first = engine.score(passages(before), GREEDY, drafts[name])
    after = engine.run(REQUESTS, GREEDY, drafts[name], Schedule.constant(2))
    assert outputs(after) == outputs(before)
    assert measured(after) == measured(before)
    assert engine.score(passages(before), GREEDY, drafts[name]) == first


def test_drafts_say_how_they_are_replayed_and_the_others_are_not_scored(
    open_engine: OpenEngine, drafts: dict[str, Draft], medusa: Medusa
) -> None:
    ngram = Ngram(name="ngram")
    engine = open_engine(ngram, medusa, *drafts.values())
    assert [engine.replays(draft) for draft in (ngram, medusa)] == ["text", "probe"]
    assert {engine.replays(draft) for draft in drafts.values()} == {"score"}
    for draft in (ngram, medusa):
        with pytest.raises(ValueError, match=rf"drafts.{draft.name}: what {draft.method} proposes cannot be scored"):
            engine.score([], GREEDY, draft)


def test_a_passage_cannot_hold_more_than_was_asked_for(open_engine: OpenEngine, drafts: dict[str, Draft]) -> None:
    engine = open_engine(drafts["draft"])
    request = replace(REQUESTS[0], max_new_tokens=2)
    with pytest.raises(ValueError, match=r"more output than was asked for: \['r0'\]"):
        engine.score([Passage(request=request, output=(3, 4, 5))], GREEDY, drafts["draft"])
    assert engine.score([Passage(request=request, output=())], GREEDY, drafts["draft"]) == ((),)
