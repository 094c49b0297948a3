"""A tiny target with its drafts in folders of their own, and one engine that holds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_models import save, tiny_llama
from transformers import PreTrainedModel

from pipeline.engines.contract import Limits
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, Target


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
def open_engine(target: Target) -> Callable[..., DecodingEngine]:
    """``open_engine(*drafts, concurrency=, max_gamma=)``: one engine for the session, opened anew."""
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)

    def opened(*drafts: Draft, concurrency: int = 1, max_gamma: int = 8) -> DecodingEngine:
        engine.open(target, drafts, Limits(concurrency=concurrency, max_gamma=max_gamma))
        return engine

    return opened
