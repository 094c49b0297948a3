"""What the engine opens, refuses, and says of itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import GREEDY, WARM, mixed_requests, outputs, save, tiny_llama
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Engine, Limits, Request, Schedule
from pipeline.engines.decoding.engine import VERSION, DecodingEngine
from pipeline.engines.decoding.transform import near_tie
from pipeline.engines.decoding.uniform import PLAIN, uniforms
from pipeline.records.failure import InputError
from pipeline.records.settings import EngineSettings
from pipeline.records.target import DraftModel, EarlyExit, Ngram, Target

OpenEngine = Callable[..., DecodingEngine]
REQUEST = Request(request_id="r7", prompt_id="p", tokens=(7, 30, 12, 44, 8, 21), max_new_tokens=12, seed=4)


def test_it_is_an_engine(open_engine: OpenEngine) -> None:
    engine: Engine = open_engine()
    assert engine.facts.engine == f"decoding {VERSION}"
    assert engine.facts.dtype == "float32"
    assert engine.facts.vocabulary == 61
    assert engine.facts.max_context == 256
    assert engine.facts.accelerator
    assert engine.facts.target_revision
    assert engine.tokenizer.bos_token_id == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ()}, "request r7: its prompt is empty"),
        ({"max_new_tokens": 0}, "request r7: max_new_tokens is 0"),
        ({"max_new_tokens": 251}, "request r7: 6 prompt and 251 output tokens do not fit in 256"),
    ],
)
def test_requests_that_cannot_be_decoded_are_named(
    open_engine: OpenEngine, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_engine().run([REQUEST, replace(REQUEST, **change)], GREEDY, None, OFF)  # type: ignore[arg-type]


def test_a_request_may_fill_the_context(open_engine: OpenEngine, same_draft: DraftModel) -> None:
    request = replace(REQUEST, max_new_tokens=250, ignore_eos=True)
    trace = open_engine(same_draft, max_gamma=8).run([request], GREEDY, same_draft, Schedule.constant(8))
    assert len(trace.requests[0].output) == 250


def test_a_context_limit_of_the_caller_holds(target: Target) -> None:
    engine = DecodingEngine(EngineSettings(device="cpu"))
    engine.open(target, [], Limits(concurrency=1, max_gamma=0, context_tokens=10))
    with pytest.raises(InputError, match="do not fit in 10 tokens"):
        engine.run([REQUEST], GREEDY, None, OFF)


def test_speculating_needs_an_opened_draft_and_room_for_gamma(open_engine: OpenEngine) -> None:
    engine = open_engine(max_gamma=4)
    with pytest.raises(ValueError, match="needs a draft"):
        engine.run([REQUEST], GREEDY, None, Schedule.constant(2))
    with pytest.raises(ValueError, match="gamma 5"):
        engine.run([REQUEST], GREEDY, Ngram(name="n"), Schedule.constant(5))
    with pytest.raises(RuntimeError, match="draft stranger was not opened"):
        engine.run([REQUEST], GREEDY, Ngram(name="stranger"), Schedule.constant(2))
    with pytest.raises(RuntimeError, match="no target is open"):
        DecodingEngine(EngineSettings(device="cpu")).run([REQUEST], GREEDY, None, OFF)


@pytest.mark.parametrize("layers", [0, 4])
def test_an_early_exit_needs_fewer_layers_than_the_target(open_engine: OpenEngine, layers: int) -> None:
    with pytest.raises(InputError, match=rf"drafts.exit.layers={layers}: allowed are 1 to 3 with target tiny"):
        open_engine(EarlyExit(name="exit", layers=layers))


def test_a_run_without_requests_or_counted_ones_does_nothing(open_engine: OpenEngine) -> None:
    assert open_engine().run([], GREEDY, None, OFF).iterations == ()
    assert open_engine().run([replace(REQUEST, counted=False)], GREEDY, None, OFF).requests == ()


def test_opening_the_same_target_again_loads_nothing(open_engine: OpenEngine, draft: DraftModel) -> None:
    engine = open_engine(draft)
    before = engine._opened().model, engine._drafts[draft]
    assert (open_engine(draft, concurrency=4)._opened().model, engine._drafts[draft]) == before


def test_another_target_replaces_the_old_one_and_its_drafts(tmp_path: Path) -> None:
    engine = DecodingEngine(EngineSettings(device="cpu"))
    sources = [save(tiny_llama(seed=seed), tmp_path / str(seed)) for seed in (1, 2)]
    draft = DraftModel(name="d", source=sources[0])
    texts = []
    for source in sources:
        engine.open(Target(name="t", source=source, dtype="float32"), [draft], Limits(concurrency=1, max_gamma=2))
        texts.append(engine.run([REQUEST], GREEDY, draft, Schedule.constant(2)).requests[0].output)
        if source == sources[0]:
            old = weakref.ref(engine._opened().source.model)
    gc.collect()
    assert old() is None
    assert texts[0] != texts[1]
    engine.close()
    with pytest.raises(RuntimeError, match="no target is open"):
        engine.facts  # noqa: B018


def test_caches_are_kept_while_they_fit_and_leave_no_trace(open_engine: OpenEngine, draft: DraftModel) -> None:
    engine = open_engine(draft, concurrency=3)
    first = engine.run(mixed_requests(), GREEDY, draft, Schedule.constant(3))
    kept = engine._opened().model.cache
    again = engine.run(mixed_requests(), GREEDY, draft, Schedule.constant(3))
    assert engine._opened().model.cache is kept
    assert outputs(again) == outputs(first)
    engine.run([replace(REQUEST, max_new_tokens=240)], GREEDY, None, OFF)
    assert engine._opened().model.cache is not kept


def test_a_draft_says_what_it_costs(open_engine: OpenEngine, target: Target, draft: DraftModel) -> None:
    exit_draft = EarlyExit(name="exit", layers=2)
    engine = open_engine(draft, exit_draft, Ngram(name="n"), concurrency=2, max_gamma=3)
    weights = sum(p.numel() * 4 for p in tiny_llama().parameters())
    engine.run([REQUEST], GREEDY, draft, Schedule.constant(3))
    facts = engine.draft_facts(draft)
    assert facts.weight_bytes == weights
    assert facts.kv_bytes == engine._drafts[draft].cache.bytes >= 2 * 4 * 2 * 2 * 64 * 8 * 4
    assert facts.revision
    assert engine.draft_facts(Ngram(name="n")).weight_bytes == engine.draft_facts(exit_draft).weight_bytes == 0
    assert engine.draft_facts(exit_draft).revision == engine.facts.target_revision


def test_tie_margin_of_greedy_is_the_gap_of_the_two_best_logits(
    open_engine: OpenEngine, target_model: PreTrainedModel
) -> None:
    output = (5, 6, 7)
    with torch.inference_mode():
        best = target_model(torch.tensor([[*REQUEST.tokens, *output]])).logits[0, -1].topk(2).values
    engine = open_engine()
    assert engine.tie_margin(REQUEST, output, GREEDY) == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert outputs(engine.run([REQUEST], GREEDY, None, OFF)), "and decoding goes on as before"


def test_tie_margin_of_sampling_belongs_to_the_requests_own_draw(
    open_engine: OpenEngine, target_model: PreTrainedModel
) -> None:
    engine = open_engine()
    tokens = (*REQUEST.tokens, 5)
    with torch.inference_mode():
        logits = target_model(torch.tensor([tokens])).logits[0, -1]
    for seed in range(6):
        u = float(uniforms(torch.tensor([seed]), torch.tensor([[len(tokens)]]), PLAIN))
        margin = engine.tie_margin(replace(REQUEST, seed=seed), (5,), WARM)
        assert margin == pytest.approx(near_tie(logits, WARM, u), abs=1e-5)
    margins = {seed: engine.tie_margin(replace(REQUEST, seed=seed), (5,), WARM) for seed in range(6)}
    assert len(set(margins.values())) > 1
    assert all(0 <= margin <= 1 for margin in margins.values())


def test_cuda_is_refused_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match=r"engine\.device=cuda"):
        DecodingEngine(EngineSettings(device="cuda"))
