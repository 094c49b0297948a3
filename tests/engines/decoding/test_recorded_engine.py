"""An engine that replays its forwards writes what one that runs them writes, whatever drafts and however rows come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from captures import recorded, run_again
from test_families import tiny_config, tiny_model
from tiny_models import GREEDY, WARM, assert_counts_hold, mixed_requests, outputs, save, tiny_llama
from torch import Tensor

from pipeline.engines.contract import OFF, Limits, Passage, Request, Schedule
from pipeline.engines.decoding import recordings as recordings_module
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.recordings import Capture, Recordings
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target

GAMMA = 2
EXIT = EarlyExit(name="exit", layers=2)


Engines = tuple[DecodingEngine, DecodingEngine]


def engines_with(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """One that runs its forwards, one that replays them; few columns a bucket, so that requests outgrow several."""
    monkeypatch.setattr("pipeline.engines.decoding.buckets.LEAST_COLUMNS", 32)
    settings = EngineSettings(device="cpu")
    return DecodingEngine(settings, threads=1), DecodingEngine(settings, threads=1, capture=capture)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Recorded operation by operation."""
    return engines_with(recorded, monkeypatch)


@pytest.fixture(
    params=[run_again, pytest.param(recorded, marks=pytest.mark.slow)], ids=lambda capture: capture.__name__
)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Static buffers alone, which is quick, and recorded operation by operation."""
    return engines_with(request.param, monkeypatch)


def texts(
    engine: DecodingEngine,
    target: Target,
    draft: Draft | None,
    concurrency: int,
    requests: Sequence[Request],
    sampling: Sampling = GREEDY,
) -> dict[str, tuple[int, ...]]:
    engine.open(target, [draft] if draft else [], Limits(concurrency=concurrency, max_gamma=GAMMA))
    trace = engine.run(requests, sampling, draft, Schedule.constant(GAMMA) if draft else OFF)
    assert_counts_hold(trace, requests)
    return outputs(trace)


def made(engine: DecodingEngine) -> Recordings:
    assert engine._loaded is not None
    assert engine._loaded.model.recordings is not None
    return engine._loaded.model.recordings


@pytest.mark.parametrize("kind", ["exit", "draft"])
def test_texts_are_scored_and_widths_timed_beside_recordings(
    both_ways: Engines, target: Target, draft: DraftModel, kind: str
) -> None:
    """A score is no recorded forward, reads the same slots, and comes between two runs that are."""
    proposer = EXIT if kind == "exit" else draft
    requests = mixed_requests(5)
    found = []
    for engine in both_ways:
        before = texts(engine, target, proposer, 3, requests)
        passages = [Passage(request=request, output=before[request.request_id]) for request in requests]
        found.append([weight for weights in engine.score(passages, WARM, proposer) for weight in weights])
        for timed in (None, proposer):
            trace = engine.time_widths(requests, GREEDY, timed, [2, 0, 1])
            assert_counts_hold(trace, requests)
            assert outputs(trace) == before
        assert texts(engine, target, proposer, 3, requests) == before
    assert len(made(both_ways[1])) > 3
    assert found[1] == pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize("concurrency", [1, 6])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mixtral"])
def test_families_write_the_same_text(both_ways: Engines, tmp_path: Path, family: str, concurrency: int) -> None:
    """Plain, by n-gram, and by early exit where the family can: nine requests through the slots."""
    model = tiny_model(tiny_config(family), tmp_path)
    assert model.config.get_text_config().num_hidden_layers == 3
    eager, replaying = both_ways
    target = Target(name=family, source=str(tmp_path), dtype="float32")
    requests = mixed_requests(9 if concurrency > 1 else 4)
    drafts: list[Draft | None] = [None, Ngram(name="ngram", min_n=1)]
    if family != "mixtral":
        drafts.append(EXIT)
    for draft in drafts:
        expected = texts(eager, target, draft, concurrency, requests)
        assert len(set(expected.values())) > 2, "random text that says nothing shows nothing"
        assert texts(replaying, target, draft, concurrency, requests) == expected, draft
    assert len(made(replaying)) > 1
    assert replaying.facts.graphs


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=lambda sampling: sampling.name)
@pytest.mark.parametrize("concurrency", [1, 6])
def test_drafts_of_every_kind_write_the_same_text(
    both_ways: Engines,
    target: Target,
    draft: DraftModel,
    medusa: Medusa,
    eagle3: Eagle3,
    concurrency: int,
    sampling: Sampling,
) -> None:
    """Heads are given hidden states by forwards that run no hook."""
    eager, replaying = both_ways
    requests = mixed_requests(9 if concurrency > 1 else 4)
    for tried in (draft, medusa, eagle3, EXIT):
        expected = texts(eager, target, tried, concurrency, requests, sampling)
        assert texts(replaying, target, tried, concurrency, requests, sampling) == expected, tried.name
    assert len(made(replaying)) > 1


def test_what_was_recorded_goes_with_the_cache_that_it_wrote_to(engines: Engines, target: Target) -> None:
    eager, replaying = engines
    for concurrency in (1, 2, 1):
        requests = mixed_requests(2, seed=concurrency)
        expected = texts(eager, target, None, concurrency, requests)
        assert texts(replaying, target, None, concurrency, requests) == expected


@pytest.mark.parametrize("stale", [0, 1], ids=["tokens", "positions"])
def test_inputs_that_are_not_filled_in_are_noticed(
    engines: Engines, target: Target, monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    """A recording whose tokens or positions stay those that it was made with."""
    eager, replaying = engines
    requests = mixed_requests(4)
    expected = texts(eager, target, None, 2, requests)
    fill, filled = recordings_module._fill, set[int]()

    def once(static: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        kept = static[stale].clone()
        fill(static, inputs)
        if id(static) in filled:
            static[stale].copy_(kept)
        filled.add(id(static))

    monkeypatch.setattr(recordings_module, "_fill", once)
    assert texts(replaying, target, None, 2, requests) != expected


def read_back(module: object, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
    float((output[0] if isinstance(output, tuple) else output).sum())


def test_a_model_that_cannot_be_recorded_is_decoded_as_it_stands(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, medusa: Medusa
) -> None:
    """Here a layer reads a value back. Hidden states that were kept when it broke off are not given twice."""
    eager, replaying = engines
    target = Target(name="reads", source=save(tiny_llama(), tmp_path), dtype="float32")
    requests = mixed_requests(4)
    expected = texts(eager, target, medusa, 2, requests)
    replaying.open(target, [medusa], Limits(concurrency=2, max_gamma=GAMMA))
    assert replaying._loaded is not None
    replaying._loaded.model.model.base_model.layers[-1].register_forward_hook(read_back)
    assert replaying.facts.graphs
    with pytest.warns(RuntimeWarning, match="without CUDA graphs") as said:
        assert texts(replaying, target, medusa, 2, requests) == expected
    assert len([one for one in said if "CUDA graphs" in str(one.message)]) == 1
    assert not replaying.facts.graphs


def test_a_draft_that_cannot_be_recorded_makes_no_stranger_of_its_target(
    engines: Engines, target: Target, draft: DraftModel
) -> None:
    """``facts`` go into every measurement's provenance, other drafts' too, and only like ones share a test."""
    _, replaying = engines
    replaying.open(target, [draft], Limits(concurrency=2, max_gamma=GAMMA))
    ((_, model),) = replaying._draft_models.values()
    model.model.base_model.layers[-1].register_forward_hook(read_back)
    before = replaying.facts
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        texts(replaying, target, draft, 2, mixed_requests(4))
    assert replaying.facts == before
    assert before.graphs


def test_rows_that_fill_a_bucket_up_change_nobody(engines: Engines, target: Target) -> None:
    """Three of six slots at first: a bucket of four runs one that nobody holds, where a request sits down later."""
    eager, replaying = engines
    for count in (3, 7):
        requests = mixed_requests(count)
        expected = texts(eager, target, None, 6, requests)
        assert texts(replaying, target, None, 6, requests) == expected


def test_rows_that_fill_a_bucket_up_are_padding(engines: Engines, target: Target) -> None:
    _, engine = engines
    requests = mixed_requests(7)
    engine.open(target, [], Limits(concurrency=6, max_gamma=GAMMA))
    iterations = engine.run(requests, GREEDY, None, OFF).iterations
    assert {3, 5} & {it.active for it in iterations}
    run = {1: 1, 2: 2, 3: 4, 4: 4, 5: 6, 6: 6}
    assert [it.pad_fraction for it in iterations] == [1 - it.active / run[it.active] for it in iterations]


def test_no_time_of_recording_is_in_any_iteration(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only recording moves: every iteration and the whole run take none of it."""
    hands = [0.0]
    for module in ("clock", "recordings"):
        monkeypatch.setattr(f"pipeline.engines.decoding.{module}.time.perf_counter", lambda: hands[0])

    def slow(work: Callable[[], None]) -> Callable[[], None]:
        hands[0] += 60.0
        return work

    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1, capture=slow)
    engine.open(target, [EXIT], Limits(concurrency=2, max_gamma=GAMMA))
    trace = engine.run(mixed_requests(3), GREEDY, EXIT, Schedule.constant(GAMMA))
    assert hands[0] > 0.0
    assert trace.wall_s == 0.0
    assert all(it.tau_ms == it.tau_draft_ms == it.tau_verify_ms == 0.0 for it in trace.iterations)
