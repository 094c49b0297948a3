"""A tiny target with its drafts in folders of their own, and one engine that holds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import NGRAM, REQUESTS, Texts, written
from tiny_heads import FLAT, eagle3_entries, eagle3_tensors, fit_output_layer, write_eagle3, write_medusa
from tiny_models import GREEDY, generated, mixed_requests, save, tiny_llama
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Limits
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, Medusa, Target


@pytest.fixture(scope="session")
def target_model() -> PreTrainedModel:
    return tiny_llama()


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, target_model: PreTrainedModel) -> Target:
    folder = save(target_model, tmp_path_factory.mktemp("target"))
    return Target(name="tiny", source=folder, dtype="float32", chat_template="plain")


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> DraftModel:
    """Agrees with the target often, not always."""
    return DraftModel(name="noisy", source=save(tiny_llama(noise=0.01), tmp_path_factory.mktemp("draft")))


@pytest.fixture(scope="session")
def greedy_draft(draft: DraftModel) -> DraftModel:
    return DraftModel(name="noisy-greedy", source=draft.source, draft_sampling="greedy")


@pytest.fixture(scope="session")
def same_draft(target: Target) -> DraftModel:
    """The target itself."""
    return DraftModel(name="same", source=target.source)


@pytest.fixture(scope="session")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> Medusa:
    return Medusa(name="medusa", source=str(write_medusa(tmp_path_factory.mktemp("medusa"))))


@pytest.fixture(scope="session")
def eagle3(tmp_path_factory: pytest.TempPathFactory, target_model: PreTrainedModel) -> Eagle3:
    entries = eagle3_entries(FLAT)
    folder = write_eagle3(tmp_path_factory.mktemp("eagle3"), entries, eagle3_tensors(entries, embeddings=False), FLAT)
    texts = [(*request.tokens, *generated(target_model, request)) for request in mixed_requests(4, seed=8)]
    fit_output_layer(folder, target_model, (2, 2, 1), texts)
    return Eagle3(name="eagle3", source=str(folder))


@pytest.fixture(scope="session")
def open_engine(target: Target) -> Callable[..., DecodingEngine]:
    """``open_engine(*drafts, concurrency=, max_gamma=)``: one engine for the session, opened anew."""
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)

    def opened(*drafts: Draft, concurrency: int = 1, max_gamma: int = 8) -> DecodingEngine:
        engine.open(target, drafts, Limits(concurrency=concurrency, max_gamma=max_gamma))
        return engine

    return opened


@pytest.fixture
def engine(open_engine: Callable[..., DecodingEngine]) -> DecodingEngine:
    """With three slots, so that all of ``scripted.REQUESTS`` are decoded together."""
    return open_engine(NGRAM, concurrency=3)


@pytest.fixture
def texts(engine: DecodingEngine) -> Texts:
    """What plain decoding writes after ``scripted.REQUESTS``."""
    return written(engine.run(REQUESTS, GREEDY, None, OFF))
