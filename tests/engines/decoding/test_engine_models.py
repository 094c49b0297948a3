"""Architectures: ragged batches in a slot cache give what transformers gives one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import GREEDY, VOCABULARY, accepted, assert_counts_hold, generated, mixed_requests, outputs, save
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from pipeline.engines.contract import OFF, Limits, Schedule
from pipeline.engines.decoding import forward as forward_module
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Ngram, Target

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 160,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = ["full_attention", "sliding_attention"] * 2
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen2-windows": lambda: Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=9, layer_types=KINDS),
    "mistral-window": lambda: MistralConfig(**SHAPE, sliding_window=9),
    "gemma2": lambda: Gemma2Config(**SHAPE, sliding_window=9, layer_types=KINDS, attn_logit_softcapping=3.0),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=4,
        n_head=4,
        n_positions=160,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    ),
}


def model_of(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    # transformers' sdpa leaves soft caps out, so the reference attends eagerly
    return Auto.from_config(CONFIGS[name](), attn_implementation="eager").eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_batches_decode_as_generate_does(name: str, tmp_path: Path) -> None:
    reference = model_of(name)
    requests = mixed_requests(6)
    expected = {request.request_id: generated(reference, request) for request in requests}
    assert len(set(expected.values())) > 3, "random text that says nothing shows nothing"
    draft = Ngram(name="ngram")
    engine = DecodingEngine(EngineSettings(device="cpu"))
    target = Target(name=name, source=save(reference, tmp_path), dtype="float32")
    engine.open(target, [draft], Limits(concurrency=4, max_gamma=4))
    assert outputs(engine.run(requests, GREEDY, None, OFF)) == expected
    trace = engine.run(requests, GREEDY, draft, Schedule.constant(4))
    assert outputs(trace) == expected
    assert_counts_hold(trace, requests)
    assert accepted(trace) > 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral-window"])
def test_a_long_prompt_in_chunks_is_the_whole_prompt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = np.random.default_rng(0).integers(3, 60, 50)
    reference = model_of(name)
    with torch.inference_mode():
        expected = reference(torch.from_numpy(prompt)[None]).logits[0, -1]
        monkeypatch.setattr(forward_module, "PREFILL_CHUNK", 7)
        cached = CachedModel(model_of(name), torch.device("cpu"))
        cached.reserve(3, 60)
        torch.testing.assert_close(cached.prefill(1, prompt), expected, rtol=1e-4, atol=1e-4)


def test_a_learned_position_table_is_never_overrun(tmp_path: Path) -> None:
    """Rows that end at the last position verify beside padding that would stand past it."""
    reference = model_of("gpt2")
    engine = DecodingEngine(EngineSettings(device="cpu"))
    draft = Ngram(name="ngram")
    target = Target(name="gpt2", source=save(reference, tmp_path), dtype="float32")
    engine.open(target, [draft], Limits(concurrency=2, max_gamma=8))
    everything = tuple(range(3, 61)) * 2  # any token is found, so all proposals are made
    requests = [
        replace(mixed_requests()[1], request_id=str(n), tokens=everything[n:], max_new_tokens=44 + n, ignore_eos=True)
        for n in (0, 40)
    ]
    trace = engine.run(requests, GREEDY, draft, Schedule.constant(8))
    for request in requests:
        assert outputs(trace)[request.request_id] == generated(reference, request)
    assert [row.finish for row in trace.requests] == ["length", "length"]
    # the shorter row is cut to the last position beside a row that still drafts in full
    last = trace.requests[0].first_iteration + len(trace.requests[0].room) - 1
    assert trace.requests[0].room[-1] < 8
    assert trace.iterations[last].width == 9


def test_the_models_own_path_is_put_back_after_a_plain_forward() -> None:
    reference = model_of("gemma2")
    cached = CachedModel(model_of("gemma2"), torch.device("cpu"))
    cached.reserve(1, 40)
    prompt = np.random.default_rng(0).integers(3, 60, 20)
    with torch.inference_mode():
        expected = reference(torch.from_numpy(prompt)[None]).logits[0, -1]
        torch.testing.assert_close(cached.plain_logits(prompt.tolist()), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cached.prefill(0, prompt), expected, rtol=1e-4, atol=1e-4)
