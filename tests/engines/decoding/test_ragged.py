"""Rows of different width laid end to end give what padded rows give, and the target runs no padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import GREEDY, WARM, assert_counts_hold, mixed_requests, outputs, tiny_llama
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Schedule
from pipeline.engines.decoding import loop
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.ragged import Ragged
from pipeline.records.target import DraftModel, Eagle3, EarlyExit, Ngram

CPU = torch.device("cpu")
OpenEngine = Callable[..., DecodingEngine]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 3))
def test_packed_tokens_stand_row_after_row_and_come_back_to_their_places(lengths: list[int], more: int) -> None:
    width = max(lengths) + more
    padded = torch.arange(1, len(lengths) * width + 1).view(len(lengths), width)
    ragged = Ragged.of(np.array(lengths), width, CPU)
    assert ragged.pack(padded).tolist() == [x for row, n in zip(padded.tolist(), lengths, strict=True) for x in row[:n]]
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    assert torch.equal(ragged.spread(ragged.pack(padded)), torch.where(real, padded, 0))


@pytest.fixture(scope="module")
def model() -> CachedModel:
    return CachedModel(tiny_llama(), CPU)


def test_logits_of_ragged_rows_are_those_of_each_row_alone(model: CachedModel) -> None:
    """Also with one row only, and with a later forward on top of what the ragged one wrote."""
    draws = torch.Generator().manual_seed(0)
    for lengths in ([3, 1, 5], [1, 1, 2], [2]):
        rows = len(lengths)
        first = np.array([6, 4, 9])[:rows]
        tokens = torch.randint(3, 61, (rows, 20), generator=draws)
        model.reserve(3, 64)
        with torch.inference_mode():
            for row in range(rows):
                model.prefill(row, tokens[row, : first[row]].numpy())
            width = max(lengths) + 1
            window = torch.stack([tokens[row, first[row] : first[row] + width] for row in range(rows)])
            ragged = Ragged.of(np.array(lengths), width, CPU)
            got = ragged.spread(model.forward(window, first, ragged=ragged)[0])
            after = first + lengths
            then = model.forward(torch.stack([tokens[row, after[row] :][:1] for row in range(rows)]), after)
            for row, length in enumerate(lengths):
                text = tokens[row].tolist()
                for j in range(length):
                    alone = model.plain_logits(text[: first[row] + j + 1])
                    torch.testing.assert_close(got[row, j], alone, rtol=1e-4, atol=1e-5)
                alone = model.plain_logits(text[: after[row] + 1])
                torch.testing.assert_close(then[row, 0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_text_is_the_same_end_to_end_and_padded(
    sampling: object,
    open_engine: OpenEngine,
    draft: DraftModel,
    greedy_draft: DraftModel,
    eagle3: Eagle3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = mixed_requests()
    early = EarlyExit(name="early", layers=2)
    drafts = (Ngram(name="ngram"), draft, greedy_draft, early, eagle3)
    engine = open_engine(*drafts, concurrency=4)
    target = engine._opened().model
    for proposer in drafts:
        texts, padded = [], []
        for end_to_end in (True, False):
            monkeypatch.setattr(target, "lays_end_to_end", end_to_end)
            trace = engine.run(requests, sampling, proposer, Schedule.constant(4))
            assert_counts_hold(trace, requests)
            texts.append(outputs(trace))
            padded.append(max(it.pad_fraction for it in trace.iterations))
        assert texts[0] == texts[1], proposer.name
        assert padded[0] == 0.0 < padded[1], proposer.name


def test_the_target_runs_no_position_that_nobody_proposed(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Ngram(name="ngram")
    engine = open_engine(draft, concurrency=4)
    target = engine._opened().model
    run: list[int] = []
    seen = target.model.forward

    def counting(input_ids: torch.Tensor, **given: object) -> object:
        run.append(input_ids.numel())
        return seen(input_ids=input_ids, **given)

    monkeypatch.setattr(target.model, "forward", counting)
    monkeypatch.setattr(engine, "_memory", None)
    requests = mixed_requests()
    trace = engine.run(requests, GREEDY, draft, Schedule.constant(4))
    assert any(0 < it.proposed < it.active * (it.width - 1) for it in trace.iterations), "no ragged batch, no test"
    verified = sum(it.active + it.proposed for it in trace.iterations)
    assert sum(run) == verified + sum(len(request.tokens) for request in requests)


@pytest.mark.parametrize("fault", ["rows", "offsets"])
def test_tokens_laid_at_wrong_places_are_noticed(
    fault: str, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Ngram(name="ngram")
    requests = mixed_requests()
    engine = open_engine(draft, concurrency=4)
    plain = outputs(engine.run(requests, GREEDY, None, OFF))

    class Broken(Ragged):
        @classmethod
        def of(cls, *given: object) -> Ragged:
            right = Ragged.of(*given)  # type: ignore[arg-type]
            return dataclasses.replace(right, **{fault: getattr(right, fault).flip(0)})

    monkeypatch.setattr(loop, "Ragged", Broken)
    assert outputs(engine.run(requests, GREEDY, draft, Schedule.constant(4))) != plain


def test_a_model_with_an_attention_of_its_own_is_padded() -> None:
    """Only ours knows which tokens belong to which row."""

    def without_interface(model: PreTrainedModel) -> CachedModel:
        model._supports_attention_backend = False
        return CachedModel(model, CPU)

    assert not without_interface(tiny_llama()).lays_end_to_end
